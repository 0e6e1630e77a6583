//! Freezes filesystems while their disk is copied, so that the copy is consistent.
//!
//! `fsfreeze` flushes and blocks writers until the filesystem is thawed. Invariants:
//! - The call that froze a filesystem thaws it, also if the copy fails; by a mark beside the disk the next start finds
//!   a freeze that a killed process left.
//! - The filesystem that has the copies is never frozen: they would deadlock.
//! - It cannot be unmounted meanwhile, because then it could not be thawed.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::kernel;
use crate::node::exec::Program;
use crate::store::PathError;

const FSFREEZE: Program = Program {
    name: "fsfreeze",
    package: "util-linux",
};

/// A frozen filesystem. Dropping this thaws it.
#[derive(Debug)]
pub(crate) struct Frozen {
    /// Open, so that it stays mounted and reachable.
    root: File,
    path: PathBuf,
    mark: PathBuf,
}

// === impl Frozen ===

impl Frozen {
    /// Freezes the filesystem mounted at `path`; none if nothing is mounted, or if it has `volume_files`.
    pub(super) fn begin(path: &Path, volume_files: &Path, mark: &Path) -> Result<Option<Self>, Error> {
        let Some(device) = kernel::device_at(path)? else {
            return Ok(None);
        };
        let volume_files = fs::metadata(volume_files).map_err(PathError::of("stat", volume_files))?;
        if volume_files.dev() == device {
            return Ok(None);
        }
        let root = File::open(path).map_err(PathError::of("open", path))?;
        fs::write(mark, path.as_os_str().as_encoded_bytes()).map_err(PathError::of("write", mark))?;
        if let Err(error) = FSFREEZE.run(["--freeze", proc_path(&root).as_str()], &[0]) {
            // Not ours to thaw: another process may have frozen it.
            remove_mark(mark);
            return Err(error.into());
        }
        Ok(Some(Self {
            root,
            path: path.to_owned(),
            mark: mark.to_owned(),
        }))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        thaw(&proc_path(&self.root), &self.path, &self.mark);
    }
}

/// Thaws a filesystem that a killed process left frozen, if there is a mark.
pub(super) fn thaw_left(mark: &Path) {
    let Ok(path) = fs::read_to_string(mark) else {
        return;
    };
    tracing::info!(path, "thawing a filesystem that an earlier process left frozen");
    thaw(&path, Path::new(&path), mark);
}

/// Removes the mark last, so that the next start repeats a thaw that was interrupted.
fn thaw(root: &str, path: &Path, mark: &Path) {
    // Status 1: the filesystem is not frozen.
    if let Err(error) = FSFREEZE.run(["--unfreeze", root], &[0, 1]) {
        tracing::error!(path = %path.display(), error = crate::error_chain(&error), "cannot thaw the filesystem");
        return;
    }
    remove_mark(mark);
}

/// A path to the filesystem's root that works even if something is mounted over its mount point.
fn proc_path(root: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), root.as_raw_fd())
}

fn remove_mark(mark: &Path) {
    if let Err(error) = fs::remove_file(mark) {
        tracing::warn!(path = %mark.display(), %error, "cannot remove the freeze mark");
    }
}
