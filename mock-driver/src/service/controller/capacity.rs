//! GetCapacity.

use csi_proto::v1::{GetCapacityRequest, GetCapacityResponse};

use super::shape;
use crate::array::{Array, Segments};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities;
use crate::rpc::validate::{self, Invalid, Map};
use crate::service::call::Rpc;

impl Rpc for GetCapacityRequest {
    type Reply = GetCapacityResponse;
    type Params = (Map, Option<Segments>);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        if !self.volume_capabilities.is_empty() {
            validate::capabilities(&self.volume_capabilities)?;
        }
        let parameters = validate::map("parameters", &self.parameters)?;
        let topology = self.accessible_topology.as_ref();
        let topology = topology.map(|topology| validate::topology("accessible_topology", topology));
        Ok((parameters, topology.transpose()?))
    }

    async fn execute((parameters, topology): Self::Params, driver: &Driver) -> Result<Self::Reply, Error> {
        validate::needs(
            &driver.capabilities,
            capabilities::Capability::VolumeAccessibilityConstraints,
            "accessible_topology",
            topology.is_some(),
        )?;
        let room = |array: &Array| array.capacity_for(array.pool_named(&parameters), topology.as_ref());
        let room = driver.store.read(room).await?;
        Ok(GetCapacityResponse {
            available_capacity: shape::bytes(room.available),
            maximum_volume_size: Some(shape::bytes(room.largest)),
            minimum_volume_size: Some(shape::bytes(room.smallest)),
        })
    }
}
