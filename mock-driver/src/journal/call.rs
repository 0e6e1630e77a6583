//! The record of one call, from its begin line to its end line.

use std::sync::{Arc, Mutex, PoisonError};

use prost::Message;
use serde_json::Value;
use tonic::Code;

use csi_proto::Secrets;

use super::{Journal, Line, Outcome, Peer, now};
use crate::code;

/// A call that is running. Dropped before its end, it is recorded as left by its client.
#[derive(Debug)]
pub struct CallRecord {
    call: Arc<Call>,
    fault: Option<String>,
    ended: bool,
}

/// The array's side of a call: it outlives the record when the client leaves.
#[derive(Clone, Debug)]
pub struct WorkRecord {
    call: Arc<Call>,
}

#[derive(Debug)]
struct Call {
    journal: Arc<Journal>,
    number: u64,
    method: &'static str,
    peer: Option<Peer>,
    start: String,
    request: Value,
    fate: Mutex<Fate>,
}

/// How client and array, who part ways independently, tell one another.
#[derive(Debug, Default)]
struct Fate {
    client_left: bool,
    done: Option<Outcome>,
}

// === impl CallRecord ===

impl CallRecord {
    pub(super) fn new(
        journal: Arc<Journal>,
        number: u64,
        method: &'static str,
        peer: Option<Peer>,
        start: String,
        request: Value,
    ) -> Self {
        let call = Call {
            journal,
            number,
            method,
            peer,
            start,
            request,
            fate: Mutex::new(Fate::default()),
        };
        Self {
            call: Arc::new(call),
            fault: None,
            ended: false,
        }
    }

    /// The record of the work the array does for this call.
    pub fn work(&self) -> WorkRecord {
        WorkRecord {
            call: self.call.clone(),
        }
    }

    /// Names the fault rule that has a hand in the call.
    pub fn set_fault(&mut self, rule: Option<&str>) {
        self.fault = rule.map(str::to_owned);
    }

    /// Records the answer.
    pub fn end<M: Message + Secrets + Clone>(mut self, outcome: &Outcome, response: Option<&M>) {
        self.ended = true;
        let response = response.map(|response| self.call.journal.renderer.json(response));
        self.call.end(outcome, response, self.fault.as_deref());
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
        self.call.end(&left, None, self.fault.as_deref());
        let done = {
            let mut fate = self.call.fate.lock().unwrap_or_else(PoisonError::into_inner);
            fate.client_left = true;
            fate.done.take()
        };
        if let Some(outcome) = done {
            self.call.late(&outcome);
        }
    }
}

// === impl WorkRecord ===

impl WorkRecord {
    /// Records how the array's work ended, should the client not hear of it.
    pub fn done(self, outcome: Outcome) {
        let late = {
            let mut fate = self.call.fate.lock().unwrap_or_else(PoisonError::into_inner);
            if fate.client_left {
                Some(outcome)
            } else {
                fate.done = Some(outcome);
                None
            }
        };
        if let Some(outcome) = late {
            self.call.late(&outcome);
        }
    }
}

// === impl Call ===

impl Call {
    fn end(&self, outcome: &Outcome, response: Option<Value>, fault: Option<&str>) {
        self.journal.write(&Line::End {
            call: self.number,
            method: self.method,
            peer: self.peer,
            start: self.start.clone(),
            end: now(),
            code: code::name(outcome.code),
            message: &outcome.message,
            fault,
            request: &self.request,
            response,
        });
    }

    fn late(&self, outcome: &Outcome) {
        self.journal.write(&Line::Late {
            call: self.number,
            method: self.method,
            end: now(),
            code: code::name(outcome.code),
            message: &outcome.message,
        });
    }
}
