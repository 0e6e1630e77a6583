//! Formats disks, with a mark beside the disk while mkfs runs.
//!
//! An incomplete filesystem looks like user data; the mark shows the next call that mkfs was interrupted. Invariants:
//! - The mark is made only for a blank disk, and is durable before mkfs starts.
//! - A filesystem is mounted, and a device published, only after the mark was removed durably.
//! - A filesystem that is complete or was mounted once is never formatted, even with the mark.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::Disk;
use super::error::Error;
use super::filesystem::{Content, E2FSCK, Filesystem, check, content, grow_unmounted, head};
use crate::node::exec::{self, Program};
use crate::store::PathError;

const BLKDISCARD: Program = Program {
    name: "blkdiscard",
    package: "util-linux",
};

/// Offsets of ext's last mount time and mount count.
const EXT_MOUNTED: [Range<usize>; 2] = [0x42C..0x430, 0x434..0x436];

/// Offset of the xfs flag "mkfs in progress".
const XFS_IN_PROGRESS: usize = 0x7E;

/// Checks the filesystem on the disk, or formats a blank disk, and returns which filesystem it has.
pub(super) fn prepare(disk: &Disk, asked: Option<Filesystem>) -> Result<Filesystem, Error> {
    let content = look(disk)?;
    let wanted = asked.unwrap_or(Filesystem::DEFAULT);
    match content {
        Content::Known(found) if asked.is_some_and(|asked| !found.serves(asked)) => {
            Err(Error::OtherFilesystem {
                found: found.name(),
                fs: wanted.name(),
            })
        }
        Content::Known(found) => {
            if disk.writable {
                check(found, &disk.device)?;
                grow_unmounted(&disk.device)?;
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

/// The content of a disk. The remains of an interrupted mkfs of the driver count as blank.
fn look(disk: &Disk) -> Result<Content, Error> {
    let content = content(&disk.device, &disk.file)?;
    if !disk.formatting.exists() {
        return Ok(content);
    }
    match content {
        Content::Known(found) if is_whole(found, &disk.device)? => {
            remove(&disk.formatting)?;
            Ok(content)
        }
        Content::Known(_) | Content::Unknown(_) if !disk.writable => Err(Error::HalfFormatted),
        Content::Blank | Content::Known(_) | Content::Unknown(_) => Ok(Content::Blank),
    }
}

fn format((mkfs, args): (Program, &[&str]), disk: &Disk) -> Result<(), Error> {
    let mark = &disk.formatting;
    let is_rest = mark.exists();
    File::create(mark)
        .and_then(|file| file.sync_all())
        .and_then(|()| flush_directory_of(mark))
        .map_err(PathError::of("create", mark))?;
    let args = args.iter().map(AsRef::as_ref).chain([disk.device.as_os_str()]);
    if let Err(error) = mkfs.run(args.collect::<Vec<_>>(), &[0]) {
        match error {
            // mkfs did not write to the disk.
            exec::Error::Missing { .. } | exec::Error::Start { .. } if !is_rest => remove(mark)?,
            exec::Error::Missing { .. } | exec::Error::Start { .. } | exec::Error::Failed { .. } => {}
        }
        return Err(error.into());
    }
    File::open(&disk.device)
        .and_then(|device| device.sync_all())
        .map_err(PathError::of("flush", &disk.device))?;
    remove(mark)
}

/// Prepares a disk to be published as a device: wipes an incomplete filesystem of an interrupted mkfs and removes the
/// mark, so that later contents are never taken for one.
pub(crate) fn hand_over(disk: &Disk) -> Result<(), Error> {
    if !disk.formatting.exists() {
        return Ok(());
    }
    match content(&disk.device, &disk.file)? {
        Content::Blank => {}
        Content::Known(found) if is_whole(found, &disk.device)? => {}
        Content::Known(_) | Content::Unknown(_) if !disk.writable => return Err(Error::HalfFormatted),
        Content::Known(_) | Content::Unknown(_) => wipe(disk)?,
    }
    remove(&disk.formatting)
}

/// Whether mkfs completed, or the filesystem has been mounted.
fn is_whole(found: Filesystem, device: &Path) -> Result<bool, Error> {
    let head = head(device).map_err(PathError::of("read", device))?;
    match found {
        Filesystem::Xfs => Ok(head.get(XFS_IN_PROGRESS) == Some(&0)),
        Filesystem::Ext2 | Filesystem::Ext3 | Filesystem::Ext4 => {
            let used = |range: Range<usize>| {
                head.get(range)
                    .is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0))
            };
            if EXT_MOUNTED.into_iter().any(used) {
                return Ok(true);
            }
            match E2FSCK.run(["-f".as_ref(), "-n".as_ref(), device.as_os_str()], &[0]) {
                Ok(_) => Ok(true),
                Err(exec::Error::Failed { .. }) => Ok(false),
                Err(error) => Err(error.into()),
            }
        }
    }
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
    let removed = match fs::remove_file(mark) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => flush_directory_of(mark),
    };
    Ok(removed.map_err(PathError::of("remove", mark))?)
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
    fn mkfs_that_never_ran_leaves_no_mark() {
        let (_directory, disk) = mk_blank_disk(16 << 20);
        let missing = Program {
            name: "mkfs.nothing",
            package: "nothingprogs",
        };
        let error = format((missing, &[]), &disk).unwrap_err();
        assert!(
            matches!(error, Error::Program(exec::Error::Missing { .. })),
            "{error}"
        );
        assert!(!disk.formatting.exists());
        write(&disk.file, b"other data", 5 << 20);
        let refused = prepare(&disk, None).unwrap_err();
        assert!(matches!(refused, Error::UnknownData { .. }), "{refused}");
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

            hand_over(&disk).unwrap();
            assert!(!disk.formatting.exists());
            assert_eq!(read(&disk.file, 17, 1 << 20), [0; 17], "the rest is wiped");
            assert_eq!(fs::metadata(&disk.file).unwrap().len(), 16 << 20);

            write(&disk.file, b"other data", 5 << 20);
            hand_over(&disk).unwrap();
            let refused = prepare(&disk, None).unwrap_err();
            assert!(matches!(refused, Error::UnknownData { .. }), "{refused}");
            assert_eq!(read(&disk.file, 10, 5 << 20), b"other data");
        }
    }

    #[test]
    fn mark_beside_a_whole_or_used_filesystem_goes_and_the_filesystem_stays() {
        verdict::require!(verdict::Requirement::Program("mkfs.ext4"));
        // (case, what is changed after mkfs)
        let mounted = (0x434, [1, 0]);
        for (case, change) in [("whole", None), ("mounted once, and dirty since", Some(mounted))] {
            let (_directory, disk) = mk_blank_disk(16 << 20);
            prepare(&disk, Some(Filesystem::Ext2)).unwrap();
            if let Some((offset, bytes)) = change {
                write(&disk.file, &bytes, offset);
            }
            let volume_name = 0x478;
            write(&disk.file, b"precious", volume_name);
            fs::write(&disk.formatting, "").unwrap();
            assert_eq!(prepare(&disk, None).unwrap(), Filesystem::Ext2, "{case}");
            assert_eq!(
                read(&disk.file, 8, volume_name),
                b"precious",
                "{case}: not made again"
            );
            assert!(!disk.formatting.exists(), "{case}");
        }
    }

    #[test]
    fn interrupted_mkfs_on_a_read_only_disk_is_reported() {
        let (_directory, mut disk) = mk_blank_disk(16 << 20);
        fs::write(&disk.formatting, "").unwrap();
        write(&disk.file, b"half a filesystem", 1 << 20);
        disk.writable = false;
        assert!(matches!(prepare(&disk, None), Err(Error::HalfFormatted)));
        assert!(matches!(hand_over(&disk), Err(Error::HalfFormatted)));
        assert!(disk.formatting.exists());
    }
}
