//! The block devices of a node, one for each volume attached to it. A device is found by the volume's serial number
//! through a stable link, like those in `/dev/disk/by-id`.
//!
//! Invariants:
//! - The link leads only to the volume's own device, and is removed before the device.
//! - Attach and detach are idempotent and can be resumed after a crash at any point: a link leads to the device from
//!   before it is set up until after it is removed.
//! - A device that was found is held open until it is dropped. The kernel does not free an open loop device, so its path
//!   leads to the volume's disk for that long, even if the volume is detached meanwhile.
//! - A loop device is freed only if its backing file is the one it was set up with. That file is recorded by device and
//!   inode number beside the link: paths differ between mount namespaces and change with a rename.
//!
//! All functions block.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::fault::DeviceFault;
use crate::node::exec;
use crate::store::volume_files::{VolumeFiles, file_name, paths_in};
use crate::store::{PathError, remove_if_exists};

use self::backing_file_id::BackingFileId;
pub use self::error::Error;
pub use self::kind::{Choice, Kind};
pub(crate) use self::link::link_name;
use self::link::{BACKING_FILE, PENDING, PREFIX};
pub(crate) use self::loopback::has_file_below;
pub(crate) use self::target_notes::{TargetNotes, noted_in, remove_note};

mod abandoned;
mod backing_file_id;
mod error;
mod kind;
mod link;
mod loopback;
mod target_notes;

#[derive(Debug)]
pub struct Devices {
    pub(super) kind: Kind,
    location: DeviceLocation,
    /// Serializes changes: finding a free loop device and taking it are two steps.
    changes: Mutex<()>,
    faults: Mutex<BTreeMap<String, DeviceFault>>,
    /// The lock on the directory of the links.
    lock: Mutex<Option<File>>,
}

/// An attached device, which belongs to the volume until this is dropped.
#[derive(Clone, Debug)]
pub struct Device {
    /// A block device, or the regular file that emulates one.
    pub path: PathBuf,
    pub bytes: u64,
    /// Held open, so that the device cannot get another disk.
    pub(crate) held: Arc<File>,
}

#[derive(Clone, Debug)]
enum DeviceLocation {
    Given(PathBuf),
    Beside { volume_files: VolumeFiles, node: String },
}

// === impl DeviceLocation ===

impl DeviceLocation {
    fn directory(&self) -> Result<PathBuf, PathError> {
        let directory = match self {
            Self::Given(directory) => directory.clone(),
            Self::Beside { volume_files, node } => volume_files.directory()?.join("devices").join(node),
        };
        // Not flushed: links are made again after a reboot.
        fs::create_dir_all(&directory).map_err(PathError::of("create", &directory))?;
        Ok(directory)
    }
}

// === impl Devices ===

impl Devices {
    /// Devices with their links in a directory that nothing else uses.
    pub fn within(kind: Kind, directory: PathBuf) -> Self {
        Self::new(kind, DeviceLocation::Given(directory))
    }

    /// Devices with their links in a directory of the node's own beside the volume files.
    pub(crate) fn beside(kind: Kind, volume_files: VolumeFiles, node: &str) -> Self {
        let node = file_name(node);
        Self::new(kind, DeviceLocation::Beside { volume_files, node })
    }

    fn new(kind: Kind, location: DeviceLocation) -> Self {
        Self {
            kind,
            location,
            changes: Mutex::default(),
            faults: Mutex::default(),
            lock: Mutex::default(),
        }
    }

    /// Locks the directory of the links until they are unlocked, unless it is private: at its start a driver removes the
    /// devices there that its array has not attached.
    ///
    /// # Errors
    /// If another driver has it, or it cannot be locked.
    pub fn lock(&self) -> Result<(), Error> {
        let is_held = crate::lock(&self.lock).is_some();
        let is_used = match self.kind {
            Kind::Loop | Kind::Emulated => self.kept_directory().is_some(),
            // An earlier process may have had devices.
            Kind::None => self.kept_directory().is_some_and(|path| path.is_dir()),
            Kind::Simulated => false,
        };
        if is_held || !is_used {
            return Ok(());
        }
        let directory = self.directory()?;
        let file = File::open(&directory).map_err(PathError::of("open", &directory))?;
        match file.try_lock() {
            Ok(()) => {
                *crate::lock(&self.lock) = Some(file);
                Ok(())
            }
            Err(TryLockError::WouldBlock) => Err(Error::InUse { directory }),
            Err(TryLockError::Error(source)) => Err(PathError::of("lock", &directory)(source).into()),
        }
    }

    /// [`Devices::lock`] for a directory that exists. Creates nothing in a media directory that may not be this driver's.
    pub(crate) fn lock_used(&self) -> Result<(), Error> {
        match self.kept_directory().is_some_and(|path| path.is_dir()) {
            true => self.lock(),
            false => Ok(()),
        }
    }

