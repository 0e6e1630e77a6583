//! The volume condition of CSI before 1.13, for earlier clients, in responses of ListVolumes, ControllerGetVolume and
//! NodeGetVolumeStats.
//!
//! The responses are those of 1.13 with one more field, under its earlier number. They are used only while the driver has
//! VOLUME_CONDITION or NODE_VOLUME_CONDITION; the journal shows them as sent. If the condition cannot be read, the call
//! fails.

use std::convert::Infallible;
use std::sync::Arc;

use csi_proto::Secrets;
use csi_proto::v1::{ControllerGetVolumeRequest, ListVolumesRequest, NodeGetVolumeStatsRequest};
use prost::Message;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::array::{Array, HealthIssue};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities::Capability;
use crate::rpc::legacy::{
    ControllerGetVolumeResponse, ListVolumesResponse, NodeGetVolumeStatsResponse, VolumeCondition,
};
use crate::rpc::method::Method;
use crate::service::call::{Rpc, RpcRequest};

type Answer = BoxFuture<http::Response<Body>, Infallible>;

/// Handles one call.
type Handler = fn(&Arc<Driver>, http::Request<Body>) -> Answer;

/// The handler of a method whose response had a condition, and the capability that enables it.
pub(super) fn handler(method: Method) -> Option<(Capability, Handler)> {
    let handlers: [(Method, Handler); 3] = [
        (ListVolumesRequest::METHOD, serve::<ListVolumesRequest>),
        (
            ControllerGetVolumeRequest::METHOD,
            serve::<ControllerGetVolumeRequest>,
        ),
        (
            NodeGetVolumeStatsRequest::METHOD,
            serve::<NodeGetVolumeStatsRequest>,
        ),
    ];
    let (_, handler) = handlers.into_iter().find(|(known, _)| *known == method)?;
    Some((method.condition()?, handler))
}

/// The fields for conditions in a response, with their volumes.
type ConditionFields<'a> = Vec<(String, &'a mut Option<VolumeCondition>)>;

/// A request whose response had a condition.
trait Conditioned: Rpc + Default {
    /// The response with conditions.
    type LegacyReply: Message + Secrets + Clone + Default + 'static;

    /// The fields to set. `volume` is that of the request.
    fn conditions(volume: String, reply: &mut Self::LegacyReply) -> ConditionFields<'_>;

    /// Health issues of each of these volumes.
    fn issues(
        driver: &Driver,
        volumes: Vec<String>,
    ) -> impl Future<Output = Result<Vec<Vec<HealthIssue>>, Error>> + Send {
        async move {
            let of = |array: &Array| Ok(volumes.iter().map(|id| array.issues(id).to_vec()).collect());
            Ok(driver.store.read(of).await?)
        }
    }
}

impl Conditioned for ListVolumesRequest {
    type LegacyReply = ListVolumesResponse;

    fn conditions(_: String, reply: &mut ListVolumesResponse) -> ConditionFields<'_> {
        let entries = reply.entries.iter_mut().filter_map(|entry| {
            let condition = &mut entry.status.get_or_insert_default().volume_condition;
            Some((entry.volume.as_ref()?.volume_id.clone(), condition))
        });
        entries.collect()
    }
}

impl Conditioned for ControllerGetVolumeRequest {
    type LegacyReply = ControllerGetVolumeResponse;

    fn conditions(volume: String, reply: &mut ControllerGetVolumeResponse) -> ConditionFields<'_> {
        vec![(volume, &mut reply.status.get_or_insert_default().volume_condition)]
    }
}

impl Conditioned for NodeGetVolumeStatsRequest {
    type LegacyReply = NodeGetVolumeStatsResponse;

    fn conditions(volume: String, reply: &mut NodeGetVolumeStatsResponse) -> ConditionFields<'_> {
        vec![(volume, &mut reply.volume_condition)]
    }

    /// The array may be in another process.
    async fn issues(driver: &Driver, volumes: Vec<String>) -> Result<Vec<Vec<HealthIssue>>, Error> {
        let mut all = Vec::new();
        for volume in volumes {
            let view = driver.array_volume_or_inline(&volume).await?;
            all.push(view.map(|view| view.issues).unwrap_or_default());
        }
        Ok(all)
    }
}

fn serve<Q: Conditioned>(driver: &Arc<Driver>, request: http::Request<Body>) -> Answer {
    let driver = driver.clone();
    let service = service_fn(move |request: Request<Q>| answer(driver.clone(), request));
    Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).unary(service, request).await) })
}

async fn answer<Q: Conditioned>(
    driver: Arc<Driver>,
    request: Request<Q>,
) -> Result<Response<Q::LegacyReply>, Status> {
    let (driver, volume) = (&driver, request.get_ref().volume().to_owned());
    let with_conditions = |reply: Q::Reply| async move {
        let mut reply = Q::LegacyReply::decode(reply.encode_to_vec().as_slice())
            .expect("the legacy message must have the fields of the current one");
        let (volumes, fields): (Vec<_>, Vec<_>) = Q::conditions(volume, &mut reply).into_iter().unzip();
        let issues = Q::issues(driver, volumes).await?;
        for (field, issues) in fields.into_iter().zip(issues) {
            *field = Some(condition(&issues));
        }
        Ok(reply)
    };
    driver.answer_as(request, with_conditions).await
}

fn condition(issues: &[HealthIssue]) -> VolumeCondition {
    let messages: Vec<&str> = issues.iter().map(|issue| issue.message.as_str()).collect();
    VolumeCondition {
        abnormal: !issues.is_empty(),
        message: messages.join("; "),
    }
}
