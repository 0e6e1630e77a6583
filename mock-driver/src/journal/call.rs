//! One call, from its begin to its end.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use jiff::Timestamp;
use prost::Message;
use serde_json::Value;
use tonic::Code;

use csi_proto::Secrets;

use super::message::{Direction, RedactedMessage, Subject};
use super::{Journal, Outcome, Peer};

/// A call as it is kept: what is known of it so far.
#[derive(Debug)]
pub struct Call {
    /// Its number, from 1 on, in the order of arrival.
    pub number: u64,
    /// Its path on the wire.
    pub method: Cow<'static, str>,
    /// Who called.
    pub peer: Option<Peer>,
    /// When it arrived.
    pub start: Timestamp,
    pub(super) request: RedactedMessage,
    subject: Subject,
    fault: Mutex<Option<String>>,
    end: OnceLock<End>,
    late: OnceLock<LateResult>,
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

/// How the array's work ended after the client had left.
#[derive(Debug)]
pub(crate) struct LateResult {
    /// When.
    pub(crate) time: Timestamp,
    pub(crate) outcome: Outcome,
}

/// A call that is running. Dropped before its end, it is recorded as left by its client.
#[derive(Debug)]
pub(crate) struct CallRecord {
    work: WorkRecord,
    /// The request as the begin line has it.
    shown: Option<Value>,
    ended: bool,
    /// The array works on when the answer is out, and what comes of it is told late.
    apart: bool,
}

/// The array's side of a call: it outlives the record when the client leaves.
#[derive(Clone, Debug)]
pub(crate) struct WorkRecord {
    journal: Arc<Journal>,
    call: Arc<Call>,
    fate: Arc<Mutex<CallOutcomes>>,
}

/// How client and array, who part ways independently, tell one another.
#[derive(Debug, Default)]
struct CallOutcomes {
    client_left: bool,
    done: Option<Outcome>,
}

// === impl Call ===

impl Call {
    pub(super) fn new(
        number: u64,
        method: Cow<'static, str>,
        peer: Option<Peer>,
        start: Timestamp,
        request: RedactedMessage,
        subject: Subject,
    ) -> Self {
        Self {
            number,
            method,
            peer,
            start,
            request,
            subject,
            fault: Mutex::default(),
            end: OnceLock::new(),
            late: OnceLock::new(),
        }
    }

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

    /// What became of its work after its client had left.
    pub(crate) fn late(&self) -> Option<&LateResult> {
        self.late.get()
    }

    /// What its messages take in memory.
    pub(super) fn bytes(&self) -> usize {
        let response = self.end().and_then(|end| end.response.as_ref());
        self.request.len() + response.map_or(0, RedactedMessage::len)
    }
}

// === impl CallRecord ===

impl CallRecord {
    pub(super) fn new(journal: Arc<Journal>, call: Arc<Call>, shown: Option<Value>) -> Self {
        Self {
            work: WorkRecord {
                journal,
                call,
                fate: Arc::default(),
            },
            shown,
            ended: false,
            apart: false,
        }
    }

    /// The record of the work the array does for this call.
    pub(crate) fn work(&self) -> WorkRecord {
        self.work.clone()
    }

    /// Says that the answer does not wait for the array, and gives the record of the array's work.
    pub(crate) fn part(&mut self) -> WorkRecord {
        self.apart = true;
        self.work()
    }

    /// Names the fault rule that has a hand in the call.
    pub(crate) fn set_fault(&mut self, rule: &str) {
        let mut fault = self
            .work
            .call
            .fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *fault = Some(rule.to_owned());
        drop(fault);
        self.work.journal.touch();
    }

    /// Records the answer.
    pub(crate) fn end<M: Message + Secrets + Clone>(mut self, outcome: &Outcome, response: Option<&M>) {
        let response = response.map(|response| self.work.journal.renderer.keep(response));
        self.conclude(outcome.clone(), response);
    }

    /// Records an answer that is known as bytes only.
    pub(crate) fn end_wire(mut self, outcome: &Outcome, response: Option<&[u8]>) {
        let renderer = &self.work.journal.renderer;
        let method = &self.work.call.method;
        let response = response.map(|bytes| renderer.keep_wire(method, Direction::Response, bytes));
        self.conclude(outcome.clone(), response);
    }

    fn conclude(&mut self, outcome: Outcome, response: Option<RedactedMessage>) {
        self.ended = true;
        let WorkRecord { journal, call, .. } = &self.work;
        let end = End {
            time: journal.clock.now(),
            outcome,
            response,
        };
        if call.end.set(end).is_ok() {
            journal.ended(call, self.shown.as_ref());
        }
        if self.apart {
            self.work.leave();
        }
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let left = Outcome {
            code: Code::Cancelled,
            message: "the client left".to_owned(),
        };
        self.apart = true;
        self.conclude(left, None);
    }
}

// === impl WorkRecord ===

impl WorkRecord {
    /// Records how the array's work ended, should the client not hear of it.
    pub(crate) fn done(self, outcome: Outcome) {
        let late = {
            let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
            if fate.client_left {
                Some(outcome)
            } else {
                fate.done = Some(outcome);
                None
            }
        };
        if let Some(outcome) = late {
            self.late(outcome);
        }
    }

    /// The client is gone; what the array makes of the call is told late.
    fn leave(&self) {
        let done = {
            let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
            fate.client_left = true;
            fate.done.take()
        };
        if let Some(outcome) = done {
            self.late(outcome);
        }
    }

    fn late(&self, outcome: Outcome) {
        let late = LateResult {
            time: self.journal.clock.now(),
            outcome,
        };
        if self.call.late.set(late).is_ok() {
            self.journal.late(&self.call);
        }
    }
}
