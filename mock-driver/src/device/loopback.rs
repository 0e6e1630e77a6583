//! Loop devices, through `losetup`: its own ioctls would need unsafe code or a C compiler to build, and
//! who mounts filesystems has it (docs/adr/0025).
//!
//! In a container, `/dev` may be a copy made when it started: a device that the kernel adds later has no file
//! there. Such files are made here, also one for the device that is free next: kubelet takes one of its own for
//! each raw block volume, on the same node and with the same `/dev`.

use std::fs::{self, File, Metadata};
use std::io::ErrorKind;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Error;
use crate::media;
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

/// The end of a path that says which disk it is, as [`media`] lays them down: what it is, its name, the file.
fn tail(path: &Path) -> Option<&Path> {
    let place = path.ancestors().nth(3)?;
    let end = path.strip_prefix(place).ok()?;
    end.ends_with(media::DISK).then_some(end)
}

/// The device that a file lies on.
fn numbers_of_disk(meta: &Metadata) -> (u32, u32) {
    (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()))
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

/// Frees a device if it is made of a disk under `root`.
pub(super) fn detach_any(device: &Path, root: &Path) -> Result<(), Error> {
    match entry(device)? {
        Some(entry) if entry.is_under(root)? => detach(device),
        _ => Ok(()),
    }
}

/// Whether the device is made of the disk, and takes writes as it should.
pub(super) fn is_of(device: &Path, disk: &Path, writable: Option<bool>) -> Result<bool, Error> {
    let Some(entry) = entry(device)? else {
        return Ok(false);
    };
    let ours = entry.is_made_of(disk)?;
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
    fn is_made_of(&self, disk: &Path) -> Result<bool, Error> {
        match fs::metadata(disk) {
            Ok(meta) => Ok(self.has_numbers_of(&meta)),
            // Gone already: then only its path can tell.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (path, _) = self.path();
                Ok(path == disk || tail(path).is_some_and(|end| disk.ends_with(end)))
            }
            Err(error) => Err(Error::io("look at", disk)(error)),
        }
    }

    /// The kernel tells a path as it was in the mount through which the file was opened. If that was of a
    /// container that is gone, as the one of this driver before it was started anew, only the end of the path is
    /// what it was.
    fn is_under(&self, root: &Path) -> Result<bool, Error> {
        let (path, is_deleted) = self.path();
        if path.starts_with(root) {
            return Ok(true);
        }
        let Some(end) = tail(path) else {
            return Ok(false);
        };
        let disk = root.join(end);
        match fs::metadata(&disk) {
            Ok(meta) => Ok(self.has_numbers_of(&meta)),
            Err(error) if error.kind() == ErrorKind::NotFound && is_deleted => {
                let meta = fs::metadata(root).map_err(Error::io("look at", root))?;
                Ok(self.back_numbers() == Some(numbers_of_disk(&meta)))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io("look at", &disk)(error)),
        }
    }

    /// What it is made of, and whether that is deleted.
    fn path(&self) -> (&Path, bool) {
        let file = self.back_file.as_deref().unwrap_or_default();
        match file.strip_suffix(" (deleted)") {
            Some(file) => (Path::new(file), true),
            None => (Path::new(file), false),
        }
    }

    fn has_numbers_of(&self, meta: &Metadata) -> bool {
        self.back_ino == Some(meta.ino()) && self.back_numbers() == Some(numbers_of_disk(meta))
    }

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

    #[test]
    fn a_disk_is_known_by_the_path_of_a_container_that_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("media");
        let disk = root.join("volumes/vol-0/disk");
        fs::create_dir_all(disk.parent().unwrap()).unwrap();
        fs::write(&disk, "bytes").unwrap();
        let meta = fs::metadata(&disk).unwrap();
        let (major, minor) = numbers_of_disk(&meta);
        let entry = |path: &str, inode: u64| Entry {
            back_ino: Some(inode),
            back_dev: Some(format!("{major}:{minor}")),
            back_file: Some(path.to_owned()),
            ro: Some(false),
        };
        let whole = disk.display().to_string();
        let gone = format!("{whole} (deleted)");
        // (path that the kernel tells, inode, ours while the disk is there, ours when it is deleted)
        let table = [
            (whole.as_str(), meta.ino(), true, true),
            ("/media/volumes/vol-0/disk", meta.ino(), true, false),
            ("/media/volumes/vol-0/disk", meta.ino() + 1, false, false),
            ("/media/volumes/vol-0/disk (deleted)", meta.ino(), true, true),
            ("/media/volumes/vol-1/disk", meta.ino(), false, false),
            ("/home/me/image (deleted)", meta.ino(), false, false),
            ("/image", meta.ino(), false, false),
            (gone.as_str(), meta.ino(), true, true),
        ];
        for (path, inode, there, _) in table {
            assert_eq!(
                entry(path, inode).is_under(&root).unwrap(),
                there,
                "{path} {inode}"
            );
        }
        let old = "/media/volumes/vol-0/disk (deleted)";
        assert!(entry(old, meta.ino()).is_made_of(&disk).unwrap());
        fs::remove_file(&disk).unwrap();
        for (path, inode, _, deleted) in table {
            assert_eq!(
                entry(path, inode).is_under(&root).unwrap(),
                deleted,
                "{path} {inode}"
            );
        }
        assert!(entry(old, meta.ino()).is_made_of(&disk).unwrap());
        assert!(
            !entry(old, meta.ino())
                .is_made_of(&root.join("volumes/vol-1/disk"))
                .unwrap()
        );
    }
}
