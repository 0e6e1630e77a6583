//! What was staged and published on this node, with the arguments it was done with: what idempotency is
//! judged by.
//!
//! A record is written before the work begins and marked as done at the end; one that is not done is of a
//! call that never succeeded, and is undone. What is being undone may still be there, for it may be
//! in use. With a database records survive the process.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Deserializer, Serialize};

use super::error::Error;
use crate::array::Capability;
use crate::node::mount::MountSource;
use crate::store::{Database, OpenError, durable};

/// The table of records, by path.
const TABLE: &str = "node_records";

/// Where earlier versions kept each record in a file.
const LEGACY_DIR: &str = "node";

/// Text by text, in order.
pub(crate) type Map = BTreeMap<String, String>;

/// What was done with a volume at a path.
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
    /// The size of a volume that was made for this very target and goes with it.
    pub(crate) inline: Option<u64>,
    /// What the path shows since the volume was brought there; none if it shows nothing.
    #[serde(default)]
    pub(crate) shown: Option<MountSource>,
    /// How far it has come.
    #[serde(alias = "settled", deserialize_with = "progress")]
    pub(crate) progress: Progress,
}

/// How far the work at a path has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Progress {
    /// The volume is being staged or published; no call has succeeded.
    Doing,
    /// The call that asked for it has succeeded.
    Done,
    /// It is being taken away, and is there until that succeeds.
    Undoing,
}

/// Reads how far the work has come. Earlier versions wrote only whether the call had succeeded, and `false` also
/// before they took something away.
fn progress<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Progress, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Settled(bool),
        Progress(Progress),
    }
    Ok(match Written::deserialize(deserializer)? {
        Written::Settled(true) => Progress::Done,
        Written::Settled(false) => Progress::Undoing,
        Written::Progress(progress) => progress,
    })
}

/// What a path is to a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Staged,
    /// It is published there, from where it is staged.
    Published {
        /// The staging path.
        staging: String,
        /// Whether we staged it ourselves, for this purpose.
        ours: bool,
    },
}

/// All records of a node, one for a path.
#[derive(Debug)]
pub(super) struct Records {
    known: Mutex<BTreeMap<String, Record>>,
    database: Option<Arc<Database>>,
}

// === impl Record ===

impl Record {
    pub(crate) fn is_staged(&self) -> bool {
        self.role == Role::Staged
    }

    /// Whether the call that asked for it has succeeded, and none to undo it has begun.
    pub(crate) fn is_done(&self) -> bool {
        self.progress == Progress::Done
    }

    /// The same, so far.
    pub(crate) fn when(&self, progress: Progress) -> Self {
        Self {
            progress,
            ..self.clone()
        }
    }

    /// The path it is staged at.
    pub(crate) fn staging(&self) -> &str {
        match &self.role {
            Role::Staged => &self.path,
            Role::Published { staging, .. } => staging,
        }
    }

    /// The field of the request that names its path.
    pub(crate) fn path_field(&self) -> &'static str {
        match self.role {
            Role::Staged => "staging_target_path",
            Role::Published { .. } => "target_path",
        }
    }

    /// What was done, for messages.
    pub(crate) fn done(&self) -> &'static str {
        match self.role {
            Role::Staged => "staged",
            Role::Published { .. } => "published",
        }
    }
}

// === impl Records ===

impl Records {
    /// Records that are gone with the process.
    pub(super) fn in_memory() -> Self {
        Self {
            known: Mutex::default(),
            database: None,
        }
    }

    /// Records in a database, as they were left.
    pub(super) fn open(database: Arc<Database>) -> Result<Self, Error> {
        migrate(&database)?;
        let all: Vec<Record> = database.all(TABLE)?;
        let known = all.into_iter().map(|record| (record.path.clone(), record));
        Ok(Self {
            known: Mutex::new(known.collect()),
            database: Some(database),
        })
    }

    /// Whether records survive the process.
    pub(super) fn are_kept(&self) -> bool {
        self.database.is_some()
    }

    pub(super) fn at(&self, path: &str) -> Option<Record> {
        self.lock().get(path).cloned()
    }

    pub(super) fn of(&self, volume: &str) -> Vec<Record> {
        let known = self.lock();
        known
            .values()
            .filter(|record| record.volume == volume)
            .cloned()
            .collect()
    }

    pub(super) fn all(&self) -> Vec<Record> {
        self.lock().values().cloned().collect()
    }

    /// Writes a record, in place of what was at its path. Blocks.
    pub(super) fn put(&self, record: &Record) -> Result<(), Error> {
        self.write(&record.path, Some(record))?;
        self.lock().insert(record.path.clone(), record.clone());
        Ok(())
    }

    /// Forgets what was at a path. Blocks.
    pub(super) fn remove(&self, path: &str) -> Result<(), Error> {
        self.write(path, None)?;
        self.lock().remove(path);
        Ok(())
    }

    fn write(&self, path: &str, record: Option<&Record>) -> Result<(), Error> {
        let Some(database) = &self.database else {
            return Ok(());
        };
        let sequence = database.write([((TABLE, path.to_owned()), record.map(json))]);
        database.wait_settled(sequence).map_err(|source| Error::Record {
            path: path.to_owned(),
            source,
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes over the records of an earlier version, each of which was a file.
fn migrate(database: &Database) -> Result<(), Error> {
    let directory = database.directory().join(LEGACY_DIR);
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("read", &directory)(error)),
    };
    let mut rows = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed("read", &directory))?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            // Half of a record: the work it was for never began.
            continue;
        }
        let text = fs::read(&path).map_err(failed("read", &path))?;
        let record: Record = serde_json::from_slice(&text)
            .map_err(io::Error::from)
            .map_err(failed("parse", &path))?;
        rows.push(((TABLE, record.path.clone()), Some(json(&record))));
    }
    database.replace(&[], rows.into_iter().collect())?;
    fs::remove_dir_all(&directory).map_err(failed("remove", &directory))?;
    durable::sync_directory(database.directory()).map_err(failed("flush", database.directory()))
}

fn json(record: &Record) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record must be representable as JSON")
}

fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::State(OpenError::Io { act, path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{Access, AccessMode};

    fn open(directory: &tempfile::TempDir) -> Records {
        Records::open(Arc::new(Database::open(directory.path()).unwrap())).unwrap()
    }

    #[test]
    fn records_of_earlier_versions_are_read() {
        for (settled, progress) in [(true, Progress::Done), (false, Progress::Undoing)] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("node");
            fs::create_dir(&path).unwrap();
            let old = format!(
                r#"{{"volume":"v","path":"/p","role":"staged","capability":{},"readonly":false,"publish_context":{{}},
                    "volume_context":{{}},"inline":null,"settled":{settled}}}"#,
                serde_json::to_string(&Capability {
                    access: Access::Block,
                    mode: AccessMode::SingleNodeWriter,
                })
                .unwrap(),
            );
            fs::write(path.join("%2Fp.json"), old).unwrap();
            fs::write(path.join("half.new"), "{").unwrap();
            let records = open(&directory);
            assert_eq!(records.at("/p").map(|record| record.progress), Some(progress));
            assert!(!path.exists());
            drop(records);
            assert_eq!(
                open(&directory).at("/p").map(|record| record.progress),
                Some(progress)
            );
        }
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
            shown: Some(MountSource::Device(7)),
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
