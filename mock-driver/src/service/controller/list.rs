//! ListVolumes.

use csi_proto::v1::list_volumes_response::{Entry, VolumeStatus};
use csi_proto::v1::{ListVolumesRequest, ListVolumesResponse};

use super::volume::on_the_wire;
use crate::backend;
use crate::call::Rpc;
use crate::driver::Driver;
use crate::error::Error;
use crate::method::Method;
use crate::offer::Capability;
use crate::request::Invalid;

/// A page somebody asks for.
pub(crate) struct Wish {
    max_entries: usize,
    token: Option<String>,
}

impl Rpc for ListVolumesRequest {
    const METHOD: Method = Method::ListVolumes;
    type Reply = ListVolumesResponse;
    type Plan = Wish;

    fn check(&self) -> Result<Wish, Invalid> {
        let max_entries = usize::try_from(self.max_entries).map_err(|_| {
            Invalid::new(
                "max_entries",
                format!("must not be negative, is {}", self.max_entries),
            )
        })?;
        let token = Some(self.starting_token.clone()).filter(|token| !token.is_empty());
        Ok(Wish { max_entries, token })
    }

    async fn act(wish: Wish, driver: &Driver) -> Result<Self::Reply, Error> {
        let tells_nodes = driver.offer.has(Capability::ListVolumesPublishedNodes);
        let page = driver.page(wish.max_entries, wish.token.as_deref()).await?;
        Ok(ListVolumesResponse {
            entries: page
                .entries
                .into_iter()
                .map(|listed| entry(listed, tells_nodes))
                .collect(),
            next_token: page.next_token.unwrap_or_default(),
        })
    }
}

fn entry(entry: backend::Entry, tells_nodes: bool) -> Entry {
    let status = || VolumeStatus {
        published_node_ids: entry.nodes.iter().map(ToString::to_string).collect(),
    };
    Entry {
        volume: Some(on_the_wire(&entry.spec)),
        status: tells_nodes.then(status),
    }
}
