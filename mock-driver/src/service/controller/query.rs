//! ListVolumes, GetCapacity and volume health.

use csi_proto::v1::list_volumes_response::{Entry, VolumeStatus};
use csi_proto::v1::{
    ControllerGetVolumeHealthRequest, ControllerListVolumeHealthRequest, GetCapacityRequest,
    ListVolumesRequest,
};

use super::shape;
use crate::array::{self, Array, Segments};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities::Capability;
use crate::rpc::validate::{self, Invalid, Map};
use crate::service::call::Rpc;

pub(crate) struct ListParams {
    pub(super) max_entries: usize,
    pub(super) token: Option<String>,
}

// === impl ListParams ===

impl ListParams {
    pub(super) fn read(max_entries: i32, starting_token: &str) -> Result<Self, Invalid> {
        Ok(Self {
            max_entries: validate::count("max_entries", max_entries)?,
            token: Some(starting_token.to_owned()).filter(|token| !token.is_empty()),
        })
    }
}

impl Rpc for ListVolumesRequest {
    type Params = ListParams;

    fn validate(&self) -> Result<ListParams, Invalid> {
        ListParams::read(self.max_entries, &self.starting_token)
    }

    async fn execute(params: ListParams, driver: &Driver) -> Result<Self::Reply, Error> {
        let reports_nodes = driver.capabilities.has(Capability::ListVolumesPublishedNodes);
        let reports_condition = driver.capabilities.has(Capability::VolumeCondition);
        let page = driver.page(params.max_entries, params.token.as_deref()).await?;
        let entry = |entry: array::Entry| {
            let published = entry.nodes.iter().filter(|_| reports_nodes);
            let status = VolumeStatus {
                published_node_ids: published.map(ToString::to_string).collect(),
                volume_condition: reports_condition.then(|| shape::condition(&entry.issues)),
            };
            Entry {
                volume: Some(driver.shape_volume(&entry.spec)),
                status: (reports_nodes || status.volume_condition.is_some()).then_some(status),
            }
        };
        Ok(Self::Reply {
            entries: page.entries.into_iter().map(entry).collect(),
            next_token: page.next_token.unwrap_or_default(),
        })
    }
}

impl Rpc for GetCapacityRequest {
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
            Capability::VolumeAccessibilityConstraints,
            "accessible_topology",
            topology.is_some(),
        )?;
        let capacity = |array: &Array| array.capacity_for(array.pool_named(&parameters), topology.as_ref());
        let capacity = driver.store.read(capacity).await?;
        Ok(Self::Reply {
            available_capacity: shape::bytes(capacity.available),
            maximum_volume_size: Some(shape::bytes(capacity.largest)),
            minimum_volume_size: Some(shape::bytes(capacity.smallest)),
        })
    }
}

impl Rpc for ControllerListVolumeHealthRequest {
    type Params = ListParams;

    fn validate(&self) -> Result<ListParams, Invalid> {
        ListParams::read(self.max_entries, &self.starting_token)
    }

    async fn execute(params: ListParams, driver: &Driver) -> Result<Self::Reply, Error> {
        let page = driver
            .store
            .read(|array| array.list_health(params.max_entries, params.token.as_deref()))
            .await?;
        let health = |entry: &array::Entry| shape::health(entry.spec.id.as_str(), &entry.issues);
        Ok(Self::Reply {
            entries: page.entries.iter().map(health).collect(),
            next_token: page.next_token.unwrap_or_default(),
        })
    }
}

impl Rpc for ControllerGetVolumeHealthRequest {
    required_id!(volume_id);

    async fn execute(volume: String, driver: &Driver) -> Result<Self::Reply, Error> {
        let found = driver.store.read(|array| array.volume(&volume).cloned()).await?;
        Ok(Self::Reply {
            volume_health: Some(shape::health(&volume, &found.health)),
        })
    }
}
