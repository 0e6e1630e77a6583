//! Which node made the files of a volume that lives as long as its pod: nodes share the directory, and each one
//! looks after its own.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::VolumeFiles;
use super::error::Error;
use super::file_id::{EPHEMERAL, FileId};
use crate::store::durable;

/// The file that says which node a volume was made on that lives as long as its pod.
const NODE: &str = "node.json";

#[derive(Serialize, Deserialize)]
pub(crate) struct NodeNote {
    node: String,
    pub(crate) volume: String,
    /// The target it was made for; none in notes of earlier versions.
    pub(crate) target: Option<PathBuf>,
}

// === impl VolumeFiles ===

impl VolumeFiles {
    /// Records on which node a volume is about to be made. Nodes share the directory, and each removes the volumes of
    /// its own pods.
    pub(crate) async fn note_node(&self, file_id: &FileId, node: &str, target: &str) -> Result<(), Error> {
        if !self.is_kept() {
            return Ok(());
        }
        let note = NodeNote {
            node: node.to_owned(),
            volume: file_id.id().to_owned(),
            target: Some(target.into()),
        };
        self.work(file_id, move |place| {
            fs::create_dir_all(place).map_err(Error::of("create", place))?;
            durable::write_json(place, NODE, &note).map_err(Error::of("write a note in", place))
        })
        .await
    }

    /// The volumes that were made for pods of a node.
    pub(crate) async fn ephemeral_of(&self, node: &str) -> Result<Vec<NodeNote>, Error> {
        if !self.is_kept() {
            return Ok(Vec::new());
        }
        let (folder, node) = (self.directory()?.join(EPHEMERAL), node.to_owned());
        self.blocking(move || {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                Err(error) => return Err(Error::of("read", &folder)(error)),
            };
            let mut notes = Vec::new();
            for entry in entries {
                let path = entry.map_err(Error::of("read", &folder))?.path().join(NODE);
                // Without a note it is an earlier version's, and one with an unreadable note has no owner.
                let note = fs::read(path).ok();
                let note: Option<NodeNote> = note.and_then(|text| serde_json::from_slice(&text).ok());
                notes.extend(note.filter(|note| note.node == node));
            }
            Ok(notes)
        })
        .await
    }
}
