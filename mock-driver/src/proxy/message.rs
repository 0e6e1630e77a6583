//! gRPC messages in their encoding: a byte for compression, four bytes for the length, the message.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use http_body_util::{BodyExt, BodyStream, Full, LengthLimitError, Limited, StreamBody};
use prost_reflect::DynamicMessage;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderMap};
use tonic::{Code, Status};

use super::seen::Seen;
use crate::fault::{ActiveFault, ArrayUsage, CallInfo, Reservations, VolumeLocation};
use crate::journal::Outcome;
use crate::rpc::method::{self, Method};

/// Length of the prefix of each message.
const PREFIX: usize = 5;

/// Maximum length of a decoded message. The default limit of gRPC's clients and servers is 4 MiB.
const MAX_MESSAGE: usize = 16 << 20;

/// The body of a request, with its first message if the proxy has read it.
pub(super) struct Envelope {
    read: BytesMut,
    rest: Body,
}

/// The view that fault rules have of a forwarded request.
pub(super) struct Passing {
    pub(super) path: String,
    pub(super) rpc: Option<Method>,
    message: Option<DynamicMessage>,
    volume: String,
    node: String,
    name: String,
    seen: Arc<Seen>,
}

pub(super) struct Reply {
    head: http::response::Parts,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

// === impl Envelope ===

impl Envelope {
    /// Reads the first message.
    pub(super) async fn open(mut rest: Body) -> Result<Self, Status> {
        let mut read = BytesMut::new();
        while message_in(&read).is_none() {
            let announced = length_in(&read).unwrap_or_default();
            if announced.max(read.len().saturating_sub(PREFIX)) > MAX_MESSAGE {
                return Err(too_long("request"));
            }
            match rest.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        read.extend_from_slice(&data);
                    }
                }
                Some(Err(status)) => return Err(status),
                None => break,
            }
        }
        Ok(Self { read, rest })
    }

    /// Does not read the body.
    pub(super) fn closed(rest: Body) -> Self {
        Self {
            read: BytesMut::new(),
            rest,
        }
    }

    /// The first message, unless it is compressed.
    pub(super) fn message(&self) -> Option<&[u8]> {
        message_in(&self.read).filter(|_| self.read[0] == 0)
    }

    pub(super) fn close(self) -> Body {
        if self.read.is_empty() {
            return self.rest;
        }
        let read =
            BodyStream::new(Full::new(self.read.freeze())).map(|frame| frame.map_err(|never| match never {}));
        Body::new(StreamBody::new(read.chain(BodyStream::new(self.rest))))
    }
}

// === impl Passing ===

impl Passing {
    pub(super) fn new(path: String, rpc: Option<Method>, message: Option<&[u8]>, seen: Arc<Seen>) -> Self {
        let message = rpc
            .zip(message)
            .and_then(|(rpc, bytes)| DynamicMessage::decode(rpc.request(), bytes).ok());
        let text = |fields: &[&str]| {
            let message = message.as_ref()?;
            let values = fields.iter().filter_map(|field| message.get_field_by_name(field));
            let mut texts = values.filter_map(|value| value.as_str().map(str::to_owned));
            texts.find(|text| !text.is_empty())
        };
        let here = || match rpc {
            Some(rpc) if rpc.is_on_node() => seen.here(),
            _ => String::new(),
        };
        Self {
            volume: text(&method::VOLUME).unwrap_or_default(),
            node: text(&method::NODE).unwrap_or_else(here),
            name: text(&method::NAME).unwrap_or_default(),
            path,
            rpc,
            message,
            seen,
        }
    }
}

impl CallInfo for Passing {
    fn path(&self) -> &str {
        &self.path
    }

    fn volume(&self) -> &str {
        &self.volume
    }

    fn node(&self) -> &str {
        &self.node
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn message(&self) -> Option<Cow<'_, DynamicMessage>> {
        self.message.as_ref().map(Cow::Borrowed)
    }

    fn usage(&self, reserved: &Reservations) -> ArrayUsage {
        ArrayUsage {
            on_node: self.seen.on_node(self, reserved),
            is_repeat: self.location().is_some_and(|location| location.here),
            ..ArrayUsage::default()
        }
    }

    fn location(&self) -> Option<VolumeLocation> {
        (!self.volume.is_empty()).then(|| self.seen.location(&self.volume, &self.node))
    }
}

// === impl Reply ===

