use std::borrow::Cow;
use std::sync::{Mutex, OnceLock};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tonic::Status;
use utoipa::ToSchema;

use super::message::{RedactedMessage, Subject};

/// A calling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Caller)]
pub struct Peer {
    /// Process id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// User id.
    pub uid: u32,
}

#[derive(Debug)]
pub(crate) struct Call {
    /// Its number, from 1, in the order of arrival.
    pub(crate) number: u64,
    pub(crate) method: Cow<'static, str>,
    pub(crate) peer: Option<Peer>,
    pub(crate) start: Timestamp,
    /// The start on the clock of durations, which does not step.
    pub(super) begun: Instant,
    pub(super) request: RedactedMessage,
    /// Read from the request when it is asked for.
    pub(super) subject: OnceLock<Subject>,
    /// The node on which the call runs, for a request without a node id.
    pub(super) on_node: String,
    pub(super) fault: Mutex<Option<String>>,
    pub(super) end: OnceLock<End>,
    pub(super) operation: Mutex<Operation>,
    pub(super) late: OnceLock<End>,
}

/// The operation of a call. It outlives the call if the client disconnects or if the response does not wait for it.
#[derive(Debug, Default)]
pub(super) enum Operation {
    #[default]
    Running,
    Done(Status),
    /// The call has ended before it.
    CallEnded,
}

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) time: Timestamp,
    pub(crate) status: Status,
    pub(super) response: Option<RedactedMessage>,
}

// === impl Call ===

impl Call {
    /// The volume or snapshot id of the request, or the name of the object to create.
    pub(crate) fn volume(&self) -> &str {
        &self.subject().volume
    }

    pub(crate) fn node(&self) -> &str {
        match self.subject().node.as_str() {
            "" => &self.on_node,
            node => node,
        }
    }

    /// The present time, from which the duration until now follows.
    pub(crate) fn now(&self) -> Timestamp {
        self.start + self.begun.elapsed()
    }

    fn subject(&self) -> &Subject {
        self.subject.get_or_init(|| self.request.subject())
    }

    pub(crate) fn fault(&self) -> Option<String> {
        crate::lock(&self.fault).clone()
    }

    pub(crate) fn end(&self) -> Option<&End> {
        self.end.get()
    }

    /// The result of its operation, if that ended after the call.
    pub(crate) fn late(&self) -> Option<&End> {
        self.late.get()
    }

    pub(super) fn bytes(&self) -> usize {
        let response = self.end().and_then(|end| end.response.as_ref());
        self.request.len() + response.map_or(0, RedactedMessage::len)
    }
}
