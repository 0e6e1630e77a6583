//! Directories and files that survive a power failure, and locks of directories.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use serde::Serialize;

/// Creates a directory and its missing parents and syncs the parents, which contain the names; the last existing one each
/// time, because an earlier process may have ended before it did that.
pub(crate) fn create_dir_all(directory: &Path) -> io::Result<()> {
    create_and_flush(directory, sync_directory)
}

fn create_and_flush(directory: &Path, mut flush: impl FnMut(&Path) -> io::Result<()>) -> io::Result<()> {
    let missing: Vec<&Path> = directory
        .ancestors()
        .take_while(|above| !above.as_os_str().is_empty() && !above.exists())
        .collect();
    // Not flushed: the loop below does it.
    fs::create_dir_all(directory)?;
    for created in missing.iter().rev() {
        flush(parent(created))?;
    }
    if !missing.is_empty() {
        return Ok(());
    }
    match flush(parent(directory)) {
        // This process may not be allowed to read the parent of an existing directory.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        flushed => flushed,
    }
}

/// Writes a file atomically.
pub(crate) fn write_json(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let new = directory.join(format!("{name}.new"));
    let mut out = BufWriter::new(File::create(&new)?);
    serde_json::to_writer(&mut out, content)?;
    out.write_all(b"\n")?;
    out.into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()?;
    fs::rename(&new, directory.join(name))?;
    sync_directory(directory)
}

pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Takes an exclusive lock, which is held until the file is closed; `None` if another process has it. A symbolic link is
/// refused, because the lock would be in another directory.
pub(crate) fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn parent(directory: &Path) -> &Path {
    match directory.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        Some(_) => Path::new("."),
        None => directory,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn parents_of_created_directories_are_flushed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (directory, flushed) in [
            ("a", vec![""]),
            ("a", vec![""]),
            ("b/c/d", vec!["", "b", "b/c"]),
            ("b/c/e", vec!["b/c"]),
        ] {
            let mut seen: Vec<PathBuf> = Vec::new();
            create_and_flush(&root.join(directory), |parent| {
                seen.push(parent.to_owned());
                sync_directory(parent)
            })
            .unwrap();
            let flushed: Vec<_> = flushed.into_iter().map(|name| root.join(name)).collect();
            assert_eq!(
                seen.iter().collect::<Vec<_>>(),
                flushed.iter().collect::<Vec<_>>(),
                "{directory}"
            );
        }
    }

    #[test]
    fn parent_that_cannot_be_flushed_is_an_error_if_the_directory_is_new() {
        let root = tempfile::tempdir().unwrap();
        let denied = |_: &Path| Err(ErrorKind::PermissionDenied.into());
        create_and_flush(&root.path().join("a"), denied).unwrap_err();
        create_and_flush(&root.path().join("a"), denied).unwrap();
        create_and_flush(&root.path().join("a"), |_| Err(io::Error::other("disk"))).unwrap_err();
    }

    #[test]
    fn lock_is_exclusive_and_not_taken_through_a_link() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lock");
        let held = try_lock(&path).unwrap();
        assert!(held.is_some() && try_lock(&path).unwrap().is_none());
        std::os::unix::fs::symlink(&path, root.path().join("link")).unwrap();
        try_lock(&root.path().join("link")).unwrap_err();
    }
}
