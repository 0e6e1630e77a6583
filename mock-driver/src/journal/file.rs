//! The file of JSON lines.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::line::Line;

/// The journal's file cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("--journal: cannot open {} for appending: its directory must exist and be writable", path.display())]
pub struct OpenError {
    path: PathBuf,
    source: io::Error,
}

/// The file, open for appending.
#[derive(Debug)]
pub(super) struct File {
    file: Mutex<fs::File>,
    path: PathBuf,
    failing: AtomicBool,
}

// === impl File ===

impl File {
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .map_err(|source| OpenError {
                path: path.to_owned(),
                source,
            })?;
        Ok(Self {
            file: Mutex::new(file),
            path: path.to_owned(),
            failing: AtomicBool::new(false),
        })
    }

    /// Writes a line with one call of write(2), so that lines are never interleaved.
    ///
    /// Blocks until the line is in the page cache, so that a caller finds it in the file after the response.
    pub(super) fn write(&self, line: &Line<'_>) {
        let mut text = serde_json::to_vec(line).expect("a journal line must be representable as JSON");
        text.push(b'\n');
        let written = crate::lock(&self.file).write_all(&text);
        match written {
            Ok(()) => self.failing.store(false, Ordering::Relaxed),
            Err(error) if !self.failing.swap(true, Ordering::Relaxed) => {
                tracing::error!(file = %self.path.display(), %error, "journal cannot be written, lines are lost");
            }
            Err(_) => {}
        }
    }
}
