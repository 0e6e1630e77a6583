//! The file of JSON lines.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde_json::Value;

use super::{Call, End, LateResult, Peer, text};
use crate::rpc::code;

/// Why a journal cannot be kept.
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

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(super) enum Line<'a> {
    Begin {
        call: u64,
        method: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        peer: Option<Peer>,
        start: String,
        request: &'a Value,
    },
    End {
        call: u64,
        method: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        peer: Option<Peer>,
        start: String,
        end: String,
        code: &'static str,
        message: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        fault: Option<String>,
        request: &'a Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        response: Option<&'a Value>,
    },
    Late {
        call: u64,
        method: &'a str,
        end: String,
        code: &'static str,
        message: &'a str,
    },
    Faults {
        time: String,
        file: &'a Path,
        rules: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        ids: Option<&'a [String]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a str>,
    },
}

// === impl Line ===

impl<'a> Line<'a> {
    pub(super) fn begin(call: &'a Call, request: &'a Value) -> Self {
        Self::Begin {
            call: call.number,
            method: &call.method,
            peer: call.peer,
            start: text(call.start),
            request,
        }
    }

    pub(super) fn end(call: &'a Call, end: &'a End, request: &'a Value, response: Option<&'a Value>) -> Self {
        Self::End {
            call: call.number,
            method: &call.method,
            peer: call.peer,
            start: text(call.start),
            end: text(end.time),
            code: code::name(end.outcome.code),
            message: &end.outcome.message,
            fault: call.fault(),
            request,
            response,
        }
    }

    pub(super) fn late(call: &'a Call, late: &'a LateResult) -> Self {
        Self::Late {
            call: call.number,
            method: &call.method,
            end: text(late.time),
            code: code::name(late.outcome.code),
            message: &late.outcome.message,
        }
    }
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

    /// One write for one line: readers of the file never see lines of two calls mixed up.
    ///
    /// This blocks for a copy into the page cache. That is wanted: a caller that has its answer
    /// finds the line in the file.
    pub(super) fn write(&self, line: &Line<'_>) {
        let mut text = serde_json::to_vec(line).expect("a journal line must be representable as JSON");
        text.push(b'\n');
        let written = self
            .file
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(&text);
        match written {
            Ok(()) => self.failing.store(false, Ordering::Relaxed),
            Err(error) if !self.failing.swap(true, Ordering::Relaxed) => {
                tracing::error!(file = %self.path.display(), %error, "journal cannot be written, lines are lost");
            }
            Err(_) => {}
        }
    }
}
