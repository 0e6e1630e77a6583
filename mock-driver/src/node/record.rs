//! Records of staged and published volumes with the arguments of their calls, for idempotency.
//!
//! A record is written before the work begins and marked as done at its end. An unfinished record belongs to a call
//! that never succeeded, and recovery undoes it. A record that is being undone remains until that succeeds, because the
//! volume may be in use. With a state directory, records survive the process.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Deserializer, Serialize};

use super::error::Error;
use crate::array::{Capability, json};
use crate::node::mount::MountSource;
use crate::store::{Database, OpenError, Rows, durable, failed};

const TABLE: &str = "node_records";

/// The directory where earlier versions kept one file per record.
const LEGACY_DIR: &str = "node";

/// How the names of these files begin: with the `/` of the record's path.
const LEGACY_PREFIX: &str = "%2F";

/// Sorted by key.
pub(crate) type Map = BTreeMap<String, String>;

/// A volume staged or published at a path.
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
    #[serde(default, rename = "shown")]
    pub(crate) mount_source: Option<MountSource>,
    #[serde(alias = "settled", deserialize_with = "progress")]
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

/// Reads the progress. Earlier versions wrote only whether the call had succeeded, and `false` also before they undid
/// one.
fn progress<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Progress, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Stored {
        Settled(bool),
        Progress(Progress),
    }
    Ok(match Stored::deserialize(deserializer)? {
        Stored::Settled(true) => Progress::Done,
        Stored::Settled(false) => Progress::Undoing,
        Stored::Progress(progress) => progress,
    })
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Staged,
    /// A target path.
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
    database: Option<Arc<Database>>,
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
    pub(super) fn in_memory() -> Self {
        Self {
            known: Mutex::default(),
            database: None,
        }
    }

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
        self.write(&record.path, Some(record))?;
        crate::lock(&self.known).insert(record.path.clone(), record.clone());
        Ok(())
    }

    /// Deletes the record of a path. Blocks.
    pub(super) fn remove(&self, path: &str) -> Result<(), Error> {
        self.write(path, None)?;
        crate::lock(&self.known).remove(path);
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
}

/// Imports the record files of an earlier version, and removes them and nothing else.
fn migrate(database: &Database) -> Result<(), OpenError> {
    let directory = database.directory().join(LEGACY_DIR);
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        Err(error) => return Err(failed("read", &directory)(error)),
    };
    let (mut rows, mut files) = (Rows::new(), Vec::new());
    for entry in entries {
        let path = entry.map_err(failed("read", &directory))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with(LEGACY_PREFIX) {
            continue;
        }
        if name.ends_with(".json") {
            let text = fs::read(&path).map_err(failed("read", &path))?;
            let record: Record = serde_json::from_slice(&text)
                .map_err(io::Error::from)
                .map_err(failed("parse", &path))?;
            rows.insert((TABLE, record.path.clone()), Some(json(&record)));
        }
        // Others are partly written records: their calls had not begun their work.
        files.push(path.clone());
    }
    if files.is_empty() {
        return Ok(());
    }
    database.replace(&[], rows)?;
    for file in &files {
        fs::remove_file(file).map_err(failed("remove", file))?;
    }
    durable::sync_directory(&directory).map_err(failed("flush", &directory))?;
    // Fails if other files remain.
    fs::remove_dir(&directory).ok();
    durable::sync_directory(database.directory()).map_err(failed("flush", database.directory()))
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
            fs::write(path.join("%2Fhalf.new"), "{").unwrap();
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
    fn directory_named_node_in_the_state_directory_keeps_its_foreign_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(LEGACY_DIR);
        for files in [&["photos/1.jpg"][..], &["package.json", "%2Fhalf.new"]] {
            for file in files.iter().map(|file| path.join(file)) {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "of others").unwrap();
            }
            drop(open(&directory));
            assert_eq!(fs::read_to_string(path.join(files[0])).unwrap(), "of others");
        }
        assert!(!path.join("%2Fhalf.new").exists());
        fs::remove_dir_all(&path).unwrap();
        fs::write(&path, "a file").unwrap();
        drop(open(&directory));
        assert!(path.is_file());
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
