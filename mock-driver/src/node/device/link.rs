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

/// Prefix of a note of a detached loop device that the kernel keeps while something is mounted from it; it leads nowhere and names the
/// device's backing file by numbers.
pub(super) const DETACHED: &str = ".detached-csi-mock-";

/// The serial number in the name of a link, also of an incomplete device.
pub(super) fn serial_of(name: &str) -> Option<&str> {
    let prefixes = [PREFIX, PENDING, BACKING_FILE];
    prefixes.iter().find_map(|prefix| name.strip_prefix(prefix))
}

/// The name of the link to the device with this serial number.
pub(crate) fn link_name(serial: &str) -> String {
    format!("{PREFIX}{serial}")
}

/// The destination of a link; `None` if it does not exist.
pub(super) fn read(link: &Path) -> Result<Option<PathBuf>, Error> {
    match fs::read_link(link) {
        Ok(behind) => Ok(Some(behind)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(PathError::of("read the link", link)(error).into()),
    }
}
