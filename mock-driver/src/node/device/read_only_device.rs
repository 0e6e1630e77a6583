//! Read-only devices of disks that are attached for writing, for volumes published read-only: a process that can open a
//! writable device can write to it, even if its path is on a read-only mount.
//!
//! Invariant: the read-only device is removed before the writable one.

use std::path::Path;

use super::error::Error;
use super::kind::Kind;
use super::{Device, Devices, link, loopback};

// === impl Devices ===

impl Devices {
    /// Sets up the read-only device of the device with that serial, unless it exists. None for emulated devices: the disk
    /// itself is the device.
    ///
    /// # Guarantees
    /// As for [`Devices::attach`].
    pub(crate) fn attach_read_only_device(&self, serial: &str, disk: &Path) -> Result<Option<Device>, Error> {
        if self.kind == Kind::Loop {
            self.attach(&link::read_only(serial), disk, false)?;
        }
        self.read_only(serial, disk)
    }

    pub(crate) fn read_only(&self, serial: &str, disk: &Path) -> Result<Option<Device>, Error> {
        if self.kind != Kind::Loop {
            return Ok(None);
        }
        self.find(&link::read_only(serial), disk)
    }

    pub(crate) fn detach_read_only_device(&self, serial: &str) -> Result<(), Error> {
        if self.kind != Kind::Loop {
            return Ok(());
        }
        let _changing = crate::lock(&self.changes);
        self.remove(&link::read_only(serial))
    }

    /// Updates a device and its read-only device to the size of their disk.
    pub fn refresh(&self, serial: &str, disk: &Path, device: &Path) -> Result<(), Error> {
        if self.kind == Kind::Loop {
            loopback::refresh(device)?;
        }
        match self.read_only(serial, disk)? {
            Some(read_only) => loopback::refresh(&read_only.path),
            None => Ok(()),
        }
    }
}
