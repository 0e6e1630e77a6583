//! Real mounts. The mount at a path is looked up by statx, not in the list of all mounts: that works for any characters in
//! paths, and its cost does not grow with the number of mounts on the node. It takes what the kernel knows of a FUSE mount, whose
//! server may hang.

use std::ffi::CString;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, StatVfsMountFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::error::Error;
use super::filesystem::Filesystem;
use super::options::Options;
use super::{MountSource, Stats, Usage};
use crate::store::PathError;

/// Maximum number of stacked mounts that are unmounted at a path.
const LAYERS: usize = 64;

/// The device of the filesystem mounted at `path`; `None` if nothing is mounted there.
pub(crate) fn device_at(path: &Path) -> Result<Option<u64>, Error> {
    let root = root_at(path)?;
    Ok(root.map(|stat| rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)))
}

/// The root of what is mounted at `path`; `None` if nothing is.
fn root_at(path: &Path) -> Result<Option<Statx>, Error> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match rustix::fs::statx(CWD, path, flags, StatxFlags::BASIC_STATS) {
        Ok(stat) if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) => Ok(Some(stat)),
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(PathError::of("stat", path)(errno).into()),
    }
}

pub(crate) fn is_mount(path: &Path) -> Result<bool, Error> {
    Ok(device_at(path)?.is_some())
}

/// The mount source at `path`: a block device, or the device of the filesystem mounted there.
pub(super) fn source_at(path: &Path) -> Result<Option<MountSource>, Error> {
    let Some(root) = root_at(path)? else {
        return Ok(None);
    };
    let is_block = FileType::from_raw_mode(root.stx_mode.into()) == FileType::BlockDevice;
    let (major, minor) = match is_block {
        true => (root.stx_rdev_major, root.stx_rdev_minor),
        false => (root.stx_dev_major, root.stx_dev_minor),
    };
    Ok(Some(MountSource::Device(rustix::fs::makedev(major, minor))))
}

pub(super) fn is_read_only(path: &Path) -> Result<bool, Error> {
    let stat = rustix::fs::statvfs(path).map_err(PathError::of("statvfs", path))?;
    Ok(stat.f_flag.contains(StatVfsMountFlags::RDONLY))
}

pub(super) fn number(device: &Path) -> Result<u64, Error> {
    Ok(fs::metadata(device)
        .map_err(PathError::of("stat", device))?
        .rdev())
}

pub(super) fn mount(
    device: &Path,
    path: &Path,
    fs: Filesystem,
    options: &Options,
    given: &[String],
) -> Result<(), Error> {
    if !path.is_dir() {
        return Err(Error::in_the_way(path, "is no directory"));
    }
    let refused = || Error::Options {
        path: path.to_owned(),
        flags: given.to_vec(),
    };
    let data = options.data().ok_or_else(refused)?;
    match rustix::mount::mount(device, path, fs.name(), options.flags, data.as_c_str()) {
        Ok(()) => Ok(()),
        // The filesystem was checked before, so the options are the cause, if there are any.
        Err(Errno::INVAL) if !given.is_empty() => Err(refused()),
        Err(errno) => Err(PathError::of("mount the volume at", path)(errno).into()),
    }
}

/// Mounts the FUSE filesystem that a descriptor serves at `root`, with the flags of the mount at `staging`.
pub(crate) fn mount_fuse(server: RawFd, name: &Path, staging: &Path, root: &Path) -> Result<(), Error> {
    let data = format!("fd={server},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other");
    let data = CString::new(data).unwrap_or_default();
    let flags = inherited(staging)?;
    let mounted = rustix::mount::mount(name, root, "fuse", flags, data.as_c_str());
    Ok(mounted.map_err(PathError::of("mount the passthrough filesystem at", root))?)
}

/// Bind-mounts a directory at `target`, which is created.
pub(super) fn bind_directory(
    from: &Path,
    target: &Path,
    readonly: bool,
    flags: &[String],
) -> Result<(), Error> {
    if is_mount(target)? {
        return Err(Error::in_the_way(target, "is a mount already"));
    }
    match fs::create_dir(target) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists && target.is_dir() => {}
        Err(error) => return Err(PathError::of("create", target)(error).into()),
    }
    let wanted = Options::read(flags).flags;
    bind(from, target, readonly, wanted)
}

