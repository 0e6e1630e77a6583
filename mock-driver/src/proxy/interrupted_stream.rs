//! Streams that a rule interrupts in the proxy.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use http_body_util::StreamBody;
use hyper::body::Frame;
use tonic::body::Body;
use tonic::codec::{DecodeBuf, Decoder, Streaming};
use tonic::codegen::http::{self, HeaderMap};
use tonic::{Code, Status};

use super::message::{MAX_MESSAGE, framed};
use super::remote::is_reset;
use crate::driver::Driver;
use crate::fault::ActiveFault;
use crate::journal::CallRecord;
use crate::socket::ConnectionInfo;

pub(super) struct InterruptedStream {
    pub(super) driver: Arc<Driver>,
    pub(super) connection: Option<ConnectionInfo>,
    pub(super) record: Option<CallRecord>,
    pub(super) active: Option<ActiveFault>,
}

struct Messages {
    stream: InterruptedStream,
    /// `None` after the end; dropping it cancels the call at the driver.
    messages: Option<Streaming<Bytes>>,
    /// Number of messages before the rule acts.
    left: u64,
}

/// Leaves messages as they are.
struct Undecoded;

impl Decoder for Undecoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}

// === impl InterruptedStream ===

impl InterruptedStream {
    /// Forwards a stream until the rule acts. A shorter stream is interrupted at its end.
    pub(super) fn forward(mut self, response: http::Response<Body>) -> http::Response<Body> {
        // The call failed, so a fault after it does not apply.
        if let Some(status) = Status::from_header_map(response.headers()) {
            end(&mut self.record, &status);
            return response;
        }
        let count = self
            .active
            .as_ref()
            .and_then(|active| active.rule().action.after_messages);
        let (head, body) = response.into_parts();
        let messages = Messages {
            stream: self,
            messages: Some(Streaming::new_response(
                Undecoded,
                body,
                head.status,
                None,
                Some(MAX_MESSAGE),
            )),
            left: count.unwrap_or(u64::MAX),
        };
        let frames = futures::stream::unfold(messages, async |mut messages| {
            Some((messages.frame().await?, messages))
        });
        http::Response::from_parts(head, Body::new(StreamBody::new(frames)))
    }

    async fn apply_fault(&mut self) -> Result<(), Status> {
        let (active, connection) = (self.active.take(), self.connection.as_ref());
        let applied = self
            .driver
            .apply_to_stream(active, self.record.as_mut(), connection);
        applied
            .await
            .map_err(|error| Status::new(error.code(), error.message()))
    }
}

// === impl Messages ===

impl Messages {
    /// The next message, or the trailers at the end.
    async fn frame(&mut self) -> Option<Result<Frame<Bytes>, Status>> {
        self.messages.as_ref()?;
        let status = match self.next().await {
            Ok(Some(message)) => return Some(Ok(Frame::data(framed(&[message])))),
            Ok(None) => Status::new(Code::Ok, ""),
            Err(status) => status,
        };
        let last = self.messages.take();
        end(&mut self.stream.record, &status);
        if is_reset(&status) {
            return Some(Err(status));
        }
        let mut trailers = HeaderMap::new();
        if status.code() == Code::Ok
            && let Some(mut messages) = last
            && let Ok(Some(metadata)) = messages.trailers().await
        {
            trailers = metadata.into_headers();
        }
        // Encoded messages are valid header values.
        if let Err(status) = status.add_header(&mut trailers) {
            tracing::warn!(%status, "failed to encode the gRPC status");
        }
        Some(Ok(Frame::trailers(trailers)))
    }

    /// The next message; `None` at the end.
    ///
    /// # Errors
    /// The driver or the rule ends the stream.
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        if self.left == 0 {
            self.stream.apply_fault().await?;
        }
        let next = match &mut self.messages {
            Some(messages) => messages.message().await,
            None => Ok(None),
        };
        match next {
            Ok(Some(_)) => self.left = self.left.saturating_sub(1),
            Ok(None) => self.stream.apply_fault().await?,
            // The firing is returned to the next call.
            Err(_) => self.stream.active = None,
        }
        next
    }
}

pub(super) fn end(record: &mut Option<CallRecord>, status: &Status) {
    if let Some(mut record) = record.take() {
        // Without the metadata of the driver's response.
        record.end(Status::new(status.code(), status.message()), None);
    }
}
