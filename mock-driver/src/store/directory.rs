//! The state directory: a snapshot of the array and the log of what happened since.
//!
//! `snapshot.json` holds the array after change number `seq`; `changes.jsonl` holds numbered
//! changes. At the start both are read, the result becomes the new snapshot (written beside the
//! old one and renamed over it), and the log is emptied. The same is done whenever the log has grown long.
//! A crash between those two steps leaves
//! changes in the log that the snapshot has already: their numbers tell, and they are skipped.
//! `array.json` names the array.
//! `loss.json` is there only if the array is to have lost something when it comes back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::log::{Line, LogFile};
use super::loss::Mark;
use super::{OpenError, durable};
use crate::array::{Array, Change, Image};
use crate::fault::Loses;

const SNAPSHOT: &str = "snapshot.json";
const CHANGES: &str = "changes.jsonl";
const LOCK: &str = "lock";
const IDENTITY: &str = "array.json";

/// Raised when a file's meaning changes, so that an older driver refuses it. 1 had no snapshots, groups,
/// health and nodes; what it has means the same.
pub(super) const FORMAT: u32 = 2;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Snapshot<I> {
    pub(super) format: u32,
    /// The number of the last change in it.
    pub(super) seq: u64,
    pub(super) image: I,
}

// === impl Snapshot ===

impl<I> Snapshot<I> {
    /// Refuses what another driver wrote, whose meaning nobody here knows.
    pub(super) fn check_format(&self, path: &Path) -> Result<(), OpenError> {
        if (1..=FORMAT).contains(&self.format) {
            return Ok(());
        }
        Err(damaged(
            path,
            format!("has format {}, this driver knows {FORMAT}", self.format),
        ))
    }
}

/// Brings the array back and leaves a fresh snapshot and an empty log.
pub(super) fn open(
    directory: PathBuf,
    begin: impl FnOnce(Option<Image>) -> Array,
    premade: u64,
) -> Result<(Array, LogFile), OpenError> {
    let lock = lock(&directory)?;

    let changes = directory.join(CHANGES);
    let mark = Mark::read(&directory)?;
    let loses = mark.as_ref().map(|mark| mark.loses);
    let snapshot = match (loses, mark.and_then(|mark| mark.backup)) {
        (Some(Loses::Everything), _) => None,
        (_, Some(backup)) => Some(backup),
        (Some(Loses::Attachments | Loses::Changes) | None, None) => read_snapshot(&directory.join(SNAPSHOT))?,
    };
    let (image, mut seq) = match snapshot {
        Some(snapshot) => (Some(snapshot.image), snapshot.seq),
        None => (None, 0),
    };
    let mut array = begin(image);
    let replayed = match loses {
        Some(Loses::Everything | Loses::Changes) => 0,
        Some(Loses::Attachments) | None => replay(&changes, &mut array, &mut seq)?,
    };
    if loses == Some(Loses::Attachments) {
        array.lose_attachments();
    }
    if let Some(loses) = loses {
        tracing::warn!(?loses, dir = %directory.display(), "state lost, as the trouble state-loss had it");
    }
    array.premake(premade);

    write_snapshot(
        &directory,
        &Snapshot {
            format: FORMAT,
            seq,
            image: array.image(),
        },
    )?;
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&changes)
        .and_then(|file| file.set_len(0).and_then(|()| file.sync_all()).map(|()| file))
        .map_err(failed("empty", &changes))?;
    sync_directory(&directory)?;
    Mark::remove(&directory)?;
    tracing::info!(
        dir = %directory.display(), volumes = array.volumes().count(), replayed, "state brought back"
    );
    let log = LogFile {
        file,
        lock,
        directory,
        seq,
    };
    Ok((array, log))
}

