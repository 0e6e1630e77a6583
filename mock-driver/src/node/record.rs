//! Records of staged and published volumes with the arguments of their calls, for idempotency.
//!
//! A record is written before the work begins and marked as done at its end. An unfinished record belongs to a call
//! that never succeeded, and recovery undoes it. A record that is being undone remains until that succeeds, because the
//! volume may be in use. With a state directory, records survive the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::error::Error;
use crate::array::{Capability, json};
use crate::node::device::TargetNotes;
use crate::node::mount::MountSource;
use crate::store::Database;

const TABLE: &str = "node_records";

/// Sorted by key.
pub(crate) type Map = BTreeMap<String, String>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) volume: String,
    pub(crate) path: String,
    pub(crate) role: Role,
    pub(crate) capability: Capability,
    pub(crate) readonly: bool,
    pub(crate) publish_context: Map,
    pub(crate) volume_context: Map,
    /// Size of an inline volume, which exists as long as this target.
    pub(crate) inline: Option<u64>,
    /// The mount source at the path; `None` if nothing is mounted there.
    pub(crate) mount_source: Option<MountSource>,
    pub(crate) progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Progress {
    /// The volume is being staged or published; no call has succeeded.
    Doing,
    /// The call has succeeded.
    Done,
    /// The volume is being unpublished or unstaged.
    Undoing,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Staged,
    Published {
        /// Empty in a request without a staging path.
        staging: String,
        /// Whether the driver staged it privately.
        ours: bool,
    },
}

#[derive(Debug)]
pub(super) struct Records {
    known: Mutex<BTreeMap<String, Record>>,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    Database(Arc<Database>),
    /// Only the targets are noted, to undo what a killed process left.
    Memory(Option<TargetNotes>),
}

// === impl Record ===

impl Record {
    /// The record of a NodeStageVolume or NodePublishVolume that has not succeeded, without contexts.
    pub(crate) fn new(volume: String, path: String, role: Role, capability: Capability) -> Self {
        Self {
            volume,
            path,
            role,
            capability,
            readonly: false,
            publish_context: Map::new(),
            volume_context: Map::new(),
            inline: None,
            mount_source: None,
            progress: Progress::Doing,
        }
    }

    pub(crate) fn is_staged(&self) -> bool {
        self.role == Role::Staged
    }

    /// Whether a call has succeeded and no call to undo it has begun.
    pub(crate) fn is_done(&self) -> bool {
        self.progress == Progress::Done
    }

    pub(crate) fn when(&self, progress: Progress) -> Self {
        Self {
            progress,
            ..self.clone()
        }
    }

    pub(crate) fn staging(&self) -> &str {
        match &self.role {
            Role::Staged => &self.path,
            Role::Published { staging, .. } => staging,
        }
    }

    pub(crate) fn path_field(&self) -> &'static str {
        match self.role {
            Role::Staged => "staging_target_path",
            Role::Published { .. } => "target_path",
        }
    }

    /// `staged` or `published`, for messages.
    pub(crate) fn done(&self) -> &'static str {
        match self.role {
            Role::Staged => "staged",
            Role::Published { .. } => "published",
        }
    }
}

// === impl Records ===

impl Records {
    /// Records that end with the process.
    pub(super) fn in_memory(notes: Option<TargetNotes>) -> Self {
        Self {
            known: Mutex::default(),
            storage: Storage::Memory(notes),
        }
    }

    pub(super) fn open(database: Arc<Database>) -> Result<Self, Error> {
        let all: Vec<Record> = database.all(TABLE)?;
        let known = all.into_iter().map(|record| (record.path.clone(), record));
        Ok(Self {
            known: Mutex::new(known.collect()),
            storage: Storage::Database(database),
        })
    }

    /// Whether records survive the process.
    pub(super) fn are_kept(&self) -> bool {
        matches!(self.storage, Storage::Database(_))
    }

    pub(super) fn at(&self, path: &str) -> Option<Record> {
        crate::lock(&self.known).get(path).cloned()
    }

    pub(super) fn of(&self, volume: &str) -> Vec<Record> {
        let known = crate::lock(&self.known);
        known
            .values()
            .filter(|record| record.volume == volume)
            .cloned()
            .collect()
    }

    pub(super) fn all(&self) -> Vec<Record> {
        crate::lock(&self.known).values().cloned().collect()
    }

    /// Writes or replaces the record of a path. Blocks.
    pub(super) fn put(&self, record: &Record) -> Result<(), Error> {
        match &self.storage {
            Storage::Memory(Some(notes)) if !record.is_staged() => notes.add(&record.path)?,
            Storage::Memory(_) => {}
            Storage::Database(database) => write(database, &record.path, Some(record))?,
        }
        crate::lock(&self.known).insert(record.path.clone(), record.clone());
        Ok(())
    }

    /// Deletes the record of a path. Blocks.
    pub(super) fn remove(&self, path: &str) -> Result<(), Error> {
        match &self.storage {
            Storage::Memory(Some(notes)) if self.at(path).is_some_and(|record| !record.is_staged()) => {
                notes.remove(path)?;
            }
            Storage::Memory(_) => {}
            Storage::Database(database) => write(database, path, None)?,
        }
        crate::lock(&self.known).remove(path);
        Ok(())
    }
}

fn write(database: &Database, path: &str, record: Option<&Record>) -> Result<(), Error> {
    let sequence = database.write([((TABLE, path.to_owned()), record.map(json))]);
    database.wait_settled(sequence).map_err(|source| Error::Record {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{Access, AccessMode};

    fn open(directory: &tempfile::TempDir) -> Records {
        Records::open(Arc::new(Database::open(directory.path()).unwrap())).unwrap()
    }

    #[test]
    fn records_survive() {
        let directory = tempfile::tempdir().unwrap();
        let records = open(&directory);
        let record = Record {
            volume: "vol-0".to_owned(),
            path: "/a path/with: everything".to_owned(),
            role: Role::Staged,
            capability: Capability {
                access: Access::Block,
                mode: AccessMode::SingleNodeWriter,
            },
            readonly: false,
            publish_context: Map::new(),
            volume_context: Map::new(),
            inline: None,
            mount_source: Some(MountSource::Device(7)),
            progress: Progress::Doing,
        };
        records.put(&record).unwrap();
        let done = record.when(Progress::Done);
        records.put(&done).unwrap();
        drop(records);

        let records = open(&directory);
        assert_eq!(records.at(&record.path), Some(done.clone()));
        assert_eq!(records.of("vol-0"), [done]);
        records.remove(&record.path).unwrap();
        records.remove(&record.path).unwrap();
        drop(records);
        assert_eq!(open(&directory).all(), []);
    }
}
