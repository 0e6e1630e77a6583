//! Mount options of CSI: some are flags of mount(2), the rest is the filesystem's data.

use std::ffi::CString;

use rustix::mount::MountFlags;

use super::filesystem::Filesystem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) flags: MountFlags,
    data: Vec<String>,
}

// === impl Options ===

impl Options {
    /// Parses options; each may be a list separated by commas.
    pub(super) fn read(given: &[String]) -> Self {
        let mut options = Self {
            flags: MountFlags::empty(),
            data: Vec::new(),
        };
        let words = given.iter().flat_map(|text| text.split(','));
        for word in words.map(str::trim).filter(|word| !word.is_empty()) {
            match flag(word) {
                Some((flag, true)) => options.flags |= flag,
                Some((flag, false)) => options.flags &= !flag,
                None if word == "defaults" => {}
                None => options.data.push(word.to_owned()),
            }
        }
        options
    }

    /// Adds the options that the filesystem needs on such a device.
    pub(super) fn add_for(&mut self, fs: Filesystem, writable: bool) {
        if fs == Filesystem::Xfs {
            // A clone has the UUID of its source, and both may be mounted on one node.
            self.data.push("nouuid".to_owned());
        }
        if !writable {
            self.flags |= MountFlags::RDONLY;
            // The log cannot be replayed on a read-only device.
            match fs {
                Filesystem::Xfs => self.data.push("norecovery".to_owned()),
                Filesystem::Ext4 | Filesystem::Ext3 => self.data.push("noload".to_owned()),
                Filesystem::Ext2 => {}
            }
        }
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.flags.contains(MountFlags::RDONLY)
    }

    /// The filesystem's data; `None` if it contains a NUL.
    pub(super) fn data(&self) -> Option<CString> {
        CString::new(self.data.join(",")).ok()
    }
}

fn flag(word: &str) -> Option<(MountFlags, bool)> {
    Some(match word {
        "ro" => (MountFlags::RDONLY, true),
        "rw" => (MountFlags::RDONLY, false),
        "nosuid" => (MountFlags::NOSUID, true),
        "suid" => (MountFlags::NOSUID, false),
        "nodev" => (MountFlags::NODEV, true),
        "dev" => (MountFlags::NODEV, false),
        "noexec" => (MountFlags::NOEXEC, true),
        "exec" => (MountFlags::NOEXEC, false),
        "sync" => (MountFlags::SYNCHRONOUS, true),
        "async" => (MountFlags::SYNCHRONOUS, false),
        "dirsync" => (MountFlags::DIRSYNC, true),
        "noatime" => (MountFlags::NOATIME, true),
        "atime" => (MountFlags::NOATIME, false),
        "nodiratime" => (MountFlags::NODIRATIME, true),
        "diratime" => (MountFlags::NODIRATIME, false),
        "relatime" => (MountFlags::RELATIME, true),
        "strictatime" => (MountFlags::STRICTATIME, true),
        "lazytime" => (MountFlags::LAZYTIME, true),
        "nosymfollow" => (MountFlags::NOSYMFOLLOW, true),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Options {
        Options::read(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_sorted_into_flags_and_data() {
        let options = read(&["ro,noexec", "context=\"a:b\"", "defaults", "data=ordered", "exec"]);
        assert_eq!(options.flags, MountFlags::RDONLY, "the last word on exec counts");
        assert!(options.is_read_only());
        assert_eq!(
            options.data().unwrap().to_str().unwrap(),
            "context=\"a:b\",data=ordered"
        );
    }

    #[test]
    fn read_only_devices_replay_nothing() {
        for (fs, data) in [
            (Filesystem::Ext4, "noload"),
            (Filesystem::Xfs, "nouuid,norecovery"),
            (Filesystem::Ext2, ""),
        ] {
            let mut options = read(&[]);
            options.add_for(fs, false);
            assert!(options.is_read_only());
            assert_eq!(options.data().unwrap().to_str().unwrap(), data);
        }
    }
}
