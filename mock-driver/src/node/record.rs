//! What was staged and published on this node, with the arguments it was done with: what idempotency is
//! judged by.
//!
//! A record is written before the work begins and marked as done at the end; whoever finds one that is not
//! knows that nobody was told of success, and undoes it. What is being undone may still be there, for it may be
//! in use. With a directory records survive the process, each in a file of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Deserializer, Serialize};

use super::Error;
use crate::array::Capability;
use crate::node::mount::MountSource;
use crate::store::volume_files::file_name;

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
    /// The volume is being brought there, and nobody was told that it is.
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
    /// It is staged there.
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
    directory: Option<PathBuf>,
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
            directory: None,
        }
    }

    /// Records in a directory, as they were left.
    pub(super) fn open(directory: PathBuf) -> Result<Self, Error> {
        fs::create_dir_all(&directory).map_err(failed("create", &directory))?;
        let mut known = BTreeMap::new();
        for entry in fs::read_dir(&directory).map_err(failed("read", &directory))? {
            let path = entry.map_err(failed("read", &directory))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                // Half of a record: the work it was for never began.
                fs::remove_file(&path).map_err(failed("remove", &path))?;
                continue;
            }
            let text = fs::read(&path).map_err(failed("read", &path))?;
            let record: Record = serde_json::from_slice(&text)
                .map_err(io::Error::from)
                .map_err(failed("understand", &path))?;
            known.insert(record.path.clone(), record);
        }
        Ok(Self {
            known: Mutex::new(known),
            directory: Some(directory),
        })
    }

    /// Whether records survive the process.
    pub(super) fn are_kept(&self) -> bool {
        self.directory.is_some()
    }

    /// What is at a path.
    pub(super) fn at(&self, path: &str) -> Option<Record> {
        self.lock().get(path).cloned()
    }

    /// All there is of a volume.
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
        if let Some(directory) = &self.directory {
            let place = self.file(directory, &record.path);
            let new = place.with_extension("new");
            let write = || {
                let mut file = File::create(&new)?;
                serde_json::to_writer(&mut file, record)?;
                file.flush()?;
                file.sync_all()?;
                fs::rename(&new, &place)?;
                File::open(directory)?.sync_all()
            };
            write().map_err(failed("write", &place))?;
        }
        self.lock().insert(record.path.clone(), record.clone());
        Ok(())
    }

    /// Forgets what was at a path. Blocks.
    pub(super) fn remove(&self, path: &str) -> Result<(), Error> {
        if let Some(directory) = &self.directory {
            let place = self.file(directory, path);
            match fs::remove_file(&place) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed("remove", &place)(error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        self.lock().remove(path);
        Ok(())
    }

    fn file(&self, directory: &Path, path: &str) -> PathBuf {
        directory.join(format!("{}.json", file_name(path)))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::Record { act, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{Access, AccessMode};

    #[test]
    fn records_of_earlier_versions_are_read() {
        for (settled, progress) in [(true, Progress::Done), (false, Progress::Undoing)] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("node");
            Records::open(path.clone()).unwrap();
            let old = format!(
                r#"{{"volume":"v","path":"/p","role":"staged","capability":{},"readonly":false,"publish_context":{{}},
                    "volume_context":{{}},"inline":null,"settled":{settled}}}"#,
                serde_json::to_string(&Capability {
                    access: Access::Block,
                    mode: AccessMode::SingleNodeWriter,
                })
                .unwrap(),
            );
            fs::write(path.join(format!("{}.json", file_name("/p"))), old).unwrap();
            let records = Records::open(path).unwrap();
            assert_eq!(records.at("/p").map(|record| record.progress), Some(progress));
        }
    }

    #[test]
    fn records_survive_and_halves_of_them_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node");
        let records = Records::open(path.clone()).unwrap();
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
        fs::write(path.join("half.new"), "{").unwrap();

        let records = Records::open(path.clone()).unwrap();
        assert_eq!(records.at(&record.path), Some(done.clone()));
        assert_eq!(records.of("vol-0"), [done]);
        assert!(!path.join("half.new").exists());
        records.remove(&record.path).unwrap();
        records.remove(&record.path).unwrap();
        assert_eq!(Records::open(path).unwrap().all(), []);
    }
}
