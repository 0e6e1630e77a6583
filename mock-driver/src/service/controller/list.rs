//! ListVolumes.

use csi_proto::v1::list_volumes_response::{Entry, VolumeStatus};
use csi_proto::v1::{ListVolumesRequest, ListVolumesResponse};

use crate::array;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities::Capability;
use crate::rpc::validate::{self, Invalid};
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
    type Reply = ListVolumesResponse;
    type Params = ListParams;

    fn validate(&self) -> Result<ListParams, Invalid> {
        ListParams::read(self.max_entries, &self.starting_token)
    }

    async fn execute(wish: ListParams, driver: &Driver) -> Result<Self::Reply, Error> {
        let tells_nodes = driver.capabilities.has(Capability::ListVolumesPublishedNodes);
        let page = driver.page(wish.max_entries, wish.token.as_deref()).await?;
        let entry = |entry: array::Entry| Entry {
            volume: Some(driver.shape_volume(&entry.spec)),
            status: tells_nodes.then(|| VolumeStatus {
                published_node_ids: entry.nodes.iter().map(ToString::to_string).collect(),
            }),
        };
        Ok(ListVolumesResponse {
            entries: page.entries.into_iter().map(entry).collect(),
            next_token: page.next_token.unwrap_or_default(),
        })
    }
}
