//! Synchronizes the node of this process with the array of another process.
//!
//! A task locks the volume before the request, so that a stale response cannot overwrite a newer state. The sweep of
//! devices requests all volumes at once without a lock, and spares those that were found attached since its request.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time;
use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::admin_api::resource;
use crate::array;
use crate::driver::error::Error;
use crate::driver::remote::{FOLLOW_EVERY, RemoteArray};
use crate::error_chain;
use crate::node::{self, ArrayVolume, Node};
use crate::store::volume_files::ClaimError;

// === impl Driver ===

impl Driver {
    /// The view of a volume from a node. Attaches or detaches the device first, because polling may not have seen the change
    /// yet.
    ///
    /// # Errors
    /// The volume does not exist, the array does not respond, or the device cannot be attached.
    pub(super) async fn remote_view(
        &self,
        remote: &RemoteArray,
        volume: &str,
        node: &str,
    ) -> Result<ArrayVolume, Error> {
        let _locked = remote.lock_volume(volume).await;
        let view = remote
            .view(volume, node)
            .await?
            .ok_or_else(|| array::Error::VolumeNotFound {
                volume: volume.to_owned(),
            })?;
        if let Some(here) = &self.node {
            settle(remote, here, volume, &view).await?;
        }
        Ok(view)
    }

    /// Polls this node's attachments in another process's array until `stop`.
    ///
    /// # Errors
    /// The media directory is not the array's.
    pub(crate) async fn follow_array(&self, stop: CancellationToken) -> Result<(), ClaimError> {
        let (Some(remote), Some(node)) = (&self.remote, &self.node) else {
            stop.cancelled().await;
            return Ok(());
        };
        let mut settled = BTreeSet::new();
        let (mut last_error, mut is_first) = (None, true);
        loop {
            let now = match self.follow_once(remote, node, &mut settled).await {
                Err(Error::Node(node::Error::MediaDir(error))) => return Err(error),
                now => now.err(),
            };
            if is_first && now.is_none() {
                is_first = false;
                self.release_leftover_devices(&settled).await;
            }
            let now = now.map(|error| error_chain(&error));
            if now != last_error {
                match &now {
                    Some(error) => tracing::warn!(error, "cannot follow the array"),
                    None => tracing::info!("following the array again"),
                }
                last_error = now;
            }
            if stop
                .run_until_cancelled(time::sleep(FOLLOW_EVERY))
                .await
                .is_none()
            {
                return Ok(());
            }
        }
    }

    async fn follow_once(
        &self,
        remote: &RemoteArray,
        node: &Arc<Node>,
        settled: &mut BTreeSet<String>,
    ) -> Result<(), Error> {
        remote.begin_sweep();
        let known = ensure_joined(remote, node).await?;
        // A failure of one device does not keep the others from theirs.
        let mut result = {
            let _guard = remote.devices.write().await;
            let kept = remote.end_sweep(&known.volumes);
            node.retain_devices(kept, self.node_features())
                .await
                .map_err(Error::from)
        };
        settled.retain(|volume| known.volumes.contains(volume));
        for volume in known.volumes {
            if settled.contains(&volume) {
                continue;
            }
            let _locked = remote.lock_volume(&volume).await;
            // Without the array, no volume can be looked up.
            let Some(view) = remote.view(&volume, &known.id).await? else {
                continue;
            };
            match settle(remote, node, &volume, &view).await {
                Ok(()) => {
                    settled.insert(volume);
                }
                Err(error @ Error::Node(node::Error::MediaDir(_))) => return Err(error),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }
}

/// Attaches a volume's device if the array has attached the volume. The sweep removes devices.
async fn settle(
    remote: &RemoteArray,
    node: &Arc<Node>,
    volume: &str,
    view: &ArrayVolume,
) -> Result<(), Error> {
    let _guard = remote.devices.read().await;
    remote.note(volume, view.attachment.is_some());
    if view.attachment.is_some() {
        remote.check_media(node).await?;
        node.reconcile_device(volume, Some(view)).await?;
    }
    Ok(())
}

/// The record of this process's node in an array in another process. The node joins if the array does not know it, takes
/// its new id if it was renamed there, and reports its configured topology once. A node that was removed from the array
/// does not join again, and keeps the volumes that are attached to it.
pub(super) async fn ensure_joined(remote: &RemoteArray, node: &Arc<Node>) -> Result<resource::Node, Error> {
    remote.check_media(node).await?;
    let mut topology_reported = remote.topology_reported.lock().await;
    let mut id = node.info().id;
    let known = loop {
        let known = remote.node(&id).await?;
        match known.as_ref().and_then(|known| known.renamed_to.clone()) {
            Some(current) => {
                tracing::info!(from = id, to = current, "the array gave this node another id");
                node.set_info(|info| info.id.clone_from(&current));
                id = current;
            }
            None => break known,
        }
    };
    let segments = &node.segments;
    let known = match known {
        None => {
            remote.join(&id, segments).await?;
            tracing::info!(node = id, "joined the array");
            remote.node(&id).await?
        }
        Some(known)
            if !*topology_reported && !segments.is_empty() && known.topology != *segments.as_map() =>
        {
            remote.set_node_topology(&id, segments).await?;
            tracing::info!(node = id, from = ?known.topology, to = %segments, "updated the topology of this node in the array");
            remote.node(&id).await?
        }
        Some(known) => Some(known),
    };
    *topology_reported = true;
    known.ok_or_else(|| {
        let reason = format!("it has taken node \"{id}\" in and does not know it");
        node::Error::no_array(&reason).into()
    })
}
