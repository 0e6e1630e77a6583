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

pub(super) const EPHEMERAL: &str = "ephemeral";

/// A link to the target of an ephemeral volume.
pub(super) const TARGET: &str = "target";

/// Prefix of the names of unfinished files; no id maps to such a name.
pub(super) const UNFINISHED: char = '.';

/// The owner of volume files, by its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileId {
    Volume(String),
    Snapshot(String),
    /// A volume of a pod. Nodes share the directory, and each removes only its own.
    Ephemeral {
        node: String,
        /// The name of its files, made by `file_name`.
        name: String,
    },
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

    /// The id of the owner; for an ephemeral volume, the name of its files.
    pub fn id(&self) -> &str {
        match self {
            Self::Volume(id) | Self::Snapshot(id) | Self::Ephemeral { name: id, .. } => id,
        }
    }

    pub(crate) fn disk_path(&self) -> PathBuf {
        self.relative_path().join(DISK)
    }

    /// Whether a path is that of a volume's disk, or of its emulated filesystem.
    pub(crate) fn is_data(path: &Path) -> bool {
        let is_in = |height, folder| {
            path.ancestors()
                .nth(height)
                .is_some_and(|above| above.ends_with(folder))
        };
        (path.ends_with(DISK) || path.ends_with(TREE)) && (is_in(2, "volumes") || is_in(3, EPHEMERAL))
    }

    /// Path of its files in the directory of all volume files.
    pub(super) fn relative_path(&self) -> PathBuf {
        match self {
            Self::Volume(id) => Path::new("volumes").join(file_name(id)),
            Self::Snapshot(id) => Path::new("snapshots").join(file_name(id)),
            Self::Ephemeral { node, name } => Path::new(EPHEMERAL).join(file_name(node)).join(name),
        }
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

fn hash(text: &str) -> u128 {
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