/// Bind-mounts a device at `target`, a file which is created.
pub(super) fn bind_device(device: &Path, target: &Path, readonly: bool) -> Result<(), Error> {
    if is_mount(target)? {
        return Err(Error::in_the_way(target, "is a mount already"));
    }
    match fs::File::create_new(target) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists && is_empty_file(target) => {}
        Err(error) => return Err(PathError::of("create", target)(error).into()),
    }
    bind(device, target, readonly, MountFlags::empty())
}

/// Binds, then remounts with flags: mount(2) ignores the flags of a new bind mount.
fn bind(from: &Path, target: &Path, readonly: bool, wanted: MountFlags) -> Result<(), Error> {
    rustix::mount::mount_bind(from, target).map_err(PathError::of("bind to", target))?;
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
    // A remount clears the flags that it does not repeat.
    flags |= inherited(from)?;
    let restricted = rustix::mount::mount_remount(target, MountFlags::BIND | flags, c"");
    if let Err(errno) = restricted {
        unmount_uppermost(target)?;
        return Err(PathError::of("restrict the mount at", target)(errno).into());
    }
    Ok(())
}

fn inherited(from: &Path) -> Result<MountFlags, Error> {
    let stat = rustix::fs::statvfs(from).map_err(PathError::of("statvfs", from))?;
    let mut flags = MountFlags::empty();
    for (info, flag) in [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if stat.f_flag.contains(info) {
            flags |= flag;
        }
    }
    Ok(flags)
}

/// Unmounts the driver's mounts at `path` until nothing or a foreign mount is there. Retries a busy mount for a short time:
/// a process may be about to close a file, and a child between fork and exec holds all files of its parent. The kernel
/// does not report when that ends.
pub(super) fn unmount(path: &Path, is_ours: impl Fn(&MountSource) -> bool) -> Result<(), Error> {
    const TRIES: u32 = 25;
    const PAUSE: Duration = Duration::from_millis(20);
    let (mut layers, mut tries) = (0, 0);
    while layers < LAYERS {
        match source_at(path)? {
            None => return Ok(()),
            Some(mounted) if is_ours(&mounted) => match unmount_uppermost(path) {
                Ok(()) => layers += 1,
                Err(Error::Busy { .. }) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error),
            },
            Some(_) => return Err(Error::in_the_way(path, "is a mount that is not of this volume")),
        }
    }
    Err(Error::in_the_way(
        path,
        "has too many mounts on top of one another",
    ))
}

fn unmount_uppermost(path: &Path) -> Result<(), Error> {
    match rustix::mount::unmount(path, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(Error::Busy {
            path: path.to_owned(),
        }),
        Err(errno) => Err(PathError::of("unmount", path)(errno).into()),
    }
}

/// Checks that `target` does not exist or is an empty directory or file, which a caller may have created for a mount.
pub(crate) fn check_empty(target: &Path) -> Result<(), Error> {
    let holds_nothing = match fs::symlink_metadata(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(meta) if meta.is_dir() => fs::read_dir(target).map(|mut entries| entries.next().is_none()),
        Ok(meta) if meta.is_file() => Ok(meta.len() == 0),
        Ok(_) => return Err(Error::in_the_way(target, "is not the target of a volume")),
    };
    if holds_nothing.map_err(PathError::of("stat", target))? {
        return Ok(());
    }
    Err(Error::in_the_way(target, "holds data that is not the volume's"))
}

pub(crate) fn remove_empty(target: &Path) -> Result<(), Error> {
    check_empty(target)?;
    let removed = match fs::symlink_metadata(target) {
        Ok(meta) if meta.is_dir() => fs::remove_dir(target),
        Ok(_) => fs::remove_file(target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            Err(Error::in_the_way(target, "holds data that is not the volume's"))
        }
        result => Ok(result.map_err(PathError::of("remove", target))?),
    }
}

pub(super) fn stats(path: &Path) -> Result<Stats, Error> {
    let stat =
        rustix::fs::statvfs(path).map_err(PathError::of("read the usage of the filesystem at", path))?;
    let fragment_size = stat.f_frsize;
    Ok(Stats {
        bytes: Usage {
            available: stat.f_bavail * fragment_size,
            total: stat.f_blocks * fragment_size,
            used: stat.f_blocks.saturating_sub(stat.f_bfree) * fragment_size,
        },
        inodes: Usage {
            available: stat.f_favail,
            total: stat.f_files,
            used: stat.f_files.saturating_sub(stat.f_ffree),
        },
    })
}

fn is_empty_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == 0)
}
