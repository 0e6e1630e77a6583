//! The journal of calls: a file of JSON lines that tells what was asked, what was answered and when.
//!
//! Each call has a line with `"event":"begin"` when it arrives and one with `"event":"end"` when its
//! answer is known; the second one repeats the request, so it can be read alone. A call whose client
//! left ends as `CANCELLED`; if the array finished its work all the same, a line `"event":"late"`
//! says with which result. Each load of the fault rules is a line `"event":"faults"`.
//!
//! Invariants:
//! - a line is in the file before the client can see the answer it tells of;
//! - no secret value is ever written: in its place stands a hash that only this process can make,
//!   so that equal secrets can be told from different ones.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use prost::Message;
use serde::Serialize;
use serde_json::Value;
use tonic::Code;

use csi_proto::Secrets;

use self::message::Renderer;

pub use self::call::{CallRecord, WorkRecord};

mod call;
mod message;

/// Where calls are recorded.
#[derive(Debug)]
pub struct Journal {
    file: Mutex<File>,
    path: PathBuf,
    renderer: Renderer,
    calls: AtomicU64,
    failing: AtomicBool,
}

/// Why a journal cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error("--journal: cannot open {} for appending: its directory must exist and be writable", path.display())]
pub struct OpenError {
    path: PathBuf,
    source: io::Error,
}

/// Who calls, as the socket tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its process.
    pub pid: Option<i32>,
    /// Its user.
    pub uid: u32,
}

/// The answer of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its code.
    pub code: Code,
    /// Its text; empty with `Ok`.
    pub message: String,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line<'a> {
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
        fault: Option<&'a str>,
        request: &'a Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        response: Option<Value>,
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

// === impl Journal ===

impl Journal {
    /// Opens a file for appending. `key` hides secrets and must be known to nobody.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: &Path, key: [u8; 16]) -> Result<Self, OpenError> {
        let file = OpenOptions::new()
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
            renderer: Renderer::new(key),
            calls: AtomicU64::new(0),
            failing: AtomicBool::new(false),
        })
    }

    /// Records that a call arrived. The record must be ended; if it is dropped, the client left.
    pub fn begin<M: Message + Secrets + Clone>(
        self: &Arc<Self>,
        method: &'static str,
        peer: Option<Peer>,
        request: &M,
    ) -> CallRecord {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let request = self.renderer.json(request);
        let start = now();
        self.write(&Line::Begin {
            call,
            method,
            peer,
            start: start.clone(),
            request: &request,
        });
        CallRecord::new(self.clone(), call, method, peer, start, request)
    }

    /// Records that rules came into force.
    pub fn faults_loaded(&self, file: &Path, ids: &[String]) {
        self.write(&Line::Faults {
            time: now(),
            file,
            rules: ids.len(),
            ids: Some(ids),
            error: None,
        });
    }

    /// Records that a file was refused; `rules` older ones stay in force.
    pub fn faults_rejected(&self, file: &Path, rules: usize, error: &str) {
        self.write(&Line::Faults {
            time: now(),
            file,
            rules,
            ids: None,
            error: Some(error),
        });
    }

    /// One write for one line: readers of the file never see lines of two calls mixed up.
    ///
    /// This blocks for a copy into the page cache. That is wanted: a caller that has its answer
    /// finds the line in the file.
    fn write(&self, line: &Line<'_>) {
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

/// RFC 3339 in UTC, always six digits, so that texts sort like times.
fn now() -> String {
    format!("{:.6}", Timestamp::now())
}
