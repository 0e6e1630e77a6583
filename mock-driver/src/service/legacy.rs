//! The volume condition of CSI before 1.13, for earlier clients, in responses of ListVolumes, ControllerGetVolume and
//! NodeGetVolumeStats.
//!
//! The responses are those of 1.13 with one more field, under its earlier number. They are used only while the driver has
//! VOLUME_CONDITION or NODE_VOLUME_CONDITION; the journal shows them as sent. If the condition cannot be read, the call
//! fails.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use csi_proto::Secrets;
use csi_proto::v1::{self, ControllerGetVolumeRequest, ListVolumesRequest, NodeGetVolumeStatsRequest};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::array::{Array, HealthIssue};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities::Capability;
use crate::rpc::legacy::list_volumes_response::Entry;
use crate::rpc::legacy::{
    ControllerGetVolumeResponse, ListVolumesResponse, NodeGetVolumeStatsResponse, VolumeCondition,
    VolumeStatus,
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

/// A request whose response had a condition.
trait Conditioned: Rpc + Default {
    /// The response with conditions.
    type LegacyReply: prost::Message + Secrets + Clone + Default + 'static;

    /// The volumes whose conditions are reported: that of the request, or those of the reply.
    fn volumes(volume: String, _: &Self::Reply) -> Vec<String> {
        vec![volume]
    }

    /// Health issues of these volumes.
    fn issues(
        driver: &Driver,
        volumes: Vec<String>,
    ) -> impl Future<Output = Result<BTreeMap<String, Vec<HealthIssue>>, Error>> + Send {
        async move {
            let issues = |array: &Array| {
                let of = |volume: String| (array.issues(&volume).to_vec(), volume);
                let all = volumes.into_iter().map(of);
                Ok(all.map(|(issues, volume)| (volume, issues)).collect())
            };
            Ok(driver.store.read(issues).await?)
        }
    }

    fn legacy(reply: Self::Reply, conditions: BTreeMap<String, VolumeCondition>) -> Self::LegacyReply;
}

impl Conditioned for ListVolumesRequest {
    type LegacyReply = ListVolumesResponse;

    fn volumes(_: String, reply: &v1::ListVolumesResponse) -> Vec<String> {
        let volumes = reply.entries.iter().filter_map(|entry| entry.volume.as_ref());
        volumes.map(|volume| volume.volume_id.clone()).collect()
    }

    fn legacy(
        reply: v1::ListVolumesResponse,
        mut conditions: BTreeMap<String, VolumeCondition>,
    ) -> ListVolumesResponse {
        let mut entry = |entry: v1::list_volumes_response::Entry| {
            let id = entry.volume.as_ref().map(|volume| volume.volume_id.as_str());
            Entry {
                status: Some(VolumeStatus {
                    volume_condition: id.and_then(|id| conditions.remove(id)),
                    published_node_ids: entry
                        .status
                        .map(|status| status.published_node_ids)
                        .unwrap_or_default(),
                }),
                volume: entry.volume,
            }
        };
        ListVolumesResponse {
            entries: reply.entries.into_iter().map(&mut entry).collect(),
            next_token: reply.next_token,
        }
    }
}

impl Conditioned for ControllerGetVolumeRequest {
    type LegacyReply = ControllerGetVolumeResponse;

    fn legacy(
        reply: v1::ControllerGetVolumeResponse,
        conditions: BTreeMap<String, VolumeCondition>,
    ) -> ControllerGetVolumeResponse {
        ControllerGetVolumeResponse {
            status: Some(VolumeStatus {
                volume_condition: conditions.into_values().next(),
                published_node_ids: reply
                    .status
                    .map(|status| status.published_node_ids)
                    .unwrap_or_default(),
            }),
            volume: reply.volume,
        }
    }
}

impl Conditioned for NodeGetVolumeStatsRequest {
    type LegacyReply = NodeGetVolumeStatsResponse;

    /// The array may be in another process.
    async fn issues(
        driver: &Driver,
        volumes: Vec<String>,
    ) -> Result<BTreeMap<String, Vec<HealthIssue>>, Error> {
        let mut all = BTreeMap::new();
        for volume in volumes {
            let view = driver.view_or_inline(&volume).await?;
            all.insert(volume, view.map(|view| view.issues).unwrap_or_default());
        }
        Ok(all)
    }

    fn legacy(
        reply: v1::NodeGetVolumeStatsResponse,
        conditions: BTreeMap<String, VolumeCondition>,
    ) -> NodeGetVolumeStatsResponse {
        NodeGetVolumeStatsResponse {
            usage: reply.usage,
            volume_condition: conditions.into_values().next(),
        }
    }
}

struct WithConditions(Arc<Driver>);

// === impl WithConditions ===

impl<Q: Conditioned> UnaryService<Q> for WithConditions {
    type Response = Q::LegacyReply;
    type Future = BoxFuture<Response<Q::LegacyReply>, Status>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let driver = self.0.clone();
        Box::pin(async move {
            let (driver, volume) = (&driver, request.get_ref().volume().to_owned());
            let with_conditions = |reply: Q::Reply| async move {
                let issues = Q::issues(driver, Q::volumes(volume, &reply)).await?;
                let conditions = issues
                    .into_iter()
                    .map(|(volume, issues)| (volume, condition(&issues)));
                Ok(Q::legacy(reply, conditions.collect()))
            };
            driver.answer_as(request, with_conditions).await
        })
    }
}

fn serve<Q: Conditioned>(driver: &Arc<Driver>, request: http::Request<Body>) -> Answer {
    let service = WithConditions(driver.clone());
    Box::pin(async move {
        let mut grpc = Grpc::new(ProstCodec::<Q::LegacyReply, Q>::default());
        Ok(grpc.unary(service, request).await)
    })
}

fn condition(issues: &[HealthIssue]) -> VolumeCondition {
    let messages: Vec<&str> = issues.iter().map(|issue| issue.message.as_str()).collect();
    VolumeCondition {
        abnormal: !issues.is_empty(),
        message: messages.join("; "),
    }
}
