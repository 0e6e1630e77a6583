//! Filesystems without privileges: a directory beside the disk emulates its filesystem, and links emulate mounts. The rules
//! for a disk's content are the same.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use super::error::Error;
use super::filesystem::{Content, Filesystem, content};
use super::{Disk, MountSource, Stats, Usage};
use crate::store::PathError;
use crate::store::volume_files::FILESYSTEM;

/// Inodes of an emulated filesystem: one per 16 KiB, the default of mkfs.ext4.
pub(super) const BYTES_PER_INODE: u64 = 16 * 1024;

/// Creates the filesystem of a disk unless it exists.
pub(super) fn prepare(disk: &Disk, asked: Option<Filesystem>) -> Result<(), Error> {
    let wanted = asked.unwrap_or(Filesystem::DEFAULT);
    let label = disk.tree.with_file_name(FILESYSTEM);
    let found = match fs::read_to_string(&label) {
        Ok(name) => Filesystem::asked(name.trim())?,
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(PathError::of("read", &label)(error).into()),
    };
    if let Some(found) = found {
        return match asked {
            Some(asked) if !found.serves(asked) => Err(Error::OtherFilesystem {
                found: found.name(),
                fs: wanted.name(),
            }),
            _ => Ok(()),
        };
    }
    match content(disk)? {
        Content::Blank if !disk.writable => return Err(Error::BlankAndReadOnly),
        Content::Blank => {}
        Content::Known(found) => {
            return Err(Error::UnknownData {
                found: found.name(),
                fs: wanted.name(),
            });
        }
        Content::Unknown(found) => {
            return Err(Error::UnknownData {
                found,
                fs: wanted.name(),
            });
        }
    }
    // Not flushed: the filesystem label, written next, decides whether the directory counts.
    fs::create_dir_all(&disk.tree).map_err(PathError::of("create", &disk.tree))?;
    // The label is written last: a directory without it was never mounted.
    Ok(File::create(&label)
        .and_then(|mut file| io::Write::write_all(&mut file, wanted.name().as_bytes()).and(file.sync_all()))
        .map_err(PathError::of("create", &label))?)
}

/// Links `target` to `to`; removes the empty directory or file that a caller may have created for a mount.
pub(super) fn link(to: &Path, target: &Path) -> Result<(), Error> {
    super::kernel::remove_empty(target)?;
    Ok(symlink(to, target).map_err(PathError::of("link", target))?)
}

pub(super) fn source_at(target: &Path) -> Result<Option<MountSource>, Error> {
    // No link, or no such file.
    let absent = [
        ErrorKind::InvalidInput,
        ErrorKind::NotFound,
        ErrorKind::NotADirectory,
    ];
    match fs::read_link(target) {
        Ok(to) => Ok(Some(MountSource::Link(to))),
        Err(error) if absent.contains(&error.kind()) => Ok(None),
        Err(error) => Err(PathError::of("read the link", target)(error).into()),
    }
}

/// Removes a link, not its destination.
pub(super) fn unlink(target: &Path, is_ours: impl Fn(&MountSource) -> bool) -> Result<(), Error> {
    match source_at(target)? {
        None => Ok(()),
        Some(mounted) if is_ours(&mounted) => {
            Ok(fs::remove_file(target).map_err(PathError::of("remove", target))?)
        }
        Some(_) => Err(Error::in_the_way(target, "is a link that is not of this volume")),
    }
}

/// The volume's size and the usage by its files.
pub(super) fn stats(disk: &Disk) -> Result<Stats, Error> {
    let total = fs::metadata(&disk.device)
        .map_err(PathError::of("stat", &disk.device))?
        .len();
    let (mut bytes, mut inodes) = (0, 0);
    measure(&disk.tree, &mut bytes, &mut inodes).map_err(PathError::of("read", &disk.tree))?;
    let usage = |total: u64, used: u64| Usage {
        available: total.saturating_sub(used),
        total,
        used,
    };
    Ok(Stats {
        bytes: usage(total, bytes),
        inodes: usage(total / BYTES_PER_INODE, inodes),
    })
}

/// Adds up the usage of a directory. Files that the user removes meanwhile do not count.
fn measure(directory: &Path, bytes: &mut u64, inodes: &mut u64) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let meta = match entry.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            meta => meta?,
        };
        *inodes += 1;
        if meta.is_dir() {
            match measure(&entry.path(), bytes, inodes) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                measured => measured?,
            }
        } else {
            *bytes += meta.blocks() * 512;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::tests::mk_blank_disk;
    use super::*;

    #[test]
    fn stats_pass_over_files_that_are_removed_meanwhile() {
        let (_directory, disk) = mk_blank_disk(1 << 20);
        let folder = disk.tree.join("folder");
        fs::create_dir_all(&folder).unwrap();
        thread::scope(|scope| {
            let user = scope.spawn(|| {
                for round in 0..2000 {
                    let made = folder.join((round % 7).to_string());
                    fs::create_dir_all(&made).unwrap();
                    fs::write(made.join("file"), "text").unwrap();
                    fs::remove_dir_all(&made).unwrap();
                }
            });
            while !user.is_finished() {
                stats(&disk).unwrap();
            }
        });
        assert_eq!(stats(&disk).unwrap().inodes.used, 1);
    }
}
