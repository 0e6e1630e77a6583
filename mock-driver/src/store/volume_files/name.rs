//! File names for ids, which may be any text: never a path, never too long, never the same for two ids.

use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher24};

use super::FileId;

/// The most bytes of an id that stands in a file name as it is, or nearly so.
const LONGEST: usize = 200;

/// The folder of volumes that live as long as their pods.
pub(super) const EPHEMERAL: &str = "ephemeral";

/// Begins the names of things that are not finished; no id becomes such a name.
pub(super) const UNFINISHED: char = '.';

/// The folder of the medium's kind.
fn folder(file_id: &FileId) -> &'static str {
    match file_id {
        FileId::Volume(_) => "volumes",
        FileId::Snapshot(_) => "snapshots",
        FileId::Ephemeral(_) => EPHEMERAL,
    }
}

/// Where a medium is in the directory of all media.
pub(super) fn relative_path(file_id: &FileId) -> PathBuf {
    Path::new(folder(file_id)).join(file_name(file_id.id()))
}

/// A file name for any text: letters, digits, `-`, `_` and inner dots as they are, all else as `%XX`;
/// a text that gets too long that way is told apart by a hash.
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
        let mut hasher = SipHasher24::new();
        std::hash::Hasher::write(&mut hasher, text.as_bytes());
        let mark = hasher.finish128().as_u128();
        name.truncate(LONGEST);
        // A percent sign that no two hexadecimal digits follow is in no other name.
        name.push_str(&format!("%~{mark:032x}"));
    }
    name
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