/// Puts the array as it is after change number `seq` in the place of the snapshot, and says how many bytes it
/// has.
pub(super) fn renew(directory: &Path, seq: u64, image: Image) -> Result<u64, OpenError> {
    let format = FORMAT;
    write_snapshot(directory, &Snapshot { format, seq, image })?;
    let place = directory.join(SNAPSHOT);
    let written = fs::metadata(&place).map_err(failed("look at", &place))?;
    Ok(written.len())
}

/// Creates a state directory and keeps other processes out of it until the file is closed.
pub(crate) fn lock(directory: &Path) -> Result<File, OpenError> {
    durable::create_dir_all(directory).map_err(failed("create", directory))?;
    let path = directory.join(LOCK);
    durable::try_lock(&path)
        .map_err(failed("lock", &path))?
        .ok_or_else(|| OpenError::InUse {
            path: directory.to_owned(),
        })
}

/// What tells this array from others. It survives a loss of the array's state.
pub(super) fn identity(directory: &Path, fresh: u128) -> Result<String, OpenError> {
    #[derive(Serialize, Deserialize)]
    struct Identity {
        id: String,
    }
    let path = directory.join(IDENTITY);
    match fs::read(&path) {
        Ok(text) => {
            let identity: Identity = serde_json::from_slice(&text)
                .map_err(|error| damaged(&path, format!("does not name an array ({error})")))?;
            Ok(identity.id)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let identity = Identity {
                id: format!("{fresh:032x}"),
            };
            write_json(directory, IDENTITY, &identity)?;
            Ok(identity.id)
        }
        Err(error) => Err(failed("read", &path)(error)),
    }
}

fn read_snapshot(path: &Path) -> Result<Option<Snapshot<Image>>, OpenError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path)(error)),
    };
    let snapshot: Snapshot<Image> = serde_json::from_reader(BufReader::new(file))
        .map_err(|error| damaged(path, format!("is not a snapshot of this driver ({error})")))?;
    snapshot.check_format(path)?;
    Ok(Some(snapshot))
}

/// Applies the log's changes that are newer than `seq`, and counts them.
fn replay(path: &Path, array: &mut Array, seq: &mut u64) -> Result<u64, OpenError> {
    let mut reader = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(failed("read", path)(error)),
    };
    let (mut number, mut replayed) = (0_u64, 0);
    let mut text = Vec::new();
    loop {
        text.clear();
        number += 1;
        if reader
            .read_until(b'\n', &mut text)
            .map_err(failed("read", path))?
            == 0
        {
            return Ok(replayed);
        }
        if text.last() != Some(&b'\n') {
            // The process died while it wrote this line, so nobody was told of the change.
            tracing::warn!(file = %path.display(), line = number, "unfinished last line dropped");
            return Ok(replayed);
        }
        let line: Line<Change> = serde_json::from_slice(&text)
            .map_err(|error| damaged(path, format!("line {number} is not a change ({error})")))?;
        if line.seq <= *seq {
            continue;
        }
        if line.seq != *seq + 1 {
            let reason = format!(
                "line {number} is change {}, not {} as expected",
                line.seq,
                *seq + 1
            );
            return Err(damaged(path, reason));
        }
        *seq = line.seq;
        array.apply(line.change);
        replayed += 1;
    }
}

fn write_snapshot(directory: &Path, snapshot: &Snapshot<Image>) -> Result<(), OpenError> {
    write_json(directory, SNAPSHOT, snapshot)
}

/// Puts a file in its place, whole or not at all.
pub(super) fn write_json(directory: &Path, name: &str, content: &impl Serialize) -> Result<(), OpenError> {
    durable::write_json(directory, name, content).map_err(failed("write", &directory.join(name)))
}

/// Makes created and renamed files survive a loss of power.
pub(super) fn sync_directory(directory: &Path) -> Result<(), OpenError> {
    durable::sync_directory(directory).map_err(failed("flush", directory))
}

pub(super) fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { act, path, source }
}

pub(super) fn damaged(path: &Path, reason: String) -> OpenError {
    OpenError::Damaged {
        path: path.to_owned(),
        reason,
    }
}
