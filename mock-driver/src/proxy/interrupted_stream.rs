//! Streams that a rule interrupts in the proxy.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyStream, StreamBody};
use hyper::body::Frame;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderMap};
use tonic::{Code, Status};

use super::message::outcome;
use crate::driver::Driver;
use crate::fault::ActiveFault;
use crate::journal::CallRecord;
use crate::service::call::Injection;
use crate::socket::ConnectionInfo;

/// Length of the prefix of each message.
const PREFIX: usize = 5;

/// A stream that a rule interrupts.
pub(super) struct InterruptedStream {
    pub(super) driver: Arc<Driver>,
    pub(super) connection: Option<ConnectionInfo>,
    pub(super) record: Option<CallRecord>,
    pub(super) active: Option<ActiveFault>,
}

/// A forwarded stream.
struct Frames {
    stream: InterruptedStream,
    body: Option<BodyStream<Body>>,
    left: Left,
    /// Data that arrived together with the last message to pass, and follows it.
    held: Option<Frame<Bytes>>,
    /// The rule acts next.
    is_due: bool,
}

/// Counts the messages before the rule acts; messages arrive in arbitrary pieces.
struct Left {
    messages: u64,
    /// The part of the current message's prefix that has arrived.
    prefix: Vec<u8>,
    /// Remaining bytes of its content.
    content: usize,
}

// === impl InterruptedStream ===

impl InterruptedStream {
    /// Forwards a stream until the rule acts.
    pub(super) fn forward(mut self, response: http::Response<Body>) -> http::Response<Body> {
        let count = self
            .active
            .as_ref()
            .and_then(|active| active.rule().action.after_messages);
        // The call failed, so a fault after it does not apply.
        if let Some(status) = Status::from_header_map(response.headers()) {
            self.active = None;
            end(&mut self.record, &status);
        }
        response.map(|body| {
            let frames = Frames {
                is_due: count == Some(0) && self.active.is_some(),
                stream: self,
                body: Some(BodyStream::new(body)),
                left: Left::of(count.unwrap_or(u64::MAX)),
                held: None,
            };
            Body::new(StreamBody::new(futures::stream::unfold(frames, Frames::next)))
        })
    }
}

// === impl Frames ===

impl Frames {
    async fn next(mut self) -> Option<(Result<Frame<Bytes>, Status>, Self)> {
        if self.is_due {
            self.is_due = false;
            if let Some(status) = self.apply_fault().await {
                // Cancels the call at the driver.
                self.body = None;
                self.held = None;
                end(&mut self.stream.record, &status);
                return Some((Ok(Frame::trailers(trailers(&status))), self));
            }
        }
        let frame = match self.held.take() {
            Some(frame) => frame,
            None => match self.body.as_mut()?.next().await? {
                Ok(frame) => frame,
                Err(status) => {
                    self.stream.active = None;
                    end(&mut self.stream.record, &status);
                    return Some((Err(status), self));
                }
            },
        };
        let frame = match frame.into_data() {
            Ok(data) => self.pass(data),
            Err(last) => {
                let status = last.trailers_ref().and_then(Status::from_header_map);
                let is_ok = status.as_ref().is_some_and(|status| status.code() == Code::Ok);
                if is_ok && self.stream.active.is_some() {
                    // The stream has fewer messages: the rule acts at its end.
                    self.held = Some(last);
                    self.is_due = true;
                    Frame::data(Bytes::new())
                } else {
                    if let Some(status) = status {
                        self.stream.active = None;
                        end(&mut self.stream.record, &status);
                    }
                    last
                }
            }
        };
        Some((Ok(frame), self))
    }

    /// The part of the data that passes; the rest is held back, and the rule acts next.
    fn pass(&mut self, mut data: Bytes) -> Frame<Bytes> {
        if self.stream.active.is_some()
            && let Some(offset) = self.left.last_in(&data)
        {
            let behind = data.split_off(offset);
            self.held = (!behind.is_empty()).then(|| Frame::data(behind));
            self.is_due = true;
        }
        Frame::data(data)
    }

    async fn apply_fault(&mut self) -> Option<Status> {
        let active = self.stream.active.take()?;
        let mut active = self.stream.driver.faults.apply(active)?;
        if let Some(record) = &mut self.stream.record {
            record.set_fault(&active.rule().id);
        }
        active.flush_before().await;
        let (driver, connection) = (&self.stream.driver, self.stream.connection.as_ref());
        match driver.apply_fault(&mut active, connection).await {
            Injection::Fail(error) => Some(Status::new(error.code(), error.message())),
            Injection::Continue | Injection::Succeed | Injection::Respond(_) => None,
        }
    }
}

// === impl Left ===

impl Left {
    fn of(messages: u64) -> Self {
        Self {
            messages,
            prefix: Vec::with_capacity(PREFIX),
            content: 0,
        }
    }

    /// The end of the last message to pass, if it is in this data.
    fn last_in(&mut self, data: &[u8]) -> Option<usize> {
        let mut offset = 0;
        while offset < data.len() || (self.prefix.len() == PREFIX && self.content == 0) {
            if self.prefix.len() < PREFIX {
                let taken = (PREFIX - self.prefix.len()).min(data.len() - offset);
                self.prefix.extend_from_slice(&data[offset..offset + taken]);
                offset += taken;
                if let Some(length) = self.prefix.get(1..PREFIX) {
                    let length = length.try_into().map_or(0, u32::from_be_bytes);
                    self.content = usize::try_from(length).unwrap_or(usize::MAX);
                }
                continue;
            }
            let taken = self.content.min(data.len() - offset);
            offset += taken;
            self.content -= taken;
            if self.content == 0 {
                self.prefix.clear();
                self.messages = self.messages.saturating_sub(1);
                if self.messages == 0 {
                    return Some(offset);
                }
            }
        }
        None
    }
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    // Encoded messages are valid header values.
    if let Err(status) = status.add_header(&mut trailers) {
        tracing::warn!(%status, "failed to encode the gRPC status");
    }
    trailers
}

/// Ends the record of a stream unless it has ended.
pub(super) fn end(record: &mut Option<CallRecord>, status: &Status) {
    if let Some(mut record) = record.take() {
        record.end(outcome(status), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_in_whatever_pieces_they_come() {
        let mut body = Vec::new();
        for content in ["one", "", "three"] {
            body.push(0);
            body.extend_from_slice(&u32::try_from(content.len()).unwrap().to_be_bytes());
            body.extend_from_slice(content.as_bytes());
        }
        let ends = [8, 13, 23];
        for (count, end) in (1..).zip(ends) {
            for piece in 1..=body.len() {
                let mut left = Left::of(count);
                let mut passed = 0;
                let found = body.chunks(piece).find_map(|data| {
                    let found = left.last_in(data).map(|offset| passed + offset);
                    passed += data.len();
                    found
                });
                assert_eq!(found, Some(end), "{count} messages in pieces of {piece}");
            }
        }
        assert_eq!(Left::of(4).last_in(&body), None);
    }
}
