//! Loop devices, through `losetup`: its own ioctls would need unsafe code or a C compiler to build, and
//! who mounts filesystems has it (docs/adr/0025).
//!
//! In a container, `/dev` may be a copy made when it started: a device that the kernel adds later has no file
//! there. Such files are made here, also one for the device that is free next: kubelet takes one of its own for
//! each raw block volume, on the same node and with the same `/dev`.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Error;
use crate::program::{self, Program};

const LOSETUP: Program = Program {
    name: "losetup",
    package: "mount",
};

const CONTROL: &str = "/dev/loop-control";

/// Where the kernel tells the numbers of its block devices.
const KNOWN: &str = "/sys/class/block";

/// Somebody else takes the device that was just found free now and then, not every time.
const TRIES: usize = 20;

/// What `losetup` tells of a device.
#[derive(Debug, Deserialize)]
struct Listing {
    loopdevices: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    /// None for a device that is free.
    back_ino: Option<u64>,
    #[serde(rename = "back-maj:min")]
    back_dev: Option<String>,
    back_file: Option<String>,
    ro: Option<bool>,
}

/// Why this process cannot have loop devices, if it cannot.
pub(super) fn obstacle() -> Option<String> {
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

/// Makes a device of a disk. `link` leads to it from before it is made.
pub(super) fn attach(link: &Path, disk: &Path, writable: bool) -> Result<(), Error> {
    for _ in 0..TRIES {
        let device = find_free()?;
        symlink(&device, link).map_err(Error::io("link", link))?;
        let mut args = vec![device.as_os_str(), disk.as_os_str()];
        if !writable {
            args.insert(0, "--read-only".as_ref());
        }
        match LOSETUP.run(args, &[0]) {
            Ok(_) => {
                if let Err(error) = find_free() {
                    let error = crate::error::chain(&error);
                    tracing::warn!(error, "kubelet may find no loop device of its own");
                }
                return Ok(());
            }
            Err(error) => {
                fs::remove_file(link).map_err(Error::io("remove", link))?;
                if !is_taken(&error) {
                    return Err(error.into());
                }
            }
        }
    }
    Err(Error::Crowded { tries: TRIES })
}

/// The device that is free next; it has a file.
fn find_free() -> Result<PathBuf, Error> {
    let found = LOSETUP.run(["--find"], &[0])?;
    let device = PathBuf::from(found.trim());
    have_file(&device, Path::new(KNOWN))?;
    Ok(device)
}

/// Makes the file of a device that the kernel knows, if there is none.
fn have_file(device: &Path, known: &Path) -> Result<(), Error> {
    if device.exists() {
        return Ok(());
    }
    let numbers = known.join(device.file_name().unwrap_or_default()).join("dev");
    let text = fs::read_to_string(&numbers).map_err(Error::io("read", &numbers))?;
    let Some((major, minor)) = numbers_of(&text) else {
        let source = ErrorKind::InvalidData.into();
        return Err(Error::io("understand", &numbers)(source));
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
            tracing::info!(device = %device.display(), "made the file of a loop device that /dev did not have");
            Ok(())
        }
        Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(Error::io("make", device)(error.into())),
    }
}

/// Reads `7:0`.
fn numbers_of(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Frees a device. One that is in use goes with its last user.
pub(super) fn detach(device: &Path) -> Result<(), Error> {
    LOSETUP.run(["--detach".as_ref(), device.as_os_str()], &[0])?;
    Ok(())
}

/// Frees a device if it is made of a file under `root`.
pub(super) fn detach_any(device: &Path, root: &Path) -> Result<(), Error> {
    match entry(device)?.and_then(|entry| entry.back_file) {
        Some(file) if Path::new(&file).starts_with(root) => detach(device),
        _ => Ok(()),
    }
}

/// Whether the device is made of the disk, and takes writes as it should.
pub(super) fn is_of(device: &Path, disk: &Path, writable: Option<bool>) -> Result<bool, Error> {
    let Some(entry) = entry(device)? else {
        return Ok(false);
    };
    let ours = match fs::metadata(disk) {
        Ok(meta) => {
            let numbers = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
            entry.back_ino == Some(meta.ino()) && entry.back_numbers() == Some(numbers)
        }
        // Gone already: then only its path can tell.
        Err(error) if error.kind() == ErrorKind::NotFound => entry.back_file.is_some_and(|file| {
            let file = file.strip_suffix(" (deleted)").unwrap_or(&file);
            Path::new(file) == disk
        }),
        Err(error) => return Err(Error::io("look at", disk)(error)),
    };
    Ok(ours && writable.is_none_or(|writable| entry.ro != Some(writable)))
}

/// Takes over the size that the disk has now.
pub(super) fn refresh(device: &Path) -> Result<(), Error> {
    LOSETUP.run(["--set-capacity".as_ref(), device.as_os_str()], &[0])?;
    Ok(())
}

/// The size of the device.
pub(super) fn bytes(device: &Path) -> Result<u64, Error> {
    File::open(device)
        .and_then(|mut file| file.seek(SeekFrom::End(0)))
        .map_err(Error::io("read the size of", device))
}

fn entry(device: &Path) -> Result<Option<Entry>, Error> {
    let columns = "NAME,BACK-INO,BACK-MAJ:MIN,BACK-FILE,RO";
    let args = ["--list", "--json", "--output", columns];
    let args = args.iter().map(AsRef::as_ref).chain([device.as_os_str()]);
    let text = match LOSETUP.run(args.collect::<Vec<_>>(), &[0]) {
        Ok(text) => text,
        // No such device, which is no device of that disk.
        Err(program::Error::Failed { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if text.trim().is_empty() {
        return Ok(None);
    }
    let listing: Listing = serde_json::from_str(&text).map_err(|error| Error::Io {
        act: "understand what losetup says of",
        path: device.to_owned(),
        source: error.into(),
    })?;
    Ok(listing
        .loopdevices
        .into_iter()
        .find(|entry| entry.back_ino.is_some()))
}

fn is_taken(error: &program::Error) -> bool {
    match error {
        program::Error::Failed { output, .. } => output.contains("busy"),
        program::Error::Missing { .. } | program::Error::Start { .. } => false,
    }
}

// === impl Entry ===

impl Entry {
    fn back_numbers(&self) -> Option<(u32, u32)> {
        numbers_of(self.back_dev.as_deref()?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileTypeExt;

    use super::*;

    #[test]
    fn a_device_without_a_file_gets_one() {
        if !crate::privilege::is_there() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let known = directory.path().join("known");
        fs::create_dir_all(known.join("loop300")).unwrap();
        fs::write(known.join("loop300/dev"), "7:300\n").unwrap();
        let device = directory.path().join("loop300");
        for _ in 0..2 {
            have_file(&device, &known).unwrap();
            let meta = fs::metadata(&device).unwrap();
            assert!(meta.file_type().is_block_device());
            let numbers = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
            assert_eq!(numbers, (7, 300));
        }
    }

    #[test]
    fn a_device_that_the_kernel_does_not_know_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("loop300");
        let error = have_file(&device, directory.path()).unwrap_err();
        assert!(matches!(error, Error::Io { act: "read", .. }), "{error}");
        fs::create_dir(&device).unwrap();
        have_file(&device, directory.path()).unwrap();
    }
}
