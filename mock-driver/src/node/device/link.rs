//! Names and destinations of the links to devices.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::error::Error;
use crate::store::PathError;

pub(super) const PREFIX: &str = "csi-mock-";

/// Prefix of a link whose device is not complete yet.
pub(super) const PENDING: &str = ".csi-mock-";

/// Prefix of a link that names a loop device's backing file by numbers; it leads nowhere.
pub(super) const BACKING_FILE: &str = ".origin-csi-mock-";

/// Suffix of a read-only device's link. No serial number ends so.
const READ_ONLY: &str = "-ro";

/// The serial number in the name of a link, also of an incomplete or a read-only device.
pub(super) fn serial_of(name: &str) -> Option<&str> {
    let prefixes = [PREFIX, PENDING, BACKING_FILE];
    let link = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    Some(link.strip_suffix(READ_ONLY).unwrap_or(link))
}

/// The serial number under which the read-only device of a device is attached.
pub(super) fn read_only(serial: &str) -> String {
    format!("{serial}{READ_ONLY}")
}

/// The destination of a link; `None` if it does not exist.
pub(super) fn read(link: &Path) -> Result<Option<PathBuf>, Error> {
    match fs::read_link(link) {
        Ok(behind) => Ok(Some(behind)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(PathError::of("read the link", link)(error).into()),
    }
}
