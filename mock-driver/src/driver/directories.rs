//! The directories a driver works in.

use std::path::{Path, PathBuf};

use super::{OpenError, random};
use crate::array::media_of;
use crate::device;
use crate::media::{Media, Owner};
use crate::store::Store;

pub(super) fn absolute(path: PathBuf) -> Result<PathBuf, OpenError> {
    std::path::absolute(&path).map_err(|source| OpenError::Relative { path, source })
}

/// Where the bytes of volumes lie.
pub(super) fn media_in(
    media_dir: Option<PathBuf>,
    state_dir: Option<&Path>,
    devices: device::Choice,
) -> Media {
    match (media_dir, state_dir) {
        _ if devices == device::Choice::Simulated => Media::nowhere(),
        (Some(directory), _) => Media::kept(directory),
        (None, Some(directory)) => Media::kept(directory.join("media")),
        (None, None) => Media::private(),
    }
}

/// Makes the media directory the array's own.
pub(super) fn claim(
    media: &Media,
    store: &Store,
    epoch: u128,
    state_dir: Option<&Path>,
) -> Result<(), OpenError> {
    if !media.is_kept() {
        return Ok(());
    }
    // An array in memory knows nothing of what is there; equal names of volumes mean nothing.
    let (owner, known) = match store.identity(u128::from_le_bytes(random()?))? {
        Some(array) => {
            let is_kept = true;
            (Owner { array, is_kept }, store.peek(media_of))
        }
        None => {
            let (array, is_kept) = (format!("{epoch:032x}"), false);
            (Owner { array, is_kept }, Vec::new())
        }
    };
    Ok(media.claim(&owner, &known, state_dir)?)
}