impl Reply {
    pub(super) async fn read(response: http::Response<Body>) -> Result<Self, Status> {
        let (head, body) = response.into_parts();
        let collected = Limited::new(body, PREFIX + MAX_MESSAGE).collect().await;
        let collected = collected.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return too_long("reply");
            }
            error
                .downcast::<Status>()
                .map_or_else(|error| Status::unknown(error.to_string()), |status| *status)
        })?;
        let trailers = collected.trailers().cloned();
        Ok(Self {
            head,
            body: collected.to_bytes(),
            trailers,
        })
    }

    /// A successful reply without fields.
    pub(super) fn empty() -> Self {
        let (mut head, ()) = http::Response::new(()).into_parts();
        head.headers
            .insert(http::header::CONTENT_TYPE, tonic::metadata::GRPC_CONTENT_TYPE);
        let mut trailers = HeaderMap::new();
        trailers.insert(Status::GRPC_STATUS, http::HeaderValue::from_static("0"));
        Self {
            head,
            body: Bytes::from_static(&[0; PREFIX]),
            trailers: Some(trailers),
        }
    }

    /// The status of the call.
    pub(super) fn outcome(&self) -> Outcome {
        let status = self.trailers.as_ref().and_then(Status::from_header_map);
        let status = status.or_else(|| Status::from_header_map(&self.head.headers));
        match status {
            Some(status) => outcome(&status),
            None => Outcome {
                code: Code::Unknown,
                message: format!("the driver answered {} without a gRPC status", self.head.status),
            },
        }
    }

    /// The first message, unless it is compressed.
    pub(super) fn message(&self) -> Option<&[u8]> {
        message_in(&self.body).filter(|_| self.body[0] == 0)
    }

    /// Applies a rule's edits. A compressed reply, which the proxy never requests, is not edited.
    pub(super) fn edit(&mut self, active: &ActiveFault, path: &str) {
        let Some(bytes) = self.message().and_then(|bytes| active.edit_reply(path, bytes)) else {
            return;
        };
        let mut body = BytesMut::with_capacity(PREFIX + bytes.len());
        body.put_u8(0);
        body.put_u32(u32::try_from(bytes.len()).expect("a reply must be shorter than 4 GiB"));
        body.extend_from_slice(&bytes);
        self.body = body.freeze();
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

/// The first complete message of a body.
fn message_in(body: &[u8]) -> Option<&[u8]> {
    body.get(PREFIX..PREFIX.checked_add(length_in(body)?)?)
}

/// The length of the first message in a body.
fn length_in(body: &[u8]) -> Option<usize> {
    let length = body.get(1..PREFIX)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(length)).ok()
}

fn too_long(what: &str) -> Status {
    let limit = MAX_MESSAGE >> 20;
    Status::resource_exhausted(format!(
        "the {what} is longer than the {limit} MiB that the proxy takes"
    ))
}

pub(super) fn outcome(status: &Status) -> Outcome {
    Outcome {
        code: status.code(),
        message: status.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::v1::{NodeGetInfoRequest, NodeGetInfoResponse};
    use prost::Message;
    use prost_reflect::Value;

    use super::*;
    use crate::rpc::method::Kind;

    #[test]
    fn read_methods_do_not_change_the_array() {
        let changing = |method: &Method| {
            let call = Passing::new(method.path().to_owned(), Some(*method), None, Arc::default());
            call.changes()
        };
        let found: Vec<&str> = Method::ALL
            .iter()
            .filter(|method| changing(method))
            .map(|method| method.name())
            .collect();
        for reads in [
            "GroupControllerGetCapabilities",
            "NodeStageVolume",
            "NodeExpandVolume",
        ] {
            assert!(!found.contains(&reads), "{found:?}");
        }
        let expected = Method::ALL
            .into_iter()
            .filter(|method| method.kind() != Kind::Read && !method.is_on_node());
        assert_eq!(found.len(), expected.count(), "{found:?}");
        let foreign = Passing::new("/vendor.v1.Copy/Start".to_owned(), None, None, Arc::default());
        assert!(!foreign.changes());
    }

    #[test]
    fn rules_can_match_every_field_of_each_method() {
        let seen = Arc::new(Seen::default());
        let info = NodeGetInfoResponse {
            node_id: "node-1".to_owned(),
            ..Default::default()
        };
        let path = "/csi.v1.Node/NodeGetInfo";
        let asked = NodeGetInfoRequest {}.encode_to_vec();
        let asked = Passing::new(path.into(), Method::at(path), Some(&asked), seen.clone());
        seen.learn_here(&asked, Some(&info.encode_to_vec()));
        for rpc in Method::ALL {
            let mut message = DynamicMessage::new(rpc.request());
            for field in [&method::VOLUME[..], &method::NODE, &method::NAME].concat() {
                if rpc.takes(field) {
                    message.set_field_by_name(field, Value::String("x".to_owned()));
                }
            }
            let bytes = message.encode_to_vec();
            let call = Passing::new(rpc.path().to_owned(), Some(rpc), Some(&bytes), seen.clone());
            let name = rpc.name();
            assert_eq!(!call.volume().is_empty(), rpc.has_volume(), "{name}");
            assert_eq!(!call.node().is_empty(), rpc.has_node(), "{name}");
            assert_eq!(!call.name().is_empty(), rpc.has_name(), "{name}");
            assert_eq!(call.location().is_some(), rpc.has_volume(), "{name}");
            assert_eq!(call.node() == "node-1", rpc.is_on_node(), "{name}");
        }
    }
}
