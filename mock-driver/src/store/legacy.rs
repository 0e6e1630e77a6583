//! State directories of earlier versions: a snapshot of the array, the log of changes since, and two notes.
//!
//! `snapshot.json` holds the array after change number `seq`; `changes.jsonl` numbered changes, of which those up to
//! that number are in the snapshot. `array.json` names the array, and `loss.json` is there if the array is to have lost
//! something when it comes back. Each is read once, and removed when the database has what it says.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::durable;
use super::error::OpenError;
use super::file::failed;
use super::restore::Mark;
use crate::array::{Change, Image};
use crate::fault::Loses;

const SNAPSHOT: &str = "snapshot.json";
const CHANGES: &str = "changes.jsonl";
const IDENTITY: &str = "array.json";
const LOSS: &str = "loss.json";

/// Last, so that what is left after a crash is known to be migrated: the snapshot.
const FILES: [&str; 4] = [CHANGES, LOSS, IDENTITY, SNAPSHOT];

/// The formats there were. 1 had no snapshots, groups, health and nodes.
const FORMATS: std::ops::RangeInclusive<u32> = 1..=2;

/// The contents of these files.
#[derive(Debug, Default)]
pub(super) struct Legacy {
    pub(super) image: Option<Image>,
    pub(super) changes: Vec<Change>,
    pub(super) identity: Option<String>,
    pub(super) mark: Option<Mark>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Snapshot {
    format: u32,
    /// The number of the last change in it.
    seq: u64,
    image: Image,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    seq: u64,
    change: Change,
}

#[derive(Deserialize)]
struct Identity {
    id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Loss {
    loses: Loses,
    /// The array to restore, if changes are to be lost.
    #[serde(default)]
    backup: Option<Snapshot>,
}

// === impl Legacy ===

impl Legacy {
    /// Reads a state directory; `None` if it has no array of an earlier version.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>, OpenError> {
        let is_there = |file: &str| directory.join(file).exists();
        if !FILES.iter().any(|file| is_there(file)) {
            return Ok(None);
        }
        let snapshot: Option<Snapshot> = read_json(&directory.join(SNAPSHOT), "a snapshot")?;
        if let Some(snapshot) = &snapshot {
            snapshot.check_format(&directory.join(SNAPSHOT))?;
        }
        let (image, seq) = match snapshot {
            Some(snapshot) => (Some(snapshot.image), snapshot.seq),
            None => (None, 0),
        };
        let identity: Option<Identity> = read_json(&directory.join(IDENTITY), "the name of an array")?;
        Ok(Some(Self {
            image,
            changes: read_changes(&directory.join(CHANGES), seq)?,
            identity: identity.map(|identity| identity.id),
            mark: read_loss(&directory.join(LOSS))?,
        }))
    }

    /// Removes the migrated files.
    pub(super) fn remove(directory: &Path) -> Result<(), OpenError> {
        let mut is_changed = false;
        for path in FILES.map(|file| directory.join(file)) {
            match fs::remove_file(&path) {
                Ok(()) => is_changed = true,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(failed("remove", &path)(error)),
            }
        }
        if is_changed {
            durable::sync_directory(directory).map_err(failed("flush", directory))?;
        }
        Ok(())
    }
}

// === impl Snapshot ===

impl Snapshot {
    fn check_format(&self, path: &Path) -> Result<(), OpenError> {
        if FORMATS.contains(&self.format) {
            return Ok(());
        }
        let known = FORMATS.end();
        let reason = format!("has format {}, this driver knows {known}", self.format);
        Err(damaged(path, reason))
    }
}

fn read_loss(path: &Path) -> Result<Option<Mark>, OpenError> {
    let Some(Loss { loses, backup }) = read_json(path, "a loss")? else {
        return Ok(None);
    };
    if let Some(backup) = &backup {
        backup.check_format(path)?;
    }
    let mark = Mark {
        loses,
        backup: backup.map(|backup| backup.image),
    };
    if !mark.is_whole() {
        let reason = "must have a backup if changes are lost, and only then";
        return Err(damaged(path, reason.to_owned()));
    }
    Ok(Some(mark))
}

/// The changes of the log after `seq`.
fn read_changes(path: &Path, mut seq: u64) -> Result<Vec<Change>, OpenError> {
    let mut reader = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("read", path)(error)),
    };
    let (mut number, mut changes) = (0_u64, Vec::new());
    let mut text = Vec::new();
    loop {
        text.clear();
        number += 1;
        if reader
            .read_until(b'\n', &mut text)
            .map_err(failed("read", path))?
            == 0
        {
            return Ok(changes);
        }
        // The process died while it wrote this line, or the power failed before the line was flushed and the
        // filesystem had its length already. Either way no call was answered with this line or a later one.
        if text.last() != Some(&b'\n') || text.contains(&0) {
            tracing::warn!(file = %path.display(), line = number, "unfinished end of the log dropped");
            return Ok(changes);
        }
        let line: Line = serde_json::from_slice(&text)
            .map_err(|error| damaged(path, format!("line {number} is not a change ({error})")))?;
        if line.seq <= seq {
            continue;
        }
        if line.seq != seq + 1 {
            let expected = seq + 1;
            let reason = format!("line {number} is change {}, not {expected} as expected", line.seq);
            return Err(damaged(path, reason));
        }
        seq = line.seq;
        changes.push(line.change);
    }
}

fn read_json<T: DeserializeOwned>(path: &Path, what: &str) -> Result<Option<T>, OpenError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path)(error)),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| damaged(path, format!("is not {what} of this driver ({error})")))
}

fn damaged(path: &Path, reason: String) -> OpenError {
    OpenError::Damaged {
        path: path.to_owned(),
        reason,
    }
}
