//! The block devices of a node: one for each volume that is attached to it, found by the volume's
//! serial number through a link that stays the same, as `/dev/disk/by-id` has them.
//!
//! Invariants:
//! - The link is there only while the device behind it is the volume's own; it goes before the device
//!   goes.
//! - Attaching and detaching can be repeated, and taken up again after a crash at any point: a device is
//!   reached through a link from before it is made until after it is gone.
//! - A device that takes writes may have a twin that takes none (`twin`), which goes before it.
//! - A device that was found is held open until it is dropped, and a loop device that is open is not freed: its
//!   path leads to the volume's own disk for that long, also when the volume is detached meanwhile.
//! - A loop device is freed only if it is made of the very file that it was made of for the volume. Which one
//!   that is stands beside the link, by its numbers: paths say little across mount namespaces, and nothing of
//!   a file that was renamed or removed.
//!
//! Everything here blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::node::exec;
use crate::store::volume_files::{self, VolumeFiles, file_name};

use self::backing_file_id::BackingFileId;
pub use self::kind::{Choice, Kind};

mod backing_file_id;
mod kind;
mod loopback;
mod read_only_device;
mod usage;

/// Begins the name of each link.
const PREFIX: &str = "csi-mock-";

/// Begins the name of a link whose device is not made yet.
const PENDING: &str = ".csi-mock-";

/// Begins the name of a link that says which file a loop device is made of. Nothing is behind it.
const ORIGIN: &str = ".origin-csi-mock-";

/// What is wrong with a device, on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFault {
    /// It has not appeared (yet).
    Absent,
    /// It is another volume's.
    Wrong,
}

/// The devices of one node.
#[derive(Debug)]
pub struct Devices {
    kind: Kind,
    place: DeviceLocation,
    /// One change at a time: free loop devices are looked for and taken in two steps.
    turn: Mutex<()>,
    troubles: Mutex<BTreeMap<String, DeviceFault>>,
}

/// A device that is there, and stays the volume's own for as long as this lives.
#[derive(Clone, Debug)]
pub struct Device {
    /// What the link leads to: a block device, or the regular file that stands for one.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Kept open, for who has only a path cannot tell when another disk gets the device.
    pub(crate) held: Arc<File>,
}

