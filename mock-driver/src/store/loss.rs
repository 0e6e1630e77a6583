//! A loss that is to be found when the state directory is opened the next time, written down beside the
//! snapshot: `loss.json`.
//!
//! Whoever opens the directory lets the array lose that, makes snapshot and log new, and only then removes the file.
//! A crash in between leads to the same loss once more, before anybody could have used what came back.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::OpenError;
use super::directory::{self, FORMAT, Snapshot, damaged, failed};
use crate::array::Image;
use crate::fault::Loses;

const LOSS: &str = "loss.json";

/// What is lost.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mark {
    pub(super) loses: Loses,
    /// The array to come back with; there if changes are lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) backup: Option<Snapshot<Image>>,
}

// === impl Mark ===

impl Mark {
    /// Of an array as it was after change number `seq`.
    pub(super) fn new(loses: Loses, image: impl FnOnce() -> (Image, u64)) -> Self {
        let backup = || {
            let (image, seq) = image();
            let format = FORMAT;
            Snapshot { format, seq, image }
        };
        Self {
            loses,
            backup: (loses == Loses::Changes).then(backup),
        }
    }

    pub(super) fn read(directory: &Path) -> Result<Option<Self>, OpenError> {
        let path = directory.join(LOSS);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        let mark: Self = serde_json::from_slice(&text)
            .map_err(|error| damaged(&path, format!("is not a loss of this driver ({error})")))?;
        if (mark.loses == Loses::Changes) != mark.backup.is_some() {
            return Err(damaged(
                &path,
                "must have a backup if changes are lost, and only then".to_owned(),
            ));
        }
        if let Some(backup) = &mark.backup {
            backup.check_format(&path)?;
        }
        Ok(Some(mark))
    }

    pub(super) fn write(&self, directory: &Path) -> Result<(), OpenError> {
        directory::write_json(directory, LOSS, self)
    }

    /// Nothing is lost any more.
    pub(super) fn remove(directory: &Path) -> Result<(), OpenError> {
        let path = directory.join(LOSS);
        match fs::remove_file(&path) {
            Ok(()) => directory::sync_directory(directory),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed("remove", &path)(error)),
        }
    }
}
