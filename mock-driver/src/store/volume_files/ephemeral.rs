//! Records the node that created the files of an ephemeral volume: nodes share the directory, and each removes only its own
//! volumes.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::VolumeFiles;
use super::copy::{ORPHANED, is_unfinished, paths_in, remove_all, remove_unfinished, set_aside};
use super::file_id::{EPHEMERAL, FileId, NODE, UNFINISHED, hash};
use crate::store::PathError;
use crate::store::durable;

#[derive(Serialize, Deserialize)]
pub(crate) struct NodeNote {
    node: String,
    pub(crate) volume: String,
    /// The target path of the volume.
    pub(crate) target: PathBuf,
}

// === impl VolumeFiles ===

impl VolumeFiles {
    /// Records the node before a volume is created. Nodes share the directory, and each removes the volumes of its own pods.
    pub(crate) async fn note_node(
        &self,
        file_id: &FileId,
        node: &str,
        target: &str,
    ) -> Result<(), PathError> {
        if !self.is_kept() {
            return Ok(());
        }
        let note = NodeNote {
            node: node.to_owned(),
            volume: file_id.id().to_owned(),
            target: target.into(),
        };
        self.work(file_id, move |directory, _| write_note(directory, &note))
            .await
    }

    /// The volumes of a node's pods.
    pub(crate) async fn ephemeral_of(&self, node: &str) -> Result<Vec<NodeNote>, PathError> {
        if !self.is_kept() {
            return Ok(Vec::new());
        }
        let (folder, node) = (self.directory()?.join(EPHEMERAL), node.to_owned());
        self.blocking(move |_| {
            let mut notes = Vec::new();
            for path in paths_in(&folder)? {
                if !is_unfinished(&path) {
                    // One without a readable note has no owner.
                    notes.extend(read_note(&path).filter(|note| note.node == node));
                }
            }
            Ok(notes)
        })
        .await
    }

    /// Removes the leftovers of interrupted creations and removals of ephemeral volumes, except those of other nodes, which
    /// may still be running. Only for the process that has locked the node's devices. Returns the number of removed
    /// directories.
    pub(crate) async fn sweep_unfinished_ephemeral(&self, node: &str) -> Result<usize, PathError> {
        if !self.is_kept() {
            return Ok(0);
        }
        let (folder, node) = (self.directory()?.join(EPHEMERAL), node.to_owned());
        self.blocking(move |_| {
            let mut removed = 0;
            for path in paths_in(&folder)? {
                if is_abandoned(&path, &node) {
                    remove_all(&path)?;
                    removed += 1;
                }
            }
            Ok(removed)
        })
        .await
    }
}

/// Moves ephemeral volumes without a readable note, which no node removes, into `orphaned`, and returns their number.
pub(super) fn set_aside_unowned(directory: &Path) -> Result<usize, PathError> {
    let mut moved = 0;
    for path in paths_in(&directory.join(EPHEMERAL))? {
        let name = path.file_name().unwrap_or_default();
        let is_hidden = name.as_encoded_bytes().starts_with(b".");
        if !is_hidden && !has_note(&path)? {
            set_aside(&path, &directory.join(ORPHANED).join(EPHEMERAL))?;
            moved += 1;
        }
    }
    Ok(moved)
}

fn has_note(directory: &Path) -> Result<bool, PathError> {
    let path = directory.join(NODE);
    match fs::read(&path) {
        Ok(text) => Ok(serde_json::from_slice::<NodeNote>(&text).is_ok()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(PathError::of("read", &path)(error)),
    }
}

/// Writes the note of an ephemeral volume. A new directory gets its name with the note in it, so that each one has an owner.
fn write_note(directory: &Path, note: &NodeNote) -> Result<(), PathError> {
    let write = |directory: &Path| {
        durable::write_json(directory, NODE, note).map_err(PathError::of("write the owner of", directory))
    };
    if directory.exists() {
        return write(directory);
    }
    let new = directory.with_file_name(new_name(&note.node, &note.volume));
    remove_all(&new)?;
    let made = (|| {
        // Not flushed: it gets its name when its note is written.
        fs::create_dir_all(&new).map_err(PathError::of("create", &new))?;
        write(&new)?;
        fs::rename(&new, directory).map_err(PathError::of("rename", &new))
    })();
    if made.is_err() {
        remove_unfinished(&new);
    }
    made
}

/// The name of an unfinished directory: before the note is in it, only the name shows the owner.
fn new_name(node: &str, volume: &str) -> String {
    format!("{}{:032x}", new_names_of(node), hash(volume))
}

/// How the names of a node's unfinished directories begin. A hash has the same length for all ids.
fn new_names_of(node: &str) -> String {
    format!("{UNFINISHED}new-{:032x}-", hash(node))
}

fn read_note(directory: &Path) -> Option<NodeNote> {
    let text = fs::read(directory.join(NODE)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Whether an interrupted creation by this node, or an interrupted removal by no other node, left the directory.
fn is_abandoned(path: &Path, node: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with(&new_names_of(node)) {
        return true;
    }
    // The note is removed last: without one, the directory is empty.
    let is_old = name.starts_with(&format!("{UNFINISHED}old-"));
    is_old && read_note(path).is_none_or(|note| note.node == node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_creation_leaves_no_directory() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("csi-1");
        let note = NodeNote {
            node: "node-0".to_owned(),
            volume: "csi-1".to_owned(),
            target: PathBuf::from("/target"),
        };
        // A directory cannot replace a link.
        std::os::unix::fs::symlink("nowhere", &directory).unwrap();
        write_note(&directory, &note).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::remove_file(&directory).unwrap();
        write_note(&directory, &note).unwrap();
        assert!(directory.join(NODE).exists());
    }

    #[test]
    fn leftovers_of_nodes_with_long_ids_are_told_apart() {
        let node = "n".repeat(200);
        let left = PathBuf::from(new_name(&node, "csi-1"));
        assert!(is_abandoned(&left, &node), "{}", left.display());
        for other in [format!("{node}x"), "n".repeat(199)] {
            assert!(!is_abandoned(&left, &other), "{other}");
        }
        assert!(left.as_os_str().len() <= 255, "{}", left.display());
    }
}
