//! Formats disks, with a mark beside the disk while mkfs runs.
//!
//! An incomplete filesystem looks like user data. The mark is made for a blank disk only and removed, durably, before the disk
//! is mounted or published: whatever is on a disk with the mark is of an interrupted mkfs, which is repeated.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::Disk;
use super::error::Error;
use super::filesystem::{Content, Filesystem, check, content, grow_unmounted};
use crate::node::exec::Program;
use crate::store::{PathError, remove_if_exists};

const BLKDISCARD: Program = Program {
    name: "blkdiscard",
    package: "util-linux",
};

/// Checks the filesystem on the disk, or formats a blank disk, and returns which filesystem it has.
pub(super) fn prepare(disk: &Disk, asked: Option<Filesystem>) -> Result<Filesystem, Error> {
    let is_rest = disk.formatting.exists();
    if is_rest && !disk.writable {
        return Err(Error::HalfFormatted);
    }
    let wanted = asked.unwrap_or(Filesystem::DEFAULT);
    let content = if is_rest { Content::Blank } else { content(disk)? };
    match content {
        Content::Known(found) if asked.is_some_and(|asked| !found.serves(asked)) => {
            Err(Error::OtherFilesystem {
                found: found.name(),
                fs: wanted.name(),
            })
        }
        Content::Known(found) => {
            if disk.writable {
                check(found, disk)?;
                grow_unmounted(disk)?;
            }
            Ok(found)
        }
        Content::Unknown(found) => Err(Error::UnknownData {
            found,
            fs: wanted.name(),
        }),
        Content::Blank if !disk.writable => Err(Error::BlankAndReadOnly),
        Content::Blank => {
            format(wanted.mkfs(), disk)?;
            tracing::info!(device = %disk.device.display(), fs = wanted.name(), "formatted");
            Ok(wanted)
        }
    }
}

fn format((mkfs, args): (Program, &[&str]), disk: &Disk) -> Result<(), Error> {
    let mark = &disk.formatting;
    File::create(mark)
        .and_then(|file| file.sync_all())
        .and_then(|()| flush_directory_of(mark))
        .map_err(PathError::of("create", mark))?;
    let args = args.iter().map(AsRef::as_ref).chain([disk.device.as_os_str()]);
    mkfs.run_until(args.collect::<Vec<_>>(), &[0], &disk.stop, disk.lock.as_deref())?;
    File::open(&disk.device)
        .and_then(|device| device.sync_all())
        .map_err(PathError::of("flush", &disk.device))?;
    remove(mark)
}

/// Prepares a disk to be published as a device: wipes what an interrupted mkfs left and removes the mark, so that later contents
/// are never taken for that.
pub(crate) fn wipe_interrupted(disk: &Disk) -> Result<(), Error> {
    if !disk.formatting.exists() {
        return Ok(());
    }
    if !disk.writable {
        return Err(Error::HalfFormatted);
    }
    wipe(disk)?;
    remove(&disk.formatting)
}

/// Zeroes a disk, and with it the device's page cache.
fn wipe(disk: &Disk) -> Result<(), Error> {
    let meta = fs::metadata(&disk.device).map_err(PathError::of("stat", &disk.device))?;
    if meta.file_type().is_block_device() {
        // Opens the device exclusively, so it fails while a mkfs still runs.
        BLKDISCARD.run(["--zeroout".as_ref(), disk.device.as_os_str()], &[0])?;
        return Ok(File::open(&disk.device)
            .and_then(|device| device.sync_all())
            .map_err(PathError::of("flush", &disk.device))?);
    }
    let empty = || {
        let file = File::options().write(true).open(&disk.device)?;
        file.set_len(0)?;
        file.set_len(meta.len())?;
        file.sync_all()
    };
    Ok(empty().map_err(PathError::of("wipe", &disk.device))?)
}

fn remove(mark: &Path) -> Result<(), Error> {
    remove_if_exists(mark)?;
    Ok(flush_directory_of(mark).map_err(PathError::of("remove", mark))?)
}

fn flush_directory_of(mark: &Path) -> io::Result<()> {
    match mark.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    use super::super::tests::mk_blank_disk;
    use super::*;
    use crate::node::exec;

    fn write(disk: &PathBuf, bytes: &[u8], offset: u64) {
        let file = File::options().write(true).open(disk).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    }

    fn read(disk: &PathBuf, length: usize, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; length];
        File::open(disk)
            .unwrap()
            .read_exact_at(&mut bytes, offset)
            .unwrap();
        bytes
    }

    #[test]
    fn data_written_after_disk_lookup_is_never_formatted() {
        verdict::require!(verdict::Requirement::Program("mkfs.ext4"));
        for rest in [&[][..], b"half a filesystem"] {
            let (_directory, disk) = mk_blank_disk(16 << 20);
            let failing = Program {
                name: "false",
                package: "coreutils",
            };
            format((failing, &[]), &disk).unwrap_err();
            assert!(disk.formatting.exists(), "who knows what it did");
            write(&disk.file, rest, 1 << 20);
            wipe_interrupted(&disk).unwrap();
            assert!(!disk.formatting.exists());
            assert_eq!(read(&disk.file, 17, 1 << 20), [0; 17], "the rest is wiped");
            assert_eq!(fs::metadata(&disk.file).unwrap().len(), 16 << 20);
            write(&disk.file, b"other data", 5 << 20);
            let refused = prepare(&disk, None).unwrap_err();
            assert!(matches!(refused, Error::UnknownData { .. }), "{refused}");
            assert_eq!(read(&disk.file, 10, 5 << 20), b"other data");
        }
    }

    #[test]
    fn interrupted_mkfs_on_a_read_only_disk_is_reported() {
        let (_directory, mut disk) = mk_blank_disk(16 << 20);
        fs::write(&disk.formatting, "").unwrap();
        write(&disk.file, b"half a filesystem", 1 << 20);
        disk.writable = false;
        assert!(matches!(prepare(&disk, None), Err(Error::HalfFormatted)));
        assert!(matches!(wipe_interrupted(&disk), Err(Error::HalfFormatted)));
        assert!(disk.formatting.exists());
    }

    #[test]
    fn mkfs_is_repeated_whatever_an_interrupted_one_left() {
        for rest in [&b"half a filesystem"[..], b""] {
            let (_directory, disk) = mk_blank_disk(16 << 20);
            if rest.is_empty() {
                // It was complete, except for the removal of the mark.
                prepare(&disk, Some(Filesystem::Ext4)).unwrap();
            }
            write(&disk.file, rest, 1 << 20);
            fs::write(&disk.formatting, "").unwrap();
            assert_eq!(prepare(&disk, Some(Filesystem::Ext2)).unwrap(), Filesystem::Ext2);
            assert!(!disk.formatting.exists());
            assert_eq!(content(&disk).unwrap(), Content::Known(Filesystem::Ext2));
        }
    }

    #[test]
    fn stopped_mkfs_leaves_its_mark() {
        let (_directory, disk) = mk_blank_disk(16 << 20);
        let endless = Program {
            name: "sleep",
            package: "coreutils",
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        disk.stop.cancel();
        let disk = Disk {
            device: "infinity".into(),
            ..disk
        };
        let error = format((endless, &[]), &disk).unwrap_err();
        assert!(
            matches!(error, Error::Program(exec::Error::Failed { code: None, .. })),
            "{error}"
        );
        assert!(disk.formatting.exists());
    }
}
