//! Loop devices, through `losetup`: the ioctls would need unsafe code or a C compiler, and a host that mounts filesystems
//! has it (docs/adr/0025).
//!
//! In a container, `/dev` may be a copy from its start, without files for devices that the kernel adds later. This module
//! creates such files, also for the next free device: kubelet takes one for each raw block volume, with the same `/dev`.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Deserialize;

use super::backing_file_id::BackingFileId;
use super::error::Error;
use crate::node::exec::{self, Program};
use crate::store::PathError;
use crate::store::volume_files::{has_owner, private_part};

const LOSETUP: Program = Program {
    name: "losetup",
    package: "mount",
};

const CONTROL: &str = "/dev/loop-control";

/// Directory with the numbers of the kernel's block devices.
const KNOWN: &str = "/sys/class/block";

/// Maximum number of attempts: another process may take a free device first.
const TRIES: usize = 20;

#[derive(Debug, Deserialize)]
struct Listing {
    loopdevices: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    name: PathBuf,
    /// `None` for a free device.
    back_ino: Option<u64>,
    #[serde(rename = "back-maj:min")]
    back_dev: Option<String>,
    ro: Option<bool>,
}

/// The reason that this process cannot set up loop devices, if any.
pub(super) fn unavailable() -> Option<String> {
    let control = File::options().read(true).write(true).open(CONTROL);
    match control {
        Ok(_) if !may_mount() => Some("this process lacks the capability SYS_ADMIN".to_owned()),
        Ok(_) => None,
        Err(error) => Some(format!("cannot open {CONTROL}: {error}")),
    }
}

/// Whether the process has CAP_SYS_ADMIN, without which nothing can be mounted.
fn may_mount() -> bool {
    const SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << SYS_ADMIN) != 0)
}

/// Sets up a device for a disk and returns it. `link` leads to it from before that.
pub(super) fn attach(link: &Path, disk: &Path, writable: bool) -> Result<PathBuf, Error> {
    for _ in 0..TRIES {
        let device = find_free()?;
        symlink(&device, link).map_err(PathError::of("link", link))?;
        let mut args = vec![device.as_os_str(), disk.as_os_str()];
        if !writable {
            args.insert(0, "--read-only".as_ref());
        }
        match LOSETUP.run(args, &[0]) {
            Ok(_) => {
                if let Err(error) = find_free() {
                    let error = crate::error_chain(&error);
                    tracing::warn!(error, "kubelet may find no free loop device");
                }
                return Ok(device);
            }
            Err(error) => {
                fs::remove_file(link).map_err(PathError::of("remove", link))?;
                if !is_taken(&error) {
                    return Err(error.into());
                }
            }
        }
    }
    Err(Error::Contended { tries: TRIES })
}

/// The next free device, with its file in `/dev`.
fn find_free() -> Result<PathBuf, Error> {
    let found = LOSETUP.run(["--find"], &[0])?;
    let device = PathBuf::from(found.trim());
    ensure_file(&device, Path::new(KNOWN))?;
    Ok(device)
}

/// Creates the file of a device that the kernel knows, unless it exists.
fn ensure_file(device: &Path, known: &Path) -> Result<(), Error> {
    if device.exists() {
        return Ok(());
    }
    let numbers = known.join(device.file_name().unwrap_or_default()).join("dev");
    let text = fs::read_to_string(&numbers).map_err(PathError::of("read", &numbers))?;
    let Some((major, minor)) = numbers_of(&text) else {
        return Err(PathError::of("parse", &numbers)(ErrorKind::InvalidData).into());
    };
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let made = rustix::fs::mknodat(
        rustix::fs::CWD,
        device,
        rustix::fs::FileType::BlockDevice,
        mode,
        rustix::fs::makedev(major, minor),
    );
    match made {
        Ok(()) => {
            tracing::info!(device = %device.display(), "created the file of a loop device missing in /dev");
            Ok(())
        }
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(PathError::of("create", device)(error).into()),
    }
}

/// Reads `7:0`.
fn numbers_of(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Frees a device. The kernel keeps one that is open until it is closed.
pub(super) fn detach(device: &Path) -> Result<(), Error> {
    LOSETUP.run(["--detach".as_ref(), device.as_os_str()], &[0])?;
    Ok(())
}

/// Whether the device has that backing file, even if the file was renamed.
pub(super) fn has_backing_file(device: &Path, file: BackingFileId) -> Result<bool, Error> {
    Ok(entry(device)?.is_some_and(|entry| entry.backing_file() == Some(file)))
}

/// Whether the device's backing file is the disk, and it is writable as asked.
pub(super) fn is_of(device: &Path, disk: &Path, writable: Option<bool>) -> Result<bool, Error> {
    let file = match BackingFileId::of(disk) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(PathError::of("stat", disk)(error).into()),
    };
    Ok(entry(device)?.is_some_and(|entry| {
        entry.backing_file() == Some(file) && writable.is_none_or(|writable| entry.ro != Some(writable))
    }))
}

