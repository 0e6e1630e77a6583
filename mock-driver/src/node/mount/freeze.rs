//! Filesystems that stand still while their disk is copied, so that the copy is whole.
//!
//! `fsfreeze` writes everything out and holds writers up until it is undone. Invariants:
//! - The call that froze a filesystem thaws it, also if the copy fails; a mark beside the disk tells
//!   the next start of a freeze that a killed process left.
//! - The filesystem on which the copies are made is never frozen: they would wait for themselves.
//! - It cannot be unmounted meanwhile, because then it could not be thawed.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::kernel;
use crate::node::exec::Program;

const FSFREEZE: Program = Program {
    name: "fsfreeze",
    package: "util-linux",
};

/// A filesystem that stands still for as long as this lives.
#[derive(Debug)]
pub(crate) struct Frozen {
    /// Open, so that it stays mounted and there is a way to it.
    root: File,
    path: PathBuf,
    mark: PathBuf,
}

// === impl Frozen ===

impl Frozen {
    /// Lets what is mounted at `path` stand still; none if nothing is, or if `media` lie on it.
    pub(super) fn begin(path: &Path, volume_files: &Path, mark: &Path) -> Result<Option<Self>, Error> {
        let Some(device) = kernel::device_at(path)? else {
            return Ok(None);
        };
        let volume_files = fs::metadata(volume_files).map_err(Error::io("look at", volume_files))?;
        if volume_files.dev() == device {
            return Ok(None);
        }
        let root = File::open(path).map_err(Error::io("open", path))?;
        fs::write(mark, path.as_os_str().as_encoded_bytes()).map_err(Error::io("write", mark))?;
        if let Err(error) = FSFREEZE.run(["--freeze", way(&root).as_str()], &[0]) {
            // Not ours to thaw: another process may have frozen it.
            forget(mark);
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
        thaw(&way(&self.root), &self.path, &self.mark);
    }
}

/// Undoes what a process left that was killed. Nothing to do without the mark.
pub(super) fn thaw_left(mark: &Path) {
    let Ok(path) = fs::read_to_string(mark) else {
        return;
    };
    tracing::info!(path, "thawing what was left frozen");
    thaw(&path, Path::new(&path), mark);
}

/// The mark goes last: a process that is killed in between leaves work for the next one.
fn thaw(way: &str, path: &Path, mark: &Path) {
    // 1 is what it says of a filesystem that is not frozen.
    if let Err(error) = FSFREEZE.run(["--unfreeze", way], &[0, 1]) {
        tracing::error!(path = %path.display(), error = crate::error_chain(&error), "cannot be thawed");
        return;
    }
    forget(mark);
}

/// The way to a filesystem's root, whatever is mounted over its path by now.
fn way(root: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), root.as_raw_fd())
}

fn forget(mark: &Path) {
    if let Err(error) = fs::remove_file(mark) {
        tracing::warn!(path = %mark.display(), %error, "cannot be removed");
    }
}
