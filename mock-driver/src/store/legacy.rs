//! State directories of earlier versions: a snapshot of the array, the log of changes since, and two notes.
//!
//! `snapshot.json` contains the array after change number `seq`; `changes.jsonl` contains numbered changes, of which
//! those up to that number are in the snapshot. `array.json` has the identity of the array, and `loss.json` exists if
//! the array must lose state on restart. Each file is read once, and removed when its content is in the database.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use super::database::Database;
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

/// The snapshot is removed last: files without a snapshot are known to be migrated.
const FILES: [&str; 4] = [CHANGES, LOSS, IDENTITY, SNAPSHOT];

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
    #[serde(rename = "format", deserialize_with = "known_format")]
    _format: (),
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
    /// The array to restore, if the loss discards changes.
    #[serde(default)]
    backup: Option<Snapshot>,
}

// === impl Legacy ===

impl Legacy {
    /// Reads a state directory; `None` if it has no array of an earlier version.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>, OpenError> {
        if !FILES.iter().any(|file| directory.join(file).exists()) {
            return Ok(None);
        }
        let snapshot: Option<Snapshot> = read_json(&directory.join(SNAPSHOT), "a snapshot")?;
        let seq = snapshot.as_ref().map_or(0, |snapshot| snapshot.seq);
        let identity: Option<Identity> = read_json(&directory.join(IDENTITY), "the name of an array")?;
        let loss: Option<Loss> = read_json(&directory.join(LOSS), "a loss")?;
        let mark = loss.map(|Loss { loses, backup }| Mark {
            loses,
            backup: backup.map(|backup| backup.image),
        });
        if mark.as_ref().is_some_and(|mark| !mark.is_whole()) {
            let reason = "must have a backup if changes are lost, and only then";
            return Err(damaged(&directory.join(LOSS), reason.to_owned()));
        }
        Ok(Some(Self {
            image: snapshot.map(|snapshot| snapshot.image),
            changes: read_changes(&directory.join(CHANGES), seq)?,
            identity: identity.map(|identity| identity.id),
            mark,
        }))
    }

    /// Refuses a directory that has an array of an earlier version beside a migrated one. Other files with these names are
    /// ignored.
    pub(super) fn refuse(database: &Database) -> Result<(), OpenError> {
        let mut files = FILES.iter().rev().map(|file| database.directory().join(file));
        match files.find(|file| file.exists()) {
            Some(file) if Self::read(database.directory()).is_ok() => Err(OpenError::TwoStates {
                database: database.path(),
                file,
            }),
            Some(_) | None => Ok(()),
        }
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

/// Formats 1 and 2 were files. 1 had no snapshots, groups, health and nodes.
fn known_format<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    match u32::deserialize(deserializer)? {
        1 | 2 => Ok(()),
        format => Err(D::Error::custom(format!("format {format}, this driver knows 2"))),
    }
}

/// The changes of the log after `seq`.
fn read_changes(path: &Path, mut seq: u64) -> Result<Vec<Change>, OpenError> {
    let log = read_file(path)?.unwrap_or_default();
    let mut changes = Vec::new();
    for (number, text) in (1_u64..).zip(log.split_inclusive(|byte| *byte == b'\n')) {
        // The process exited while it wrote this line, or the power failed after the filesystem had stored the file's
        // length and before the line was flushed. In both cases no call got a response that depends on this line or a
        // later one.
        if text.last() != Some(&b'\n') || text.contains(&0) {
            tracing::warn!(file = %path.display(), line = number, "unfinished end of the log dropped");
            break;
        }
        let line: Line = serde_json::from_slice(text)
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
    Ok(changes)
}

fn read_file(path: &Path) -> Result<Option<Vec<u8>>, OpenError> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some).map_err(failed("read", path)),
    }
}

fn read_json<T: DeserializeOwned>(path: &Path, what: &str) -> Result<Option<T>, OpenError> {
    let text = read_file(path)?;
    text.map(|text| serde_json::from_slice(&text))
        .transpose()
        .map_err(|error| damaged(path, format!("is not {what} of this driver ({error})")))
}

fn damaged(path: &Path, reason: String) -> OpenError {
    OpenError::Damaged {
        path: path.to_owned(),
        reason,
    }
}
