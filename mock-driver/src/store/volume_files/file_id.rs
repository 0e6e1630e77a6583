//! Ids of volume files and their file names. Ids may be any text; the file name is a single path component, not
//! too long, and unique for each id.

use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::array::Array;

pub(super) const DISK: &str = "disk";
/// The directory that emulates the filesystem, if disks cannot be mounted.
pub(super) const TREE: &str = "tree";
/// The file with the type of the emulated filesystem.
pub(crate) const FILESYSTEM: &str = "filesystem";
/// Maximum number of bytes of an encoded id in a file name.
const LONGEST: usize = 200;

/// The directory of ephemeral volumes.
pub(super) const EPHEMERAL: &str = "ephemeral";

/// The file with the node of an ephemeral volume.
pub(super) const NODE: &str = "node.json";

/// Prefix of the names of unfinished files; no id maps to such a name.
pub(super) const UNFINISHED: char = '.';

/// The owner of volume files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileId {
    /// A volume, by its id.
    Volume(String),
    /// A snapshot, by its id.
    Snapshot(String),
    /// An ephemeral volume, by its id.
    Ephemeral(String),
}

// === impl FileId ===

impl FileId {
    /// The ids of all volumes and snapshots of an array.
    pub(crate) fn all_of(array: &Array) -> Vec<Self> {
        let volumes = array
            .volumes()
            .map(|volume| Self::Volume(volume.spec.id.to_string()));
        let snapshots = array
            .snapshots()
            .map(|snapshot| Self::Snapshot(snapshot.id.to_string()));
        volumes.chain(snapshots).collect()
    }

    /// The id of the owner.
    pub fn id(&self) -> &str {
        match self {
            Self::Volume(id) | Self::Snapshot(id) | Self::Ephemeral(id) => id,
        }
    }

    /// Path of its disk in the directory of all volume files.
    pub(crate) fn disk_path(&self) -> PathBuf {
        self.relative_path().join(DISK)
    }

    /// Whether a path is that of a volume's disk, or of its emulated filesystem.
    pub(crate) fn is_data(path: &Path) -> bool {
        let name = |path: Option<&Path>| {
            path.and_then(|path| path.file_name()?.to_str())
                .map(str::to_owned)
        };
        let [part, folder] = [Some(path), path.parent().and_then(Path::parent)].map(name);
        matches!(part.as_deref(), Some(DISK | TREE))
            && matches!(folder.as_deref(), Some("volumes" | EPHEMERAL))
    }

    /// Path of its files in the directory of all volume files.
    pub(super) fn relative_path(&self) -> PathBuf {
        let folder = match self {
            Self::Volume(_) => "volumes",
            Self::Snapshot(_) => "snapshots",
            Self::Ephemeral(_) => EPHEMERAL,
        };
        Path::new(folder).join(file_name(self.id()))
    }
}

/// A file name for any text: letters, digits, `-`, `_` and inner dots unchanged, all other bytes as `%XX`; a
/// name that would be too long ends with a hash.
pub(crate) fn file_name(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            b'.' if index > 0 => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    if name.len() > LONGEST {
        name.truncate(LONGEST);
        // No other name contains a percent sign without two hexadecimal digits after it.
        name.push_str(&format!("%~{:032x}", hash(text)));
    }
    name
}

pub(super) fn hash(text: &str) -> u128 {
    let mut hasher = SipHasher24::new();
    std::hash::Hasher::write(&mut hasher, text.as_bytes());
    hasher.finish128().as_u128()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_harmless_short_and_all_different() {
        let long = "x".repeat(1000);
        let longer = format!("{long}y");
        let strange = "/".repeat(128);
        let texts = [
            "vol-0",
            "..",
            ".",
            "../../etc/passwd",
            "a/b",
            "a%2Fb",
            "é",
            "a\0b",
            &long,
            &longer,
            &strange,
            "",
        ];
        let names: BTreeSet<String> = texts.iter().map(|text| file_name(text)).collect();
        assert_eq!(names.len(), texts.len());
        for name in &names {
            assert!(
                !name.starts_with(UNFINISHED) && !name.contains(['/', '\0']),
                "{name}"
            );
            assert!(name.len() < 250, "{name}");
        }
        assert_eq!(file_name("vol-0"), "vol-0");
    }
}
