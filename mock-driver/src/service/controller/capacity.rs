//! GetCapacity.

use csi_proto::v1::{GetCapacityRequest, GetCapacityResponse};

use super::shape;
use crate::array::{Array, Segments};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities;
use crate::rpc::method::Method;
use crate::rpc::validate::{self, Invalid, Map};
use crate::service::call::Rpc;

/// The space somebody asks about.
pub(crate) struct Space {
    parameters: Map,
    place: Option<Segments>,
}

impl Rpc for GetCapacityRequest {
    const METHOD: Method = Method::GetCapacity;
    type Reply = GetCapacityResponse;
    type Plan = Space;

    fn check(&self) -> Result<Space, Invalid> {
        if !self.volume_capabilities.is_empty() {
            validate::capabilities(&self.volume_capabilities)?;
        }
        let parameters = validate::map("parameters", &self.parameters)?;
        let place = match &self.accessible_topology {
            Some(topology) => Some(validate::segments("accessible_topology", topology)?),
            None => None,
        };
        Ok(Space { parameters, place })
    }

    async fn act(space: Space, driver: &Driver) -> Result<Self::Reply, Error> {
        validate::needs(
            &driver.offer,
            capabilities::Capability::VolumeAccessibilityConstraints,
            "accessible_topology",
            space.place.is_some(),
        )?;
        let room = |array: &Array| array.room_for(array.pool_named(&space.parameters), space.place.as_ref());
        let room = driver.store.read(room).await?;
        Ok(GetCapacityResponse {
            available_capacity: shape::bytes(room.available),
            maximum_volume_size: Some(shape::bytes(room.largest)),
            minimum_volume_size: Some(shape::bytes(room.smallest)),
        })
    }
}
