//! The journal: requests, responses and times of all calls.
//!
//! It has four outputs, each only if configured: a file of JSON lines, the last calls in memory for the admin API
//! (`Journal::read`, `Journal::wait`, `Journal::subscribe`), a line in the log, and `gRPCCall:` lines in the log, which the
//! parser of Kubernetes' e2e suite reads.
//!
//! In the file each call has a line with `"event":"begin"` when it arrives and one with `"event":"end"` when it ends, which
//! repeats the request. A call whose client disconnects or cancels it ends as `CANCELLED`; if the array completes its
//! operation nevertheless, a line with `"event":"late"` has its result. Each load of the fault rules is a line with
//! `"event":"faults"`, and `"event":"lost"` says how many lines are missing because the file was stalled or full.
//!
//! Invariants:
//! - a call has ended in every output before its client can see the response, unless the file is stalled or full; the log
//!   follows;
//! - secrets, and a pod's tokens in `volume_context`, are never stored: a keyed hash of this process replaces each, so that
//!   equal secrets can be recognized (unless `JournalConfig::show_secrets` is set);
//! - memory is bounded by calls and by bytes; messages are stored encoded and converted to JSON when they are read, so that
//!   recording costs a call little.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{broadcast, watch};

use crate::journal::clock::Clock;

use self::file::File;
use self::message::Renderer;

pub(crate) use self::call::Call;
pub use self::call::Peer;
pub use self::file::OpenError;
pub use self::line::Line;
pub(crate) use self::line::text;
pub(crate) use self::memory::{Cursor, Filter, Gap, Memory};
pub(crate) use self::message::{Direction, RedactedMessage, has_volume};
pub(crate) use self::record::CallRecord;

mod call;
pub mod clock;
mod file;
mod grpc_call;
mod line;
mod memory;
mod message;
mod record;

/// Maximum number of events a subscriber can lag behind before it loses some.
const EVENTS_AHEAD: usize = 1024;

/// The outputs of a journal besides its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalConfig {
    /// Maximum number of ended calls in memory; 0 without readers.
    pub kept: usize,
    /// Size at which the file is rotated; 0 means unlimited.
    pub(crate) max_file_bytes: u64,
    pub(crate) call_lines: bool,
    pub(crate) grpc_call_lines: bool,
    /// Whether secrets are shown. For tests with made-up secrets.
    pub(crate) show_secrets: bool,
}

#[derive(Debug)]
pub(crate) struct Journal {
    file: Option<File>,
    pub(crate) renderer: Renderer,
    call_lines: bool,
    grpc_call_lines: bool,
    calls: AtomicU64,
    /// Whether anything reads the calls in memory.
    is_read: bool,
    memory: Mutex<Memory>,
    events: broadcast::Sender<Event>,
    revision: watch::Sender<u64>,
    clock: Clock,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Begin(Arc<Call>),
    End(Arc<Call>),
    /// The operation of a call completed after its client disconnected.
    Late(Arc<Call>),
}

// === impl JournalConfig ===

impl JournalConfig {
    pub(crate) fn any(self) -> bool {
        self.kept > 0 || self.call_lines || self.grpc_call_lines
    }
}

// === impl Journal ===

impl Journal {
    /// Opens the file, if one is configured, for appending. `key` hides secrets and must be random.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn open(
        file: Option<&Path>,
        config: JournalConfig,
        key: [u8; 16],
        clock: Clock,
    ) -> Result<Self, OpenError> {
        Ok(Self {
            file: file
                .map(|file| File::open(file, config.max_file_bytes, clock.clone()))
                .transpose()?,
            renderer: Renderer::new(if config.show_secrets { None } else { Some(key) }),
            call_lines: config.call_lines,
            grpc_call_lines: config.grpc_call_lines,
            calls: AtomicU64::new(0),
            is_read: config.kept > 0,
            memory: Mutex::new(Memory::new(config.kept)),
            events: broadcast::Sender::new(EVENTS_AHEAD),
            revision: watch::Sender::new(0),
            clock,
        })
    }

    /// Records the number of rules after a file was loaded, with their ids, or refused.
    pub(crate) fn faults_loaded(&self, source: &Path, rules: usize, loaded: Result<&[String], &str>) {
        if let Some(file) = &self.file {
            file.write(&Line::Faults {
                time: self.clock.now(),
                file: source.into(),
                rules,
                ids: loaded.ok().map(Into::into),
                error: loaded.err().map(Into::into),
            });
        }
        self.touch();
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Memory) -> T) -> T {
        read(&self.memory())
    }

    /// Waits until `found` returns a value. It is called after every event, with the journal locked; a `Cursor` keeps it from
    /// reading all calls each time.
    ///
    /// # Cancellation
    /// Safe.
    pub(crate) async fn wait<T>(&self, mut found: impl FnMut(&Memory) -> Option<T>) -> T {
        let mut revision = self.revision.subscribe();
        loop {
            revision.mark_unchanged();
            if let Some(found) = self.read(&mut found) {
                return found;
            }
            if revision.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    pub(crate) fn revision(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Notifies the watchers of the revision of a change other than a call.
    pub(crate) fn touch(&self) {
        self.revision.send_modify(|revision| *revision += 1);
    }

    /// Returns to the state after the start, and forgets in-flight calls. The file is kept.
    pub(crate) fn reset(&self) {
        self.memory().reset();
        self.touch();
    }

    /// Clears finished calls from memory. In-flight calls, metrics and the file are kept.
    pub(crate) fn clear(&self) {
        self.memory().clear();
        self.touch();
    }

    /// Waits until the file has all lines, unless it is stalled.
    pub(crate) fn flush(&self, limit: Duration) {
        if let Some(file) = &self.file {
            file.flush(limit);
        }
    }

    /// Number of lines that the file lacks because it was stalled or full.
    pub(crate) fn lost_lines(&self) -> u64 {
        self.file.as_ref().map_or(0, File::lost_lines)
    }

    /// Whether anything shows the messages of calls.
    pub(crate) fn shows_messages(&self) -> bool {
        self.is_read
            || self.file.is_some()
            || self.grpc_call_lines
            || tracing::enabled!(tracing::Level::TRACE)
    }

    pub(crate) fn request(&self, call: &Call) -> Value {
        self.renderer.json(&call.request)
    }

    /// The request with all its fields, also those at their default value.
    pub(crate) fn full_request(&self, call: &Call) -> Value {
        self.renderer.full_json(&call.request)
    }

    pub(crate) fn response(&self, call: &Call) -> Option<Value> {
        let response = call.end()?.response.as_ref()?;
        Some(self.renderer.json(response))
    }

    fn publish(&self, event: Event) {
        // Fails without subscribers.
        self.events.send(event).ok();
        self.touch();
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        crate::lock(&self.memory)
    }
}

#[cfg(test)]
mod tests;
