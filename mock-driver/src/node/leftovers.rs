//! Undoes what processes without a state directory left when they were killed: mounts of their devices, links and targets, and
//! the devices.
//!
//! All is found from the directory with the links to the devices, which the process had for itself. What is of anybody else
//! stays: a mount counts only if its device has the disk that this directory names, and a link only if it leads to a volume's disk.

use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::device::{self, Devices, Kind, link_name, noted_in, remove_note};
use super::error::Error;
use super::mount::{self, MountSource};
use super::passthrough;
use crate::store::PathError;
use crate::store::volume_files::{FileId, paths_in};

/// The mounts of this process's mount namespace.
const MOUNTS: &str = "/proc/self/mountinfo";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Undone {
    pub(crate) mounts: usize,
    pub(crate) devices: usize,
    pub(crate) targets: usize,
}

struct Mount {
    path: PathBuf,
    device: u64,
    /// What of the filesystem is mounted.
    root: PathBuf,
    kind: String,
    source: PathBuf,
}

// === impl Undone ===

impl Undone {
    pub(crate) fn add(&mut self, other: Self) {
        self.mounts += other.mounts;
        self.devices += other.devices;
        self.targets += other.targets;
    }
}

impl fmt::Display for Undone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mounts,
            devices,
            targets,
        } = self;
        write!(f, "{mounts} mounts, {devices} loop devices, {targets} targets")
    }
}

/// Undoes everything of the devices whose links are in a directory. Blocks.
///
/// # Errors
/// Something is in use. The rest is undone nevertheless.
pub(crate) fn undo(directory: &Path) -> Result<Undone, Error> {
    // Above the mounts of the devices.
    let mut undone = undo_passthroughs(directory)?;
    // A device of kind Emulated is a link, which it removes, too.
    let devices = Devices::within(Kind::Loop, directory.to_owned());
    let mut result = Ok(());
    let linked = devices.linked()?;
    for device in &linked {
        result = result.and(unmount_all(device, &mut undone.mounts));
    }
    for target in noted_in(directory)? {
        let is_shown = mount::is_mount(&target).map_err(Error::from);
        let is_shown = is_shown.and_then(|is_mount| Ok(is_mount && !unmount_freed(&target)?));
        let removed = match is_shown {
            // The next start looks at it again.
            Ok(true) => continue,
            Ok(false) => remove_target(&target).and_then(|()| Ok(remove_note(directory, &target)?)),
            Err(error) => Err(error),
        };
        undone.targets += usize::from(removed.is_ok());
        result = result.and(removed);
    }
    result?;
    devices.retain(|_| false)?;
    undone.devices += linked.len();
    Ok(undone)
}

/// Unmounts the passthrough filesystems of volumes whose devices have their links in a directory. Blocks.
pub(crate) fn undo_passthroughs(directory: &Path) -> Result<Undone, Error> {
    let mut undone = Undone::default();
    for mount in passthroughs()? {
        let is_there = mount::device_at(&mount.path)? == Some(mount.device);
        if is_there && mount.source.parent() == Some(directory) {
            passthrough::force_unmount(&mount.path)?;
            undone.mounts += 1;
        }
    }
    Ok(undone)
}

/// The link to the device with this serial number, if the source is its passthrough filesystem, which a process left whose directory
/// is gone, as in a container. Blocks.
pub(super) fn passthrough_of(serial: &str, source: &MountSource) -> Option<PathBuf> {
    let is_left = |mount: &Mount| {
        let is_named = mount.source.file_name() == Some(link_name(serial).as_ref());
        *source == MountSource::Device(mount.device) && is_named && !mount.source.exists()
    };
    passthroughs().ok()?.find(is_left).map(|mount| mount.source)
}

/// The mounts of passthrough filesystems. Their source is the link of the volume's device.
fn passthroughs() -> Result<impl Iterator<Item = Mount>, Error> {
    Ok(mounts()?.into_iter().filter(|mount| mount.kind == "fuse"))
}

/// The mounts, the latest first.
fn mounts() -> Result<Vec<Mount>, Error> {
    let text = fs::read_to_string(MOUNTS).map_err(PathError::of("read", Path::new(MOUNTS)))?;
    let read = |line: &str| {
        // See proc_pid_mountinfo(5).
        let (mount, filesystem) = line.split_once(" - ")?;
        let (mut mount, mut filesystem) = (mount.split(' ').skip(2), filesystem.split(' '));
        let (major, minor) = mount.next()?.split_once(':')?;
        Some(Mount {
            device: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
            root: unescaped(mount.next()?).into(),
            path: unescaped(mount.next()?).into(),
            kind: filesystem.next()?.to_owned(),
            source: unescaped(filesystem.next()?).into(),
        })
    };
    Ok(text.lines().rev().filter_map(read).collect())
}

