//! A call that the journal keeps.

use std::borrow::Cow;
use std::sync::{Mutex, OnceLock, PoisonError};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tonic::Code;

use super::message::{RedactedMessage, Subject};

/// The calling process, by the socket's credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Process id.
    pub pid: Option<i32>,
    /// User id.
    pub uid: u32,
}

/// The response of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its code.
    pub code: Code,
    /// Its text; empty with `Ok`.
    pub message: String,
}

/// A call as it is kept: what is known of it so far.
#[derive(Debug)]
pub struct Call {
    /// Its number, from 1 on, in the order of arrival.
    pub number: u64,
    /// gRPC path.
    pub method: Cow<'static, str>,
    /// Who called.
    pub peer: Option<Peer>,
    /// Start time.
    pub start: Timestamp,
    pub(super) request: RedactedMessage,
    pub(super) subject: Subject,
    pub(super) fault: Mutex<Option<String>>,
    pub(super) end: OnceLock<End>,
    pub(super) late: OnceLock<End>,
}

/// How a call ended.
#[derive(Debug)]
pub struct End {
    /// When.
    pub time: Timestamp,
    /// With which answer.
    pub outcome: Outcome,
    pub(super) response: Option<RedactedMessage>,
}

// === impl Call ===

impl Call {
    /// The method without its service.
    pub(crate) fn short_method(&self) -> &str {
        self.method.rsplit('/').next().unwrap_or_default()
    }

    /// The volume (or snapshot) the request names by id, or the name of what it wants created.
    pub fn volume(&self) -> &str {
        &self.subject.volume
    }

    /// The node the request names.
    pub fn node(&self) -> &str {
        &self.subject.node
    }

    /// The fault rule that has a hand in the call.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How it ended, if it has.
    pub fn end(&self) -> Option<&End> {
        self.end.get()
    }

    /// How its operation ended after the client disconnected.
    pub(crate) fn late(&self) -> Option<&End> {
        self.late.get()
    }

    /// What its messages take in memory.
    pub(super) fn bytes(&self) -> usize {
        let response = self.end().and_then(|end| end.response.as_ref());
        self.request.len() + response.map_or(0, RedactedMessage::len)
    }
}