/// Why there is no such device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Loop devices were asked for and cannot be had.
    #[error("--devices=loop: {reason}")]
    NoLoop {
        /// Why not.
        reason: String,
    },
    /// An operation on a link or device failed.
    #[error("cannot {act} {}", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// A program failed.
    #[error(transparent)]
    Program(#[from] exec::Error),
    /// Free loop devices were always taken by another process.
    #[error("no free loop device could be had in {tries} tries: others take them")]
    Crowded {
        /// How many.
        tries: usize,
    },
    /// The device found is not the volume's.
    #[error("the device at {} is not the volume's own", link.display())]
    Wrong {
        /// The link.
        link: PathBuf,
    },
    /// Where the devices should lie.
    #[error(transparent)]
    VolumeFiles(#[from] volume_files::Error),
}

#[derive(Debug)]
enum DeviceLocation {
    Given(PathBuf),
    Beside { volume_files: VolumeFiles, node: String },
}

// === impl Devices ===

impl Devices {
    /// Devices with their links in a directory of their own, which others must not use.
    pub fn within(kind: Kind, directory: PathBuf) -> Self {
        Self::new(kind, DeviceLocation::Given(directory))
    }

    /// Devices with their links beside the bytes they are made of, apart from those of other nodes.
    pub(crate) fn beside(kind: Kind, volume_files: VolumeFiles, node: &str) -> Self {
        let node = file_name(node);
        Self::new(kind, DeviceLocation::Beside { volume_files, node })
    }

    fn new(kind: Kind, place: DeviceLocation) -> Self {
        Self {
            kind,
            place,
            turn: Mutex::default(),
            troubles: Mutex::default(),
        }
    }

    /// How they are made.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where the device with that serial is found, if it is there.
    ///
    /// # Errors
    /// If there is no directory for links.
    pub fn link(&self, serial: &str) -> Result<PathBuf, Error> {
        Ok(self.directory()?.join(format!("{PREFIX}{serial}")))
    }

    /// Makes the device with that serial of a disk, or finds it made.
    ///
    /// # Guarantees
    /// After a crash in the middle the same call ends the work, and [`Devices::detach`] undoes it.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn attach(&self, serial: &str, disk: &Path, writable: bool) -> Result<(), Error> {
        if matches!(self.kind, Kind::None | Kind::Simulated) {
            return Ok(());
        }
        let _turn = self.turn();
        let link = self.link(serial)?;
        if let Some(behind) = read_link(&link)?
            && self.is_of(&behind, disk, Some(writable))?
        {
            return Ok(());
        }
        self.remove(serial)?;
        let pending = self.pending(serial)?;
        match self.kind {
            Kind::Loop => {
                let origin = self.origin(serial)?;
                let file = BackingFileId::of(disk).map_err(Error::io("look at", disk))?;
                symlink(file.to_string(), &origin).map_err(Error::io("link", &origin))?;
                loopback::attach(&pending, disk, writable)?;
            }
            Kind::Emulated | Kind::None | Kind::Simulated => {
                symlink(disk, &pending).map_err(Error::io("link", &pending))?;
            }
        }
        fs::rename(&pending, &link).map_err(Error::io("rename", &pending))?;
        tracing::debug!(link = %link.display(), disk = %disk.display(), writable, "device attached");
        Ok(())
    }

    /// Takes the device with that serial away, with its twin, also one in use; nothing happens if it is not
    /// there.
    ///
    /// # Errors
    /// If it cannot be taken away.
    pub fn detach(&self, serial: &str) -> Result<(), Error> {
        if matches!(self.kind, Kind::None | Kind::Simulated) {
            return Ok(());
        }
        let _turn = self.turn();
        self.remove_with_read_only_device(serial)
    }

    /// Whether a device that is on record only is there.
    ///
    /// # Errors
    /// If it is to be another volume's.
    pub(crate) fn is_simulated_there(&self, serial: &str) -> Result<bool, Error> {
        match self.trouble_of(serial) {
            None => Ok(true),
            Some(DeviceFault::Absent) => Ok(false),
            Some(DeviceFault::Wrong) => Err(Error::Wrong {
                link: PathBuf::from(format!("/dev/disk/by-id/{PREFIX}{serial}")),
            }),
        }
    }

    fn trouble_of(&self, serial: &str) -> Option<DeviceFault> {
        let troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.get(serial).copied()
    }

    /// Looks a device up; none if it is not there (yet).
    ///
    /// # Guarantees
    /// It is of that disk until the returned device is dropped, even if it is detached.
    ///
    /// # Errors
    /// If what the link leads to is not made of that disk.
    pub fn find(&self, serial: &str, disk: &Path) -> Result<Option<Device>, Error> {
        let trouble = self.trouble_of(serial);
        if trouble == Some(DeviceFault::Absent) {
            return Ok(None);
        }
        let link = self.link(serial)?;
        let Some(path) = read_link(&link)? else {
            return Ok(None);
        };
        // Opened before it is checked: from then on no other process can get it.
        let mut held = match File::open(&path) {
            Ok(held) => held,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(Error::Wrong { link }),
            Err(error) => return Err(Error::io("open", &path)(error)),
        };
        if trouble == Some(DeviceFault::Wrong) || !self.is_of(&path, disk, None)? {
            return Err(Error::Wrong { link });
        }
        let bytes = held
            .seek(SeekFrom::End(0))
            .map_err(Error::io("read the size of", &path))?;
        Ok(Some(Device {
            path,
            bytes,
            held: Arc::new(held),
        }))
    }

    /// Lets something be wrong with a device from now on, or nothing any more.
    pub fn trouble(&self, serial: &str, trouble: Option<DeviceFault>) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        match trouble {
            Some(trouble) => troubles.insert(serial.to_owned(), trouble),
            None => troubles.remove(serial),
        };
    }

    /// The serial numbers of the devices that have a link, also an unfinished one or that of a twin.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn serials(&self) -> Result<Vec<String>, Error> {
        let directory = self.directory()?;
        let entries = fs::read_dir(&directory).map_err(Error::io("read", &directory))?;
        let mut serials = BTreeSet::new();
        for entry in entries {
            let name = entry.map_err(Error::io("read", &directory))?.file_name();
            let name = name.to_string_lossy();
            let serial = [PREFIX, PENDING, ORIGIN]
                .iter()
                .find_map(|begin| name.strip_prefix(begin));
            serials.extend(serial.map(|link| read_only_device::serial_of(link).to_owned()));
        }
        Ok(serials.into_iter().collect())
    }

    /// Takes away the devices that `wanted` does not have.
    ///
    /// # Errors
    /// If the directory cannot be read or a device cannot be taken away.
    pub fn retain(&self, wanted: impl Fn(&str) -> bool) -> Result<(), Error> {
        if matches!(self.kind, Kind::None | Kind::Simulated) {
            return Ok(());
        }
        for serial in self.serials()? {
            if wanted(&serial) {
                continue;
            }
            let _turn = self.turn();
            self.remove_with_read_only_device(&serial)?;
        }
        Ok(())
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directory(&self) -> Result<PathBuf, Error> {
        let directory = match &self.place {
            DeviceLocation::Given(directory) => directory.clone(),
            DeviceLocation::Beside { volume_files, node } => {
                volume_files.directory()?.join("devices").join(node)
            }
        };
        fs::create_dir_all(&directory).map_err(Error::io("create", &directory))?;
        Ok(directory)
    }

    fn pending(&self, serial: &str) -> Result<PathBuf, Error> {
        Ok(self.directory()?.join(format!("{PENDING}{serial}")))
    }

    fn origin(&self, serial: &str) -> Result<PathBuf, Error> {
        Ok(self.directory()?.join(format!("{ORIGIN}{serial}")))
    }

    /// Whether what a link leads to is made of the disk, and takes writes as it should.
    fn is_of(&self, behind: &Path, disk: &Path, writable: Option<bool>) -> Result<bool, Error> {
        match self.kind {
            Kind::Loop => loopback::is_of(behind, disk, writable),
            Kind::Emulated | Kind::None | Kind::Simulated => Ok(behind == disk && disk.exists()),
        }
    }

    /// The link first, so that no call finds a device that is about to go. If the next step is never reached,
    /// the pending name still leads to it, and what it is made of is known until the end.
    fn remove(&self, serial: &str) -> Result<(), Error> {
        let (link, pending, note) = (self.link(serial)?, self.pending(serial)?, self.origin(serial)?);
        let origin: Option<BackingFileId> = read_link(&note)?.and_then(|text| text.to_str()?.parse().ok());
        // Either name may be there, after a crash both; a device is never behind the two.
        for name in [&pending, &link] {
            let Some(behind) = read_link(name)? else {
                continue;
            };
            if *name == link {
                fs::rename(&link, &pending).map_err(Error::io("rename", &link))?;
            }
            if self.kind == Kind::Loop {
                match origin {
                    Some(origin) if loopback::is_made_of(&behind, origin)? => loopback::detach(&behind)?,
                    Some(_) | None => {
                        tracing::debug!(device = %behind.display(), "left alone: is not the volume's (any more)");
                    }
                }
            }
            fs::remove_file(&pending).map_err(Error::io("remove", &pending))?;
            tracing::debug!(link = %link.display(), "device detached");
        }
        match fs::remove_file(&note) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", &note)(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

// === impl Error ===

impl Error {
    fn io(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { act, path, source }
    }
}

fn read_link(link: &Path) -> Result<Option<PathBuf>, Error> {
    match fs::read_link(link) {
        Ok(behind) => Ok(Some(behind)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read the link", link)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_chosen_aloud_and_never_against_the_flag() {
        assert_eq!(Choice::Emulated.settle().unwrap(), Kind::Emulated);
        assert_eq!(Choice::None.settle().unwrap(), Kind::None);
        let expected = match loopback::obstacle() {
            None => Kind::Loop,
            Some(_) => Kind::Emulated,
        };
        assert_eq!(Choice::Auto.settle().unwrap(), expected);
        assert_eq!(Choice::Loop.settle().is_ok(), expected == Kind::Loop);
    }
}
