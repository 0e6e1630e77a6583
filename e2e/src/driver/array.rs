//! The driver's array, through its admin API.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result};
use csi_mock_driver::admin_api::client::Client;
use csi_mock_driver::admin_api::query::AttachmentQuery;
use csi_mock_driver::admin_api::resource::NodeChange;

use super::{CALL, Driver};
use crate::wait::{self, Progress};

/// The driver's ids of the nodes to which each volume is published.
pub type NodesByVolume = BTreeMap<String, BTreeSet<String>>;

// === impl Driver ===

impl Driver {
    /// A client of the driver's admin API.
    pub fn admin(&self) -> Result<Client> {
        let endpoint = format!("unix://{}", self.admin_socket().display());
        Ok(Client::new(endpoint.parse().context("parse the admin endpoint")?).within(CALL))
    }

    /// The nodes to which the array has each volume published. Unpublished volumes are omitted.
    pub async fn published(&self) -> Result<NodesByVolume> {
        published(&self.admin()?).await
    }

    /// Waits until the array has the volume published to the node, or unpublished if `wanted` is false, even if the
    /// call has not returned.
    pub async fn wait_until_published(
        &self,
        handle: &str,
        node_id: &str,
        wanted: bool,
        within: Duration,
    ) -> Result<()> {
        let client = self.admin()?;
        let state = if wanted {
            "published to"
        } else {
            "unpublished from"
        };
        wait::poll(within, &format!("{handle} to be {state} {node_id}"), || async {
            let volume = client
                .volume(handle)
                .await
                .with_context(|| format!("read volume {handle}"))?;
            let nodes = volume.attachments.into_iter().map(|attachment| attachment.node);
            let nodes: Vec<_> = nodes.collect();
            Ok(Progress::of(
                nodes.iter().any(|node| node == node_id) == wanted,
                || format!("it is published to {nodes:?}"),
            ))
        })
        .await
    }

    /// Unpublishes a volume at the array, without the attacher, as a storage administrator does.
    pub async fn unpublish_out_of_band(&self, handle: &str, node_id: &str) -> Result<()> {
        let detached = self.admin()?.detach(handle, node_id).await;
        detached.with_context(|| format!("detach {handle} from {node_id} at the array"))
    }

    /// Gives a node another id: to the array it is another node, and volumes stay attached to the old one.
    pub async fn rename_node(&self, node_id: &str, new: &str) -> Result<()> {
        let change = NodeChange {
            id: Some(new.to_owned()),
            ..NodeChange::default()
        };
        let renamed = self.admin()?.change_node(node_id, &change).await;
        renamed
            .map(drop)
            .with_context(|| format!("rename node {node_id} to {new} at the array"))
    }
}

/// The nodes to which the array of this admin API has each volume published.
pub async fn published(client: &Client) -> Result<NodesByVolume> {
    let mut published = NodesByVolume::new();
    let mut query = AttachmentQuery::default();
    loop {
        let page = client
            .attachments(&query)
            .await
            .context("list the array's attachments")?;
        for attachment in page.items {
            published
                .entry(attachment.volume)
                .or_default()
                .insert(attachment.node);
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok(published),
        }
    }
}
