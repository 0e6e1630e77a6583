//! gRPC messages in their encoding: a byte for compression, four bytes for the length, the message.

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::ready;
use futures::{Stream, StreamExt, stream};
use http_body_util::{BodyExt, BodyStream, Collected, Full, LengthLimitError, Limited};
use hyper::body::Frame;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderMap};

use crate::fault::ActiveFault;

const PREFIX: usize = 5;

/// Maximum length of a decoded message. The default limit of gRPC's clients and servers is 4 MiB.
pub(super) const MAX_MESSAGE: usize = 16 << 20;

pub(super) struct Reply {
    head: http::response::Parts,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

// === impl Reply ===

impl Reply {
    pub(super) async fn read(response: http::Response<Body>) -> Result<Self, Status> {
        let (head, body) = response.into_parts();
        let collected = collected(body, "reply").await?;
        let trailers = collected.trailers().cloned();
        Ok(Self {
            head,
            body: collected.to_bytes(),
            trailers,
        })
    }

    /// A successful reply with these encoded messages.
    pub(super) fn of(messages: &[Vec<u8>]) -> Self {
        let (mut head, ()) = http::Response::new(()).into_parts();
        head.headers
            .insert(http::header::CONTENT_TYPE, tonic::metadata::GRPC_CONTENT_TYPE);
        let mut trailers = HeaderMap::new();
        trailers.insert(Status::GRPC_STATUS, http::HeaderValue::from_static("0"));
        Self {
            head,
            body: framed(messages),
            trailers: Some(trailers),
        }
    }

    /// Without the metadata of the response, which would stay in the journal.
    pub(super) fn status(&self) -> Status {
        let status = self.trailers.as_ref().and_then(Status::from_header_map);
        let status = status.or_else(|| Status::from_header_map(&self.head.headers));
        match status {
            Some(status) => Status::new(status.code(), status.message()),
            None => Status::unknown(format!(
                "the driver answered {} without a gRPC status",
                self.head.status
            )),
        }
    }

    pub(super) fn message(&self) -> Option<&[u8]> {
        message_in(&self.body)
    }

    /// Applies a rule's edits. A compressed reply, which the proxy never requests, is not edited.
    pub(super) fn edit(&mut self, active: &ActiveFault, path: &str) {
        let Some(bytes) = self.message().and_then(|bytes| active.edit_reply(path, bytes)) else {
            return;
        };
        self.body = framed(&[bytes]);
        self.head.headers.remove(http::header::CONTENT_LENGTH);
    }

    pub(super) fn into_http(self) -> http::Response<Body> {
        let body = match self.trailers {
            Some(trailers) => {
                Body::new(Full::new(self.body).with_trailers(std::future::ready(Some(Ok(trailers)))))
            }
            None => Body::new(Full::new(self.body)),
        };
        http::Response::from_parts(self.head, body)
    }
}

pub(super) fn framed(messages: &[impl AsRef<[u8]>]) -> Bytes {
    let mut body = BytesMut::new();
    for message in messages {
        let message = message.as_ref();
        body.put_u8(0);
        body.put_u32(u32::try_from(message.len()).expect("a reply must be shorter than 4 GiB"));
        body.extend_from_slice(message);
    }
    body.freeze()
}

/// The frames of a body; after `cancelled`, trailers with this status.
pub(super) fn until_cancelled(
    body: Body,
    cancelled: CancellationToken,
    status: Status,
) -> impl Stream<Item = Result<Frame<Bytes>, Status>> {
    let until = cancelled.clone().cancelled_owned();
    let last = async move {
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers)?;
        Ok(Frame::trailers(trailers))
    };
    let last = stream::once(last).take_while(move |_| ready(cancelled.is_cancelled()));
    BodyStream::new(body).take_until(until).chain(last)
}

/// The whole body of a unary request or of a reply.
pub(super) async fn collected(body: Body, what: &str) -> Result<Collected<Bytes>, Status> {
    let collected = Limited::new(body, PREFIX + MAX_MESSAGE).collect().await;
    collected.map_err(|error| {
        if error.is::<LengthLimitError>() {
            let limit = MAX_MESSAGE >> 20;
            let text = format!("the {what} is longer than the {limit} MiB that the proxy takes");
            return Status::resource_exhausted(text);
        }
        error
            .downcast::<Status>()
            .map_or_else(|error| Status::unknown(error.to_string()), |status| *status)
    })
}

/// The first message of a body, unless it is compressed or incomplete.
pub(super) fn message_in(body: &[u8]) -> Option<&[u8]> {
    let (&compressed, rest) = body.split_first()?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    rest.get(..length).filter(|_| compressed == 0)
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn cancelled_body_ends_with_a_status() {
        for is_cancelled in [true, false] {
            let cancelled = CancellationToken::new();
            let first = stream::iter([Ok::<_, Status>(Frame::data(Bytes::from_static(b"first")))]);
            let body = match is_cancelled {
                true => Body::new(StreamBody::new(first.chain(stream::pending()))),
                false => Body::new(StreamBody::new(first)),
            };
            let mut frames = Box::pin(until_cancelled(body, cancelled.clone(), Status::aborted("reset")));
            assert!(frames.next().await.unwrap().unwrap().is_data());
            if is_cancelled {
                cancelled.cancel();
                let last = frames.next().await.unwrap().unwrap().into_trailers().unwrap();
                let status = Status::from_header_map(&last).unwrap();
                assert_eq!(status.code(), Code::Aborted);
            }
            assert!(frames.next().await.is_none());
        }
    }
}
