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

/// A call that is running. Dropped before its end, it is recorded as left by its client.
#[derive(Debug)]
pub(crate) struct CallRecord {
    work: WorkRecord,
    /// The request as the begin line has it.
    shown: Option<Value>,
    ended: bool,
    /// The array works on after the answer, and its result is recorded late.
    apart: bool,
}

/// The array's side of a call: it outlives the record when the client leaves.
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
    /// Records that a call arrived. The record must be ended; if it is dropped, the client left.
    pub(crate) fn begin<M: Message + Secrets + Clone>(
        self: &Arc<Self>,
        method: &'static str,
        peer: Option<Peer>,
        request: &M,
    ) -> CallRecord {
        let request = self.renderer.keep(request);
        self.begin_kept(method.into(), peer, request)
    }

    /// Records that a call arrived whose message is known as bytes only, on their way to another
    /// driver. What is no CSI message is counted and not shown: it may hold anything.
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
    pub(crate) fn end<M: Message + Secrets + Clone>(mut self, outcome: Outcome, response: Option<&M>) {
        let response = response.map(|response| self.work.journal.renderer.keep(response));
        self.conclude(outcome, response);
    }

    /// Records an answer that is known as bytes only.
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

    /// The client has left; the array's result is recorded late.
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
