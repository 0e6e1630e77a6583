//! What CSI had before 1.13 and older callers still read: the condition of a volume in the answers of
//! ListVolumes and ControllerGetVolume.
//!
//! The answers are those of today with one more field, under the number it had then. They are given only
//! while the driver says that it has VOLUME_CONDITION; the journal shows them as they are today.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use csi_proto::v1::{self, ControllerGetVolumeRequest, ListVolumesRequest};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::backend::Array;
use crate::call::Rpc;
use crate::driver::Driver;
use crate::error::Error;
use crate::method::Method;
use crate::offer::Capability;

type Answer = BoxFuture<http::Response<Body>, Infallible>;

/// Answers one call.
type Serve = fn(&Arc<Driver>, http::Request<Body>) -> Answer;

/// What answers a call as a driver does that has VOLUME_CONDITION; none if it has not, or if there never was
/// a condition in this answer.
pub(super) fn server(driver: &Driver, path: &str) -> Option<Serve> {
    if !driver.offer.has(Capability::VolumeCondition) {
        return None;
    }
    if path == Method::ListVolumes.path() {
        return Some(serve::<ListVolumesRequest>);
    }
    (path == Method::ControllerGetVolume.path()).then_some(serve::<ControllerGetVolumeRequest>)
}

/// A call whose answer had a condition.
trait Conditioned: Rpc + Default {
    /// The answer with conditions.
    type Older: prost::Message + Default + 'static;

    /// The volumes whose conditions are told, of a call that names `volume` or none.
    fn volumes(volume: String, reply: &Self::Reply) -> Vec<String>;

    /// Adds the conditions.
    fn older(reply: Self::Reply, conditions: BTreeMap<String, VolumeCondition>) -> Self::Older;
}

/// Whether something is wrong with a volume, and what.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct VolumeCondition {
    #[prost(bool, tag = "1")]
    abnormal: bool,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct VolumeStatus {
    #[prost(string, repeated, tag = "1")]
    published_node_ids: Vec<String>,
    #[prost(message, optional, tag = "2")]
    volume_condition: Option<VolumeCondition>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Entry {
    #[prost(message, optional, tag = "1")]
    volume: Option<v1::Volume>,
    #[prost(message, optional, tag = "2")]
    status: Option<VolumeStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ListVolumesResponse {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
    #[prost(string, tag = "2")]
    next_token: String,
}

impl Conditioned for ListVolumesRequest {
    type Older = ListVolumesResponse;

    fn volumes(_: String, reply: &v1::ListVolumesResponse) -> Vec<String> {
        let volumes = reply.entries.iter().filter_map(|entry| entry.volume.as_ref());
        volumes.map(|volume| volume.volume_id.clone()).collect()
    }

    fn older(
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
    /// It has the shape of an entry of ListVolumes.
    type Older = Entry;

    fn volumes(volume: String, _: &v1::ControllerGetVolumeResponse) -> Vec<String> {
        vec![volume]
    }

    fn older(reply: v1::ControllerGetVolumeResponse, conditions: BTreeMap<String, VolumeCondition>) -> Entry {
        Entry {
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

struct WithConditions(Arc<Driver>);

// === impl WithConditions ===

impl<Q: Conditioned> UnaryService<Q> for WithConditions {
    type Response = Q::Older;
    type Future = BoxFuture<Response<Q::Older>, Status>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let driver = self.0.clone();
        Box::pin(async move {
            let volume = request.get_ref().volume().to_owned();
            let reply = driver.answer(request).await?.into_inner();
            let volumes = Q::volumes(volume, &reply);
            let conditions = |array: &Array| Ok(conditions(array, volumes));
            let conditions = driver.store.read(conditions).await.map_err(Error::from)?;
            Ok(Response::new(Q::older(reply, conditions)))
        })
    }
}

fn serve<Q: Conditioned>(driver: &Arc<Driver>, request: http::Request<Body>) -> Answer {
    let service = WithConditions(driver.clone());
    Box::pin(async move {
        let mut grpc = Grpc::new(ProstCodec::<Q::Older, Q>::default());
        Ok(grpc.unary(service, request).await)
    })
}

fn conditions(array: &Array, volumes: Vec<String>) -> BTreeMap<String, VolumeCondition> {
    let condition = |volume: String| {
        let ailments = array.ailments(&volume);
        let messages: Vec<&str> = ailments.iter().map(|ailment| ailment.message.as_str()).collect();
        let condition = VolumeCondition {
            abnormal: !ailments.is_empty(),
            message: messages.join("; "),
        };
        (volume, condition)
    };
    volumes.into_iter().map(condition).collect()
}
