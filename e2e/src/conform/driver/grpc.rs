//! gRPC messages of the calls that the contract is about.

use std::collections::BTreeMap;
use std::sync::Arc;

use attacher_contract::observation::{Call, Method, Name, PublishRequest, Target};
use attacher_contract::{Contract, Observation};
use csi_proto::v1::volume_capability::AccessType;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ListVolumesRequest,
};
use http::{HeaderMap, Response};
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use tonic::body::Body;
use tonic::{Code, Status};

/// Length of the prefix of a gRPC message.
pub(super) const PREFIX: usize = 5;

/// A call that the contract is about.
pub(super) enum Known {
    Controller(Arc<Call>),
    List(ListVolumesRequest),
}

/// The call in a request, if the contract is about it.
pub(super) fn read(
    path: &str,
    framed: &[u8],
    by: Option<Name>,
    number: impl FnOnce() -> u64,
) -> Option<Known> {
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
pub(super) async fn read_response(
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
pub(super) fn name_of(code: Code) -> &'static str {
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

/// How many answers with this code the calls of a method got.
pub(in crate::conform) fn answers(contract: &Contract, method: Method, code: &str) -> usize {
    let mut calls = BTreeMap::new();
    let mut count = 0;
    for (_, seen) in contract.history() {
        if let Observation::CallBegan(call) = seen {
            calls.insert(call.number, call.method);
        } else if let Observation::CallEnded(number, answer) = seen
            && &*answer.code == code
            && calls.get(number) == Some(&method)
        {
            count += 1;
        }
    }
    count
}
