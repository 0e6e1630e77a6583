//! A loop device's backing file, by numbers.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;

/// A file by device and inode number, independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackingFileId {
    /// The numbers of the device of its filesystem.
    pub(super) major: u32,
    pub(super) minor: u32,
    /// Not reused while a loop device holds the file.
    pub(super) inode: u64,
}

// === impl BackingFileId ===

impl BackingFileId {
    pub(super) fn of(file: &Path) -> io::Result<Self> {
        let meta = std::fs::metadata(file)?;
        Ok(Self {
            major: rustix::fs::major(meta.dev()),
            minor: rustix::fs::minor(meta.dev()),
            inode: meta.ino(),
        })
    }
}

impl fmt::Display for BackingFileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.major, self.minor, self.inode)
    }
}

impl FromStr for BackingFileId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let mut numbers = text.split(':');
            let origin = Self {
                major: numbers.next()?.parse().ok()?,
                minor: numbers.next()?.parse().ok()?,
                inode: numbers.next()?.parse().ok()?,
            };
            numbers.next().is_none().then_some(origin)
        };
        read().ok_or("must be major:minor:inode")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_as_it_is_written() {
        let origin = BackingFileId::of(Path::new("/dev/null")).unwrap();
        assert_eq!(origin.to_string().parse(), Ok(origin));
        for wrong in ["", "1:2", "1:2:3:4", "a:2:3"] {
            wrong.parse::<BackingFileId>().unwrap_err();
        }
    }
}
