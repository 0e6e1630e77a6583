//! The records of running calls.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use csi_proto::Secrets;
use prost::Message;
use serde_json::Value;
use tonic::Code;

use super::call::{Call, End, Outcome, Peer};
use super::line::Line;
use super::message::{Direction, RedactedMessage};
use super::{Event, Journal};

/// A running call. If it is dropped before its end, its client has left.
#[derive(Debug)]
pub(crate) struct CallRecord {
    work: WorkRecord,
    /// The request in the begin line.
    shown: Option<Value>,
    ended: bool,
    /// The operation continues after the response, and its result is recorded as late.
    apart: bool,
}

/// The operation of a call, which outlives the record if the client leaves.
#[derive(Clone, Debug)]
pub(crate) struct WorkRecord {
    journal: Arc<Journal>,
    call: Arc<Call>,
    fate: Arc<Mutex<CallOutcomes>>,
}

/// Shared state of a call record and its operation: either may end first.
#[derive(Debug, Default)]
struct CallOutcomes {
    client_left: bool,
    done: Option<Outcome>,
}

// === impl Journal ===

impl Journal {
    /// Records the begin of a call. The caller must end the record; a dropped record means that the client left.
    pub(crate) fn begin<M: Message + Secrets + Clone>(
        self: &Arc<Self>,
        method: &'static str,
        peer: Option<Peer>,
        request: &M,
    ) -> CallRecord {
        let request = self.renderer.keep(request);
        self.begin_kept(method.into(), peer, request)
    }

    /// Records the begin of a call with an encoded message for another driver. Messages other than CSI's are counted and not
    /// shown, because they may contain anything.
    pub(crate) fn begin_wire(
        self: &Arc<Self>,
        method: &str,
        peer: Option<Peer>,
        request: &[u8],
    ) -> CallRecord {
        let request = self.renderer.keep_wire(method, Direction::Request, request);
        self.begin_kept(method.to_owned().into(), peer, request)
    }

    fn begin_kept(
        self: &Arc<Self>,
        method: Cow<'static, str>,
        peer: Option<Peer>,
        request: RedactedMessage,
    ) -> CallRecord {
        let call = Arc::new(Call {
            number: self.calls.fetch_add(1, Ordering::Relaxed) + 1,
            method,
            peer,
            start: self.clock.now(),
            subject: self.renderer.subject(&request),
            request,
            fault: Mutex::default(),
            end: OnceLock::new(),
            late: OnceLock::new(),
        });
        let shown = self.file.as_ref().map(|file| {
            let shown = self.renderer.json(&call.request);
            file.write(&Line::begin(&call, &shown));
            shown
        });
        self.memory().begin(call.clone());
        self.publish(|| Event::Begin(call.clone()));
        CallRecord {
            work: WorkRecord {
                journal: self.clone(),
                call,
                fate: Arc::default(),
            },
            shown,
            ended: false,
            apart: false,
        }
    }
}

// === impl CallRecord ===

impl CallRecord {
    /// The record of the call's operation.
    pub(crate) fn work(&self) -> WorkRecord {
        self.work.clone()
    }

    /// Marks that the response does not wait for the operation, and returns the operation's record.
    pub(crate) fn part(&mut self) -> WorkRecord {
        self.apart = true;
        self.work()
    }

    /// Sets the fault rule that affects the call.
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

    /// Records the response.
    pub(crate) fn end<M: Message + Secrets + Clone>(mut self, outcome: Outcome, response: Option<&M>) {
        let response = response.map(|response| self.work.journal.renderer.keep(response));
        self.conclude(outcome, response);
    }

    /// Records an encoded response.
    pub(crate) fn end_wire(mut self, outcome: Outcome, response: Option<&[u8]>) {
        let renderer = &self.work.journal.renderer;
        let method = &self.work.call.method;
        let response = response.map(|bytes| renderer.keep_wire(method, Direction::Response, bytes));
        self.conclude(outcome, response);
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
    /// Records the result of the operation if the client has left.
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

    /// The client has left; the operation's result is recorded as late.
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
        let late = End {
            time: self.journal.clock.now(),
            outcome,
            response: None,
        };
        if self.call.late.set(late).is_ok() {
            self.journal.late(&self.call);
        }
    }
}
