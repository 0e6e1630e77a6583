use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use tonic::Status;

use super::call::{Call, End, Operation, Peer};
use super::line::Line;
use super::message::{Direction, RedactedMessage};
use super::{Event, Journal, grpc_call};
use crate::rpc::{code, method};

/// A running call. Dropping it before its end records that the client disconnected or cancelled the call.
#[derive(Debug)]
pub(crate) struct CallRecord {
    pub(crate) operation: OperationRecord,
    /// The request in the begin line.
    request_json: Option<Value>,
    /// The response does not wait for the operation, whose result is recorded as late.
    pub(crate) is_background: bool,
}

/// The operation of a call, which outlives the record if the client disconnects.
#[derive(Clone, Debug)]
pub(crate) struct OperationRecord {
    journal: Arc<Journal>,
    call: Arc<Call>,
}

// === impl Journal ===

impl Journal {
    #[cfg(test)]
    pub(crate) fn begin(
        self: &Arc<Self>,
        method: Cow<'static, str>,
        peer: Option<Peer>,
        request: RedactedMessage,
    ) -> CallRecord {
        self.begin_on(String::new(), method, peer, request)
    }

    /// Records the begin of a call. The caller must end the record. `node` is where the call runs if its id is not in the request.
    pub(crate) fn begin_on(
        self: &Arc<Self>,
        node: String,
        method: Cow<'static, str>,
        peer: Option<Peer>,
        request: RedactedMessage,
    ) -> CallRecord {
        let call = Arc::new(Call {
            number: self.calls.fetch_add(1, Ordering::Relaxed) + 1,
            method,
            peer,
            start: self.clock.now(),
            begun: Instant::now(),
            request,
            subject: OnceLock::new(),
            on_node: node,
            fault: Mutex::default(),
            end: OnceLock::new(),
            operation: Mutex::default(),
            late: OnceLock::new(),
        });
        let request_json = self.file.as_ref().map(|file| {
            let json = self.renderer.json(&call.request);
            file.write(&Line::Begin {
                call: call.number,
                method: Cow::Borrowed(&call.method),
                peer: call.peer,
                start: call.start,
                request: Cow::Borrowed(&json),
            });
            json
        });
        if self.is_read {
            self.memory().begin(call.clone());
        }
        self.publish(Event::Begin(call.clone()));
        CallRecord {
            operation: OperationRecord {
                journal: self.clone(),
                call,
            },
            request_json,
            is_background: false,
        }
    }
}

impl Journal {
    fn log(&self, call: &Call) {
        let Some(end) = call.end() else { return };
        let set = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let took = Duration::try_from(end.time.duration_since(call.start)).unwrap_or_default();
        tracing::info!(
            method = %method::short(&call.method),
            volume = set(call.volume()),
            node = set(call.node()),
            code = %code::name(end.status.code()),
            duration = ?took,
            rule = call.fault(),
            error = set(end.status.message()),
            "call"
        );
        if tracing::enabled!(tracing::Level::TRACE) {
            let (request, response) = (self.request(call), self.response(call));
            let response = response.unwrap_or_default();
            tracing::trace!(call = call.number, %request, %response, "messages of the call");
        }
    }
}

// === impl CallRecord ===

impl CallRecord {
    pub(crate) fn set_fault(&mut self, rule: &str) {
        let OperationRecord { journal, call } = &self.operation;
        let mut fault = crate::lock(&call.fault);
        *fault = Some(rule.to_owned());
        drop(fault);
        journal.touch();
    }

    /// Records an encoded response of another driver.
    pub(crate) fn end_wire(&mut self, status: Status, response: Option<&[u8]>) {
        let OperationRecord { journal, call } = &self.operation;
        let keep = |wire| {
            journal
                .renderer
                .keep_wire(&call.method, Direction::Response, wire)
        };
        let response = response.map(keep);
        self.end(status, response);
    }

    pub(crate) fn end(&mut self, status: Status, response: Option<RedactedMessage>) {
        let OperationRecord { journal, call } = &self.operation;
        let end = End {
            time: call.now(),
            status,
            response,
        };
        if call.end.set(end).is_err() {
            return;
        }
        if let Some(end) = call.end.get()
            && (journal.file.is_some() || journal.grpc_call_lines)
        {
            let request = self.request_json.take();
            let request = request.unwrap_or_else(|| journal.request(call));
            let response = end.response.as_ref().map(|kept| journal.renderer.json(kept));
            if let Some(file) = &journal.file {
                file.write(&Line::End {
                    call: call.number,
                    method: Cow::Borrowed(&call.method),
                    peer: call.peer,
                    start: call.start,
                    end: end.time,
                    code: code::name(end.status.code()).into(),
                    message: Cow::Borrowed(end.status.message()),
                    fault: call.fault(),
                    request: Cow::Borrowed(&request),
                    response: response.as_ref().map(Cow::Borrowed),
                });
            }
            if journal.grpc_call_lines {
                grpc_call::log(call, &request, response.as_ref());
            }
        }
        if journal.call_lines {
            journal.log(call);
        }
        if journal.is_read {
            journal.memory().end(call);
        }
        journal.publish(Event::End(call.clone()));
        if self.is_background {
            self.operation.detach();
        }
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        if self.operation.call.end.get().is_none() {
            self.is_background = true;
            let left = Status::cancelled("client disconnected or cancelled the call");
            self.end(left, None);
        }
    }
}

// === impl OperationRecord ===

impl OperationRecord {
    /// Records the result of the operation if the call has ended.
    pub(crate) fn done(&self, status: Status) {
        let mut operation = crate::lock(&self.call.operation);
        if let Operation::CallEnded = *operation {
            drop(operation);
            self.late(status);
        } else {
            *operation = Operation::Done(status);
        }
    }

    /// The call has ended; the operation's result is recorded as late.
    fn detach(&self) {
        let operation = {
            let mut operation = crate::lock(&self.call.operation);
            std::mem::replace(&mut *operation, Operation::CallEnded)
        };
        if let Operation::Done(status) = operation {
            self.late(status);
        }
    }

    fn late(&self, status: Status) {
        let Self { journal, call } = self;
        let late = End {
            time: call.now(),
            status,
            response: None,
        };
        if call.late.set(late).is_err() {
            return;
        }
        if let Some(late) = call.late().filter(|_| journal.call_lines) {
            let code = code::name(late.status.code());
            let volume = call.volume();
            tracing::info!(method = %method::short(&call.method), volume, %code, "operation completed after its call");
        }
        if let (Some(file), Some(late)) = (&journal.file, call.late.get()) {
            file.write(&Line::Late {
                call: call.number,
                method: Cow::Borrowed(&call.method),
                end: late.time,
                code: code::name(late.status.code()).into(),
                message: Cow::Borrowed(late.status.message()),
            });
        }
        journal.publish(Event::Late(call.clone()));
    }
}
