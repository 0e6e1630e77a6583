//! Copies the files of an emulated filesystem as a copy of a disk has them: with owner, mode, times, extended attributes and
//! hard links.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::copy::go_on;

struct TreeCopy<'a> {
    stop: &'a CancellationToken,
    /// The copies of files with several names, by inode.
    linked: HashMap<u64, PathBuf>,
    copied: u64,
}

/// Copies a directory and counts bytes; a link is copied, never followed.
pub(super) fn copy_tree(from: &Path, to: &Path, stop: &CancellationToken) -> io::Result<u64> {
    let mut copy = TreeCopy {
        stop,
        linked: HashMap::new(),
        copied: 0,
    };
    copy.directory(from, to)?;
    Ok(copy.copied)
}

// === impl TreeCopy ===

impl TreeCopy<'_> {
    fn directory(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let meta = fs::symlink_metadata(from)?;
        let entries = fs::read_dir(from)?;
        fs::create_dir(to)?;
        for entry in entries {
            go_on(self.stop)?;
            let entry = entry?;
            match self.entry(&entry.path(), &to.join(entry.file_name())) {
                // The volume's user has removed the file: a copy of a volume in use contains each concurrent change or not.
                Err(error) if error.kind() == ErrorKind::NotFound && to.is_dir() => {}
                copied => copied?,
            }
        }
        copy_metadata(from, to, &meta)
    }

    fn entry(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let meta = fs::symlink_metadata(from)?;
        if meta.is_dir() {
            return self.directory(from, to);
        }
        if meta.nlink() > 1
            && let Some(copy) = self.linked.get(&meta.ino())
        {
            return fs::hard_link(copy, to);
        }
        if meta.is_symlink() {
            symlink(fs::read_link(from)?, to)?;
        } else if meta.is_file() {
            self.copied += fs::copy(from, to)?;
        } else {
            // A pipe, a socket or a device.
            let kind = FileType::from_raw_mode(meta.mode());
            rustix::fs::mknodat(
                CWD,
                to,
                kind,
                Mode::from_raw_mode(meta.mode() & 0o7777),
                meta.rdev(),
            )?;
        }
        copy_metadata(from, to, &meta)?;
        if meta.nlink() > 1 {
            self.linked.insert(meta.ino(), to.to_owned());
        }
        Ok(())
    }
}

/// Copies owner, mode, extended attributes and times, in an order in which none changes another.
fn copy_metadata(from: &Path, to: &Path, meta: &Metadata) -> io::Result<()> {
    match lchown(to, Some(meta.uid()), Some(meta.gid())) {
        // An unprivileged driver's files, and those of its pods, are its user's.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
        changed => changed?,
    }
    if !meta.is_symlink() {
        fs::set_permissions(to, fs::Permissions::from_mode(meta.mode() & 0o7777))?;
    }
    copy_attributes(from, to)?;
    let time = |seconds, nanoseconds| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    let times = Timestamps {
        last_access: time(meta.atime(), meta.atime_nsec()),
        last_modification: time(meta.mtime(), meta.mtime_nsec()),
    };
    Ok(rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Copies the extended attributes that this process may read and write.
fn copy_attributes(from: &Path, to: &Path) -> io::Result<()> {
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::llistxattr(from, &mut names) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut value = vec![0; 64 << 10];
    for name in names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let copied = rustix::fs::lgetxattr(from, name, &mut value)
            .and_then(|length| rustix::fs::lsetxattr(to, name, &value[..length], XattrFlags::empty()));
        match copied {
            // Of the system, or removed meanwhile.
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NODATA) => {}
            copied => copied?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_name_of_a_file_that_could_not_be_copied_is_copied() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("a"), "text").unwrap();
        fs::hard_link(path("a"), path("b")).unwrap();
        fs::create_dir(path("to")).unwrap();
        let mut copy = TreeCopy {
            stop: &CancellationToken::new(),
            linked: HashMap::new(),
            copied: 0,
        };
        // As if the file had vanished meanwhile.
        let error = copy.entry(&path("a"), &path("missing/a")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        copy.entry(&path("b"), &path("to/b")).unwrap();
        copy.entry(&path("a"), &path("to/a")).unwrap();
        assert_eq!(fs::read_to_string(path("to/b")).unwrap(), "text");
        assert_eq!(fs::metadata(path("to/a")).unwrap().nlink(), 2);
    }
}
