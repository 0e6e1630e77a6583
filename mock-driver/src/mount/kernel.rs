//! Real mounts. What is mounted where is asked of the path itself (statx), not looked for in the list of
//! all mounts: that is exact for paths with any characters and costs the same on a node with thousands.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatVfsMountFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::options::Options;
use super::{Error, Filesystem, Stats, Usage};

/// How many mounts may lie on top of one another at a path before we give up.
const LAYERS: usize = 64;

/// The device of the filesystem mounted at `path`; none if nothing is mounted there.
pub(super) fn device_at(path: &Path) -> Result<Option<u64>, Error> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS) {
        Ok(stat) if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) => {
            Ok(Some(rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)))
        }
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(Error::errno("look at", path)(errno)),
    }
}

/// Whether something is mounted at `path`.
pub(super) fn is_mount(path: &Path) -> Result<bool, Error> {
    Ok(device_at(path)?.is_some())
}

/// Whether the file at `path` is the block device of that number.
pub(super) fn is_device(path: &Path, number: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_block_device() && meta.rdev() == number)
}

/// The number of a block device.
pub(super) fn number(device: &Path) -> Result<u64, Error> {
    Ok(fs::metadata(device).map_err(Error::io("look at", device))?.rdev())
}

pub(super) fn mount(
    device: &Path,
    path: &Path,
    fs: Filesystem,
    options: &Options,
    given: &[String],
) -> Result<(), Error> {
    if !path.is_dir() {
        return Err(Error::InTheWay {
            path: path.to_owned(),
            reason: "is no directory",
        });
    }
    let refused = || Error::Options {
        path: path.to_owned(),
        flags: given.to_vec(),
    };
    let data = options.data().ok_or_else(refused)?;
    match rustix::mount::mount(device, path, fs.name(), options.flags(), data.as_c_str()) {
        Ok(()) => Ok(()),
        // The filesystem has been looked at before, so it is the options that are wrong, if there are any.
        Err(Errno::INVAL) if !given.is_empty() => Err(refused()),
        Err(errno) => Err(Error::errno("mount the volume at", path)(errno)),
    }
}

/// Shows a mounted directory at `target`, which is made.
pub(super) fn bind_directory(
    from: &Path,
    target: &Path,
    readonly: bool,
    flags: &[String],
) -> Result<(), Error> {
    if is_mount(target)? {
        return Err(in_the_way(target, "is a mount already"));
    }
    match fs::create_dir(target) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists && target.is_dir() => {}
        Err(error) => return Err(Error::io("create", target)(error)),
    }
    let wanted = Options::read(flags).flags();
    bind(from, target, readonly, wanted)
}

/// Shows a device at `target`, a file which is made.
pub(super) fn bind_device(device: &Path, target: &Path, readonly: bool) -> Result<(), Error> {
    if is_mount(target)? {
        return Err(in_the_way(target, "is a mount already"));
    }
    match fs::File::create_new(target) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists && is_empty_file(target) => {}
        Err(error) => return Err(Error::io("create", target)(error)),
    }
    bind(device, target, readonly, MountFlags::empty())
}

/// Binds, then restricts: the kernel takes the restrictions of a new bind mount in a second step only.
fn bind(from: &Path, target: &Path, readonly: bool, wanted: MountFlags) -> Result<(), Error> {
    rustix::mount::mount_bind(from, target).map_err(Error::errno("bind to", target))?;
    let per_mount = MountFlags::NOSUID
        | MountFlags::NODEV
        | MountFlags::NOEXEC
        | MountFlags::NOATIME
        | MountFlags::NODIRATIME
        | MountFlags::RELATIME
        | MountFlags::NOSYMFOLLOW
        | MountFlags::RDONLY;
    let mut flags = wanted & per_mount;
    if readonly {
        flags |= MountFlags::RDONLY;
    }
    if flags.is_empty() {
        return Ok(());
    }
    // What the filesystem was mounted with must be repeated, or it is taken back.
    flags |= inherited(from)?;
    let restricted = rustix::mount::mount_remount(target, MountFlags::BIND | flags, c"");
    if let Err(errno) = restricted {
        unmount(target)?;
        return Err(Error::errno("restrict the mount at", target)(errno));
    }
    Ok(())
}

fn inherited(from: &Path) -> Result<MountFlags, Error> {
    let stat = rustix::fs::statvfs(from).map_err(Error::errno("look at", from))?;
    let mut flags = MountFlags::empty();
    for (told, flag) in [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if stat.f_flag.contains(told) {
            flags |= flag;
        }
    }
    Ok(flags)
}

/// Unmounts everything at `path`.
pub(super) fn unmount(path: &Path) -> Result<(), Error> {
    for _ in 0..LAYERS {
        if !is_mount(path)? {
            return Ok(());
        }
        match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::BUSY) => {
                return Err(Error::Busy {
                    path: path.to_owned(),
                });
            }
            Err(errno) => return Err(Error::errno("unmount", path)(errno)),
        }
    }
    Err(in_the_way(path, "has too many mounts on top of one another"))
}

/// Removes a target that nothing is mounted on any more, if there is nothing in it.
pub(super) fn remove_empty(target: &Path) -> Result<(), Error> {
    let removed = match fs::symlink_metadata(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(meta) if meta.is_dir() => fs::remove_dir(target),
        Ok(meta) if meta.is_file() && meta.len() == 0 => fs::remove_file(target),
        Ok(_) => return Err(in_the_way(target, "is not the target of a volume")),
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            Err(in_the_way(target, "holds files that are not the volume's"))
        }
        result => result.map_err(Error::io("remove", target)),
    }
}

pub(super) fn stats(path: &Path) -> Result<Stats, Error> {
    let stat = rustix::fs::statvfs(path).map_err(Error::errno("read how full it is at", path))?;
    let unit = stat.f_frsize;
    Ok(Stats {
        bytes: Usage {
            available: stat.f_bavail * unit,
            total: stat.f_blocks * unit,
            used: stat.f_blocks.saturating_sub(stat.f_bfree) * unit,
        },
        inodes: Usage {
            available: stat.f_favail,
            total: stat.f_files,
            used: stat.f_files.saturating_sub(stat.f_ffree),
        },
    })
}

fn is_empty_file(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.len() == 0 && !meta.file_type().is_block_device())
}

fn in_the_way(path: &Path, reason: &'static str) -> Error {
    Error::InTheWay {
        path: path.to_owned(),
        reason,
    }
}