pub(super) fn refresh(device: &Path) -> Result<(), Error> {
    LOSETUP.run(["--set-capacity".as_ref(), device.as_os_str()], &[0])?;
    Ok(())
}

/// Another mounted device of the disk, if one of the two is writable.
pub(super) fn mounted_elsewhere(
    device: &Path,
    disk: &Path,
    writable: bool,
) -> Result<Option<PathBuf>, Error> {
    let file = BackingFileId::of(disk).map_err(PathError::of("stat", disk))?;
    for entry in list(None)? {
        let is_written = writable || entry.ro != Some(true);
        if entry.name == device || entry.backing_file() != Some(file) || !is_written {
            continue;
        }
        ensure_file(&entry.name, Path::new(KNOWN))?;
        if is_exclusive(&entry.name)? {
            return Ok(Some(entry.name));
        }
    }
    Ok(None)
}

pub(super) fn all_of(disk: &Path) -> Result<Vec<PathBuf>, Error> {
    let file = match BackingFileId::of(disk) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(PathError::of("stat", disk)(error).into()),
    };
    let entries = list(None)?.into_iter();
    let of_disk = entries.filter(|entry| entry.backing_file() == Some(file));
    Ok(of_disk.map(|entry| entry.name).collect())
}

/// The devices of a disk in a private directory without a living owner, by the end of the disk's path.
pub(super) fn abandoned(disk: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for entry in list(None)? {
        let path = known_file(&entry.name);
        let is_abandoned = private_part(&path).is_some_and(|directory| !has_owner(directory));
        if is_abandoned && path.ends_with(disk) {
            ensure_file(&entry.name, Path::new(KNOWN))?;
            found.push(entry.name);
        }
    }
    Ok(found)
}

/// Whether the file of a device is, or was, below a directory.
pub(crate) fn has_file_below(device: &Path, directory: &Path) -> bool {
    known_file(device).starts_with(directory)
}

pub(super) fn has_file(device: &Path) -> bool {
    known_file(device) != Path::new("")
}

/// The path of a device's file, also of a deleted one; empty without one.
fn known_file(device: &Path) -> PathBuf {
    let name = device.file_name().unwrap_or_default();
    let known = Path::new("/sys/block").join(name).join("loop/backing_file");
    let text = fs::read_to_string(known).unwrap_or_default();
    let text = text.trim_end();
    text.strip_suffix(" (deleted)").unwrap_or(text).into()
}

/// Frees a device unless a filesystem on it is mounted, in whatever mount namespace.
pub(super) fn free(device: &Path) -> Result<(), Error> {
    match is_exclusive(device)? {
        true => Ok(()),
        false => detach(device),
    }
}

/// Whether a device is opened exclusively, as a mounted one is, in whatever mount namespace.
fn is_exclusive(device: &Path) -> Result<bool, Error> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    match rustix::fs::open(device, flags, rustix::fs::Mode::empty()) {
        Ok(_) | Err(Errno::NXIO | Errno::NODEV) => Ok(false),
        Err(Errno::BUSY) => Ok(true),
        Err(errno) => Err(PathError::of("open", device)(errno).into()),
    }
}

fn entry(device: &Path) -> Result<Option<Entry>, Error> {
    Ok(list(Some(device))?.into_iter().next())
}

/// The loop devices that are in use, or only the given one.
fn list(device: Option<&Path>) -> Result<Vec<Entry>, Error> {
    let columns = "NAME,BACK-INO,BACK-MAJ:MIN,RO";
    let args = ["--list", "--json", "--output", columns];
    let args = args.iter().map(AsRef::as_ref).chain(device.map(Path::as_os_str));
    let text = match LOSETUP.run(args.collect::<Vec<_>>(), &[0]) {
        Ok(text) => text,
        // No such device.
        Err(exec::Error::Failed { .. }) if device.is_some() => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let listing: Listing = serde_json::from_str(&text).map_err(|error| PathError {
        act: "parse the output of losetup for",
        path: device.unwrap_or(Path::new(CONTROL)).to_owned(),
        source: error.into(),
    })?;
    let mut entries = listing.loopdevices;
    entries.retain(|entry| entry.back_ino.is_some());
    Ok(entries)
}

fn is_taken(error: &exec::Error) -> bool {
    match error {
        exec::Error::Failed { output, .. } => output.contains("busy"),
        exec::Error::Missing { .. } | exec::Error::Start { .. } => false,
    }
}

// === impl Entry ===

impl Entry {
    fn backing_file(&self) -> Option<BackingFileId> {
        let (major, minor) = numbers_of(self.back_dev.as_deref()?)?;
        Some(BackingFileId {
            major,
            minor,
            inode: self.back_ino?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_a_device_unknown_to_the_kernel_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("loop300");
        let error = ensure_file(&device, directory.path()).unwrap_err();
        assert!(
            matches!(error, Error::Path(PathError { act: "read", .. })),
            "{error}"
        );
        fs::create_dir(&device).unwrap();
        ensure_file(&device, directory.path()).unwrap();
    }
}
