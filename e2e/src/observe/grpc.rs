//! gRPC messages of the calls that the contract is about.

use std::collections::BTreeMap;
use std::sync::Arc;

use attacher_contract::Observation;
use attacher_contract::observation::{Answer, Call, List, Method, Name, PublishRequest, Target};
use csi_proto::v1::volume_capability::AccessType;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ListVolumesRequest, ListVolumesResponse,
};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::Service as _;

/// Length of the prefix of a gRPC message.
const PREFIX: usize = 5;

/// A call that the contract is about.
#[derive(Debug)]
pub enum Known {
    /// ControllerPublishVolume or ControllerUnpublishVolume.
    Controller(Arc<Call>),
    /// ListVolumes.
    List(ListVolumesRequest),
}

/// A call whose end is observed, at the latest when its client cancels it.
#[derive(Debug)]
pub struct RunningCall<F: Fn(Observation)> {
    number: u64,
    observe: F,
    ended: bool,
}

// === impl RunningCall ===

impl<F: Fn(Observation)> RunningCall<F> {
    /// Observes the begin of the call.
    pub fn begin(call: Arc<Call>, observe: F) -> Self {
        let number = call.number;
        observe(Observation::CallBegan(call));
        Self {
            number,
            observe,
            ended: false,
        }
    }

    /// Observes the answer.
    pub fn end(mut self, code: Code, message: String, context: BTreeMap<String, String>) {
        self.ended = true;
        self.answered(code, message, context);
    }

    fn answered(&self, code: Code, message: String, context: BTreeMap<String, String>) {
        let answer = Answer {
            code: name_of(code).into(),
            message,
            context,
        };
        (self.observe)(Observation::CallEnded(self.number, answer));
    }
}

impl<F: Fn(Observation)> Drop for RunningCall<F> {
    fn drop(&mut self) {
        if !self.ended {
            let message = "the client cancelled the call".to_owned();
            self.answered(Code::Cancelled, message, BTreeMap::new());
        }
    }
}

// === functions ===

/// The call in a request, if the contract is about it.
pub fn read(path: &str, framed: &[u8], by: Option<Name>, number: impl FnOnce() -> u64) -> Option<Known> {
    let message = framed.get(PREFIX..)?;
    match path.rsplit('/').next()? {
        "ControllerPublishVolume" => {
            let request = ControllerPublishVolumeRequest::decode(message).ok()?;
            Some(Known::Controller(Arc::new(Call {
                number: number(),
                by,
                method: Method::Publish,
                target: Target::new(&request.volume_id, &request.node_id),
                secret: Some(!request.secrets.is_empty()),
                request: Some(fields(&request)),
            })))
        }
        "ControllerUnpublishVolume" => {
            let request = ControllerUnpublishVolumeRequest::decode(message).ok()?;
            Some(Known::Controller(Arc::new(Call {
                number: number(),
                by,
                method: Method::Unpublish,
                target: Target::new(&request.volume_id, &request.node_id),
                secret: Some(!request.secrets.is_empty()),
                request: None,
            })))
        }
        "ListVolumes" => Some(Known::List(ListVolumesRequest::decode(message).ok()?)),
        _ => None,
    }
}

/// The response, with its code, message and publish context.
pub async fn read_response(
    response: Response<Body>,
) -> (Response<Body>, Code, String, BTreeMap<String, String>) {
    let (parts, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        let message = "the response broke off";
        return (
            Status::internal(message).into_http(),
            Code::Internal,
            message.to_owned(),
            BTreeMap::new(),
        );
    };
    let trailers = body.trailers().cloned();
    let bytes = body.to_bytes();
    let status = status(&parts.headers).or_else(|| status(trailers.as_ref()?));
    let (code, message) = status.map_or((Code::Unknown, String::new()), |status| {
        (status.code(), status.message().to_owned())
    });
    let published = bytes
        .get(PREFIX..)
        .and_then(|message| ControllerPublishVolumeResponse::decode(message).ok());
    let context = published.map(|response| response.publish_context.into_iter().collect());
    // A response without a message has its status in the headers, and ends there.
    let body = match bytes.is_empty() {
        true => Body::empty(),
        false => Body::new(Full::new(bytes).with_trailers(std::future::ready(trailers.map(Ok)))),
    };
    let response = Response::from_parts(parts, body);
    (response, code, message, context.unwrap_or_default())
}

/// Executes a ListVolumes call and observes the round. A list of several pages is no proof: only its begin is observed.
pub async fn list(
    mut routes: Routes,
    request: Request<Body>,
    message: &ListVolumesRequest,
    round: u64,
    observe: impl Fn(Observation),
) -> Response<Body> {
    observe(Observation::ListBegan(round));
    let Ok(response) = routes.call(request).await;
    let (parts, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        return Status::internal("the response broke off").into_http();
    };
    let trailers = body.trailers().cloned();
    let bytes = body.to_bytes();
    let page = bytes
        .get(PREFIX..)
        .and_then(|message| ListVolumesResponse::decode(message).ok());
    if let Some(page) = page.filter(|page| page.next_token.is_empty() && message.starting_token.is_empty()) {
        let entries = page.entries.into_iter().filter_map(|entry| {
            let nodes = entry.status.map(|status| {
                let ids = status.published_node_ids.into_iter();
                ids.map(|id| Name::from(id.as_str())).collect()
            });
            Some((Name::from(entry.volume?.volume_id.as_str()), nodes))
        });
        let entries: List = entries.collect();
        observe(Observation::ListEnded(round, entries));
    }
    let trailers = std::future::ready(trailers.map(Ok));
    Response::from_parts(parts, Body::new(Full::new(bytes).with_trailers(trailers)))
}

fn status(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers)
}

/// The fields that follow from the PersistentVolume.
fn fields(request: &ControllerPublishVolumeRequest) -> PublishRequest {
    let capability = request.volume_capability.as_ref();
    let mode = capability.and_then(|capability| capability.access_mode.as_ref());
    let access = capability.and_then(|capability| capability.access_type.as_ref());
    let (fs_type, mount_flags) = match access {
        Some(AccessType::Mount(mount)) => (mount.fs_type.clone(), mount.mount_flags.clone()),
        Some(AccessType::Block(_)) | None => (String::new(), Vec::new()),
    };
    PublishRequest {
        access_mode: mode
            .and_then(|mode| Mode::try_from(mode.mode).ok())
            .map_or("", |mode| mode.as_str_name())
            .to_owned(),
        block: matches!(access, Some(AccessType::Block(_))),
        fs_type,
        mount_flags,
        readonly: request.readonly,
        context: request.volume_context.clone().into_iter().collect(),
    }
}

/// The name of a code in the CSI specification.
fn name_of(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