    /// The directory of the links, which may not exist; `None` if it is private.
    fn kept_directory(&self) -> Option<PathBuf> {
        match &self.location {
            DeviceLocation::Given(directory) => Some(directory.clone()),
            DeviceLocation::Beside { volume_files, node } => {
                let media = volume_files.kept_directory()?;
                Some(media.join("devices").join(node))
            }
        }
    }

    /// The directory of the links, if a flag gives it and there are links.
    pub(crate) fn given_directory(&self) -> Option<&Path> {
        match (&self.location, self.kind) {
            (DeviceLocation::Given(directory), Kind::Loop | Kind::Emulated) => Some(directory),
            (DeviceLocation::Given(_), Kind::None | Kind::Simulated) | (DeviceLocation::Beside { .. }, _) => {
                None
            }
        }
    }

    /// Whether this process alone uses the directory of the links, which remains after its end.
    pub(crate) fn is_locked(&self) -> bool {
        crate::lock(&self.lock).is_some()
    }

    pub(crate) fn unlock(&self) {
        *crate::lock(&self.lock) = None;
    }

    /// The link to the device with that serial, which may not exist.
    pub fn link(&self, serial: &str) -> Result<PathBuf, Error> {
        self.named(PREFIX, serial)
    }

    /// Sets up the device with that serial for a disk, unless it exists.
    ///
    /// # Guarantees
    /// After a crash in the middle the same call completes the work, and [`Devices::detach`] undoes it.
    pub fn attach(&self, serial: &str, disk: &Path, writable: bool) -> Result<(), Error> {
        if matches!(self.kind, Kind::None | Kind::Simulated) {
            return Ok(());
        }
        let _changing = crate::lock(&self.changes);
        let link = self.link(serial)?;
        if let Some(behind) = link::read(&link)?
            && self.is_of(&behind, disk, Some(writable))?
        {
            return Ok(());
        }
        self.remove(serial)?;
        let pending = self.named(PENDING, serial)?;
        match self.kind {
            Kind::Loop => {
                let record = self.named(BACKING_FILE, serial)?;
                let file = BackingFileId::of(disk).map_err(PathError::of("stat", disk))?;
                symlink(file.to_string(), &record).map_err(PathError::of("link", &record))?;
                let device = loopback::attach(&pending, disk, writable)?;
                self.forget_detached(&device)?;
            }
            Kind::Emulated | Kind::None | Kind::Simulated => {
                symlink(disk, &pending).map_err(PathError::of("link", &pending))?;
            }
        }
        fs::rename(&pending, &link).map_err(PathError::of("rename", &pending))?;
        tracing::debug!(link = %link.display(), disk = %disk.display(), writable, "device attached");
        Ok(())
    }

    /// Removes the device with that serial, even if it is in use. That it does not exist is no error.
    pub fn detach(&self, serial: &str) -> Result<(), Error> {
        if !self.may_exist() {
            return Ok(());
        }
        let _changing = crate::lock(&self.changes);
        self.remove(serial)
    }

    /// Whether a simulated device exists.
    ///
    /// # Errors
    /// If a fault makes it another volume's.
    pub(crate) fn is_simulated_there(&self, serial: &str) -> Result<bool, Error> {
        match self.fault_of(serial) {
            None => Ok(true),
            Some(DeviceFault::Absent) => Ok(false),
            Some(DeviceFault::Wrong(_)) => Err(Error::Wrong {
                link: PathBuf::from(format!("/dev/disk/by-id/{PREFIX}{serial}")),
            }),
        }
    }

    fn fault_of(&self, serial: &str) -> Option<DeviceFault> {
        let faults = crate::lock(&self.faults);
        faults.get(serial).cloned()
    }

    /// Finds a device; none if it does not exist (yet).
    ///
    /// # Guarantees
    /// It has that disk until the returned device is dropped, even if it is detached.
    ///
    /// # Errors
    /// If the link leads to a device of another disk.
    pub fn find(&self, serial: &str, disk: &Path) -> Result<Option<Device>, Error> {
        let fault = self.fault_of(serial);
        if fault == Some(DeviceFault::Absent) {
            return Ok(None);
        }
        let link = self.link(serial)?;
        let Some(path) = link::read(&link)? else {
            return Ok(None);
        };
        // Opened before it is checked: an open device cannot get another disk.
        let mut held = match File::open(&path) {
            Ok(held) => held,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(Error::Wrong { link }),
            Err(error) => return Err(PathError::of("open", &path)(error).into()),
        };
        if fault.is_some() || !self.is_of(&path, disk, None)? {
            return Err(Error::Wrong { link });
        }
        let bytes = held
            .seek(SeekFrom::End(0))
            .map_err(PathError::of("read the size of", &path))?;
        Ok(Some(Device {
            path,
            bytes,
            held: Arc::new(held),
        }))
    }