/// Undoes everything of the nodes that have their links below a directory of volume files. Blocks.
pub(crate) fn undo_below(volume_files: &Path) -> Result<Undone, Error> {
    let folder = volume_files.join("devices");
    let mut undone = Undone::default();
    for path in paths_in(&folder)? {
        // A link leads to the directory of --device-dir, which may be gone, or have another driver by now.
        let devices = Devices::within(Kind::Loop, path.clone());
        match path.is_dir().then(|| devices.lock()) {
            Some(Ok(())) => undone.add(undo(&path)?),
            None | Some(Err(device::Error::InUse { .. })) => {}
            Some(Err(error)) => return Err(error.into()),
        }
    }
    Ok(undone)
}

/// Whether a device or its filesystem is mounted in this mount namespace. Blocks.
pub(super) fn is_mounted(device: &Path) -> Result<bool, Error> {
    Ok(!mounts_of(device, number_of(device)?)?.is_empty())
}

fn number_of(device: &Path) -> Result<u64, PathError> {
    let meta = fs::metadata(device).map_err(PathError::of("stat", device))?;
    Ok(meta.rdev())
}

fn unmount_all(device: &Path, count: &mut usize) -> Result<(), Error> {
    let number = number_of(device)?;
    let own = MountSource::Device(number);
    let mut result = Ok(());
    for path in mounts_of(device, number)? {
        match mount::unmount(&path, |mounted| *mounted == own) {
            Ok(()) => *count += 1,
            Err(error) => result = result.and(Err(error.into())),
        }
    }
    result
}

/// Unmounts a raw block device from a target, if its loop device is free: that of a volume that was detached meanwhile. A mount of the
/// device's file does not keep the device.
fn unmount_freed(target: &Path) -> Result<bool, Error> {
    const LOOP_MAJOR: u32 = 7;
    let meta = fs::symlink_metadata(target).map_err(PathError::of("stat", target))?;
    let number = meta.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let has_file = Path::new("/sys/dev/block")
        .join(format!("{major}:{minor}/loop"))
        .exists();
    if !meta.file_type().is_block_device() || major != LOOP_MAJOR || has_file {
        return Ok(false);
    }
    mount::unmount(target, |mounted| *mounted == MountSource::Device(number))?;
    Ok(true)
}

/// Where a device or its filesystem is mounted, the latest mount first.
fn mounts_of(device: &Path, number: u64) -> Result<Vec<PathBuf>, Error> {
    let is_device = |path: &Path| {
        let meta = fs::symlink_metadata(path);
        meta.is_ok_and(|meta| meta.file_type().is_block_device() && meta.rdev() == number)
    };
    let is_shown = |mount: &Mount| {
        // The file of a device is mounted from another filesystem, under its own name.
        let is_file = || mount.root.file_name() == device.file_name() && is_device(&mount.path);
        mount.device == number || is_file()
    };
    Ok(mounts()?
        .into_iter()
        .filter(is_shown)
        .map(|mount| mount.path)
        .collect())
}

/// A path of mountinfo, in which some characters are octal numbers.
fn unescaped(text: &str) -> std::ffi::OsString {
    use std::os::unix::ffi::OsStringExt;
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let number = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match number.filter(|_| *first == b'\\') {
            Some(number) => {
                bytes.push(number);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes)
}

/// Removes the link or the empty directory or file at a target. What else is there is not of the process that noted the target.
fn remove_target(target: &Path) -> Result<(), Error> {
    let Ok(meta) = fs::symlink_metadata(target) else {
        return Ok(());
    };
    if meta.is_symlink() {
        let is_volume = fs::read_link(target).is_ok_and(|to| FileId::is_data(&to));
        if is_volume {
            fs::remove_file(target).map_err(PathError::of("remove", target))?;
        }
        return Ok(());
    }
    if mount::check_empty(target).is_ok() {
        mount::remove_empty(target)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mountinfo_are_read() {
        for (text, expected) in [
            ("/a", "/a"),
            ("/a\\040b\\011", "/a b\t"),
            ("/a\\134040", "/a\\040"),
            ("/\\04", "/\\04"),
        ] {
            assert_eq!(unescaped(text), expected, "{text}");
        }
    }

    #[test]
    fn target_that_is_not_of_a_volume_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::os::unix::fs::symlink("/x/volumes/a/tree", path("ours")).unwrap();
        std::os::unix::fs::symlink("/x/photos/a/tree", path("link")).unwrap();
        fs::create_dir_all(path("folder/file")).unwrap();
        fs::create_dir(path("empty")).unwrap();
        for name in ["ours", "link", "folder", "empty", "absent"] {
            remove_target(&path(name)).unwrap();
        }
        let mut left: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["folder", "link"]);
    }
}
