//! Twins of devices that take no writes, for volumes that are published for reading where they are attached for
//! writing: the kernel lets any process that reaches a device write to it, however its path is mounted.
//!
//! Invariant: a twin goes before the device that it is the twin of.

use std::path::Path;

use super::{Device, Devices, Error, Kind, loopback};

/// Ends the name of a twin. No serial number has it.
const READ_ONLY: &str = "-ro";

// === impl Devices ===

impl Devices {
    /// Makes the twin of the device with that serial, or finds it made. None where devices are emulated: there
    /// the disk itself stands for the device.
    ///
    /// # Guarantees
    /// As for [`Devices::attach`].
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn attach_read_only_device(&self, serial: &str, disk: &Path) -> Result<Option<Device>, Error> {
        if self.kind() == Kind::Loop {
            self.attach(&name(serial), disk, false)?;
        }
        self.read_only(serial, disk)
    }

    /// Where the twin of the device with that serial is, if it has one.
    ///
    /// # Errors
    /// If what is found is not made of that disk.
    pub(crate) fn read_only(&self, serial: &str, disk: &Path) -> Result<Option<Device>, Error> {
        match self.kind() {
            Kind::Loop => self.find(&name(serial), disk),
            Kind::Emulated | Kind::None | Kind::Simulated => Ok(None),
        }
    }

    /// Takes the twin of the device with that serial away; nothing happens if it has none.
    ///
    /// # Errors
    /// If it cannot be taken away.
    pub(crate) fn detach_read_only_device(&self, serial: &str) -> Result<(), Error> {
        match self.kind() {
            Kind::Loop => {
                let _turn = self.turn();
                self.remove(&name(serial))
            }
            Kind::Emulated | Kind::None | Kind::Simulated => Ok(()),
        }
    }

    /// Lets a device see that its disk has grown, and its twin if it has one.
    ///
    /// # Errors
    /// If one does not take the new size.
    pub fn refresh(&self, serial: &str, disk: &Path, device: &Path) -> Result<(), Error> {
        match self.kind() {
            Kind::Loop => loopback::refresh(device)?,
            Kind::Emulated | Kind::None | Kind::Simulated => {}
        }
        match self.read_only(serial, disk)? {
            Some(read_only) => loopback::refresh(&read_only.path),
            None => Ok(()),
        }
    }

    /// Both, the twin first.
    pub(super) fn remove_with_read_only_device(&self, serial: &str) -> Result<(), Error> {
        if self.kind() == Kind::Loop {
            self.remove(&name(serial))?;
        }
        self.remove(serial)
    }
}

/// The serial number that a link is about, be it a device's or its twin's.
pub(super) fn serial_of(link: &str) -> &str {
    link.strip_suffix(READ_ONLY).unwrap_or(link)
}

fn name(serial: &str) -> String {
    format!("{serial}{READ_ONLY}")
}