    /// Injects a fault of a device, or removes it.
    pub fn set_fault(&self, serial: &str, fault: Option<DeviceFault>) {
        let mut faults = crate::lock(&self.faults);
        match fault {
            Some(fault) => faults.insert(serial.to_owned(), fault),
            None => faults.remove(serial),
        };
    }

    /// The serial numbers of the devices that have a link, also of incomplete ones.
    pub fn serials(&self) -> Result<Vec<String>, Error> {
        let mut serials = BTreeSet::new();
        for path in paths_in(&self.directory()?)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            serials.extend(link::serial_of(&name).map(str::to_owned));
        }
        Ok(serials.into_iter().collect())
    }

    pub fn retain(&self, wanted: impl Fn(&str) -> bool) -> Result<(), Error> {
        if !self.may_exist() {
            return Ok(());
        }
        self.forget_freed()?;
        let mut result = Ok(());
        for serial in self.serials()?.iter().filter(|serial| !wanted(serial)) {
            let _changing = crate::lock(&self.changes);
            // The other devices are removed nevertheless.
            result = result.and(self.remove(serial));
        }
        result
    }

    pub fn refresh(&self, device: &Path) -> Result<(), Error> {
        match self.kind {
            Kind::Loop => loopback::refresh(device),
            Kind::Emulated | Kind::None | Kind::Simulated => Ok(()),
        }
    }

    /// Another device of the disk whose filesystem is mounted, if one of the two is writable.
    pub(crate) fn mounted_elsewhere(
        &self,
        device: &Path,
        disk: &Path,
        writable: bool,
    ) -> Result<Option<PathBuf>, Error> {
        match self.kind {
            Kind::Loop => loopback::mounted_elsewhere(device, disk, writable),
            Kind::Emulated | Kind::None | Kind::Simulated => Ok(None),
        }
    }

    /// The loop devices of a disk, also those without a link.
    pub(crate) fn all_of(&self, disk: &Path) -> Result<Vec<PathBuf>, Error> {
        match self.kind {
            Kind::Loop => loopback::all_of(disk),
            // Of an earlier process.
            Kind::Emulated | Kind::None => match loopback::all_of(disk) {
                Err(Error::Program(exec::Error::Missing { .. })) => Ok(Vec::new()),
                found => found,
            },
            Kind::Simulated => Ok(Vec::new()),
        }
    }

    pub(crate) fn directory(&self) -> Result<PathBuf, PathError> {
        self.location.directory()
    }

    fn named(&self, prefix: &str, serial: &str) -> Result<PathBuf, Error> {
        Ok(self.directory()?.join(format!("{prefix}{serial}")))
    }

    fn backing_file(&self, serial: &str) -> Result<Option<BackingFileId>, Error> {
        let name = link::read(&self.named(BACKING_FILE, serial)?)?;
        Ok(name.and_then(|text| text.to_str()?.parse().ok()))
    }

    /// Whether a device has the disk, and is writable as requested.
    fn is_of(&self, behind: &Path, disk: &Path, writable: Option<bool>) -> Result<bool, Error> {
        match self.kind {
            Kind::Loop => loopback::is_of(behind, disk, writable),
            Kind::Emulated | Kind::None | Kind::Simulated => Ok(behind == disk && disk.exists()),
        }
    }

    /// Renames the link first, so that no call finds a device that is being removed. After a crash the pending link still
    /// leads to it, and the backing file is recorded until the end.
    fn remove(&self, serial: &str) -> Result<(), Error> {
        let directory = self.directory()?;
        let [link, pending, record] =
            [PREFIX, PENDING, BACKING_FILE].map(|prefix| directory.join(format!("{prefix}{serial}")));
        let file = self.backing_file(serial)?;
        // After a crash both links may exist; at most one leads to a device.
        for name in [&pending, &link] {
            let Some(behind) = link::read(name)? else {
                continue;
            };
            if *name == link {
                fs::rename(&link, &pending).map_err(PathError::of("rename", &link))?;
            }
            match file {
                Some(file) if loopback::has_backing_file(&behind, file)? => {
                    self.detach_loop(&behind, &record)?
                }
                // Of a loop device only, of whatever kind the devices are now.
                Some(_) => {
                    tracing::debug!(device = %behind.display(), "not the volume's device any more: not detached");
                }
                None => {}
            }
            fs::remove_file(&pending).map_err(PathError::of("remove", &pending))?;
            tracing::debug!(link = %link.display(), "device detached");
        }
        Ok(remove_if_exists(&record)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choice_of_devices_follows_the_flag() {
        assert_eq!(Choice::Emulated.settle().unwrap(), Kind::Emulated);
        assert_eq!(Choice::None.settle().unwrap(), Kind::None);
        let expected = match loopback::unavailable() {
            None => Kind::Loop,
            Some(_) => Kind::Emulated,
        };
        assert_eq!(Choice::Auto.settle().unwrap(), expected);
        assert_eq!(Choice::Loop.settle().is_ok(), expected == Kind::Loop);
    }
}
