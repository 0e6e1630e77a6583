//! The array behind the driver: where volumes are published, and out-of-band changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_proto::v1::{ControllerUnpublishVolumeRequest, ListVolumesRequest};
use tokio::time::{Instant, sleep, timeout};

use super::{CALL, Driver, POLL_INTERVAL};

/// Entries asked for in a page of ListVolumes: few, so that paging is used.
const PAGE: i32 = 100;
// === impl Driver ===

impl Driver {
    /// The true list of nodes that have each volume, from all pages of ListVolumes. Volumes that no node has
    /// are left out.
    pub async fn published(&self) -> Result<BTreeMap<String, BTreeSet<String>>> {
        let mut published = BTreeMap::new();
        let mut starting_token = String::new();
        loop {
            let request = ListVolumesRequest {
                max_entries: PAGE,
                starting_token,
            };
            let page = timeout(CALL, self.controller().list_volumes(request))
                .await
                .with_context(|| format!("ListVolumes had no answer in {CALL:?}"))?
                .context("ListVolumes")?
                .into_inner();
            for entry in page.entries {
                let volume = entry.volume.context("ListVolumes named no volume in an entry")?;
                let status = entry.status.context("ListVolumes gave no status of a volume")?;
                if !status.published_node_ids.is_empty() {
                    let nodes = status.published_node_ids.into_iter().collect();
                    let twice = published.insert(volume.volume_id.clone(), nodes);
                    ensure!(twice.is_none(), "ListVolumes named {} twice", volume.volume_id);
                }
            }
            if page.next_token.is_empty() {
                return Ok(published);
            }
            starting_token = page.next_token;
        }
    }

    /// Waits until the array itself, not an answer, has the volume on the node (or has not, if `there` is
    /// false). The journal has a call's result only when it is answered, so this polls the array.
    pub async fn wait_until_published(
        &self,
        handle: &str,
        node_id: &str,
        there: bool,
        within: Duration,
    ) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let published = self.published().await?;
            if published.get(handle).is_some_and(|nodes| nodes.contains(node_id)) == there {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "waited {within:?} for {handle} to be {} {node_id}; the array has it on {:?}",
                if there { "published to" } else { "unpublished from" },
                published.get(handle)
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Unpublishes a volume without the attacher, as a storage administrator does.
    pub async fn unpublish_out_of_band(&self, handle: &str, node_id: &str) -> Result<()> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: handle.to_owned(),
            node_id: node_id.to_owned(),
            ..ControllerUnpublishVolumeRequest::default()
        };
        timeout(CALL, self.controller().controller_unpublish_volume(request))
            .await
            .with_context(|| format!("taking {handle} away had no answer in {CALL:?}"))?
            .with_context(|| format!("take {handle} from {node_id}"))?;
        Ok(())
    }
}
