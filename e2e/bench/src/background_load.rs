//! Objects of another driver, which no implementation handles.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use serde_json::json;

use super::objects::{create, object};
use csi_e2e::cluster::Cluster;

const DRIVER: &str = "foreign.example";
/// Number of nodes of the objects.
const NODES: usize = 500;

/// VolumeAttachments and PersistentVolumes of a driver that does not run. The number only grows.
#[derive(Debug, Default)]
pub(super) struct BackgroundLoad {
    size: usize,
}

// === impl BackgroundLoad ===

impl BackgroundLoad {
    /// Creates objects up to this number of each kind.
    pub(super) async fn grow_to(&mut self, size: usize, cluster: &Cluster) -> Result<()> {
        if size <= self.size {
            return Ok(());
        }
        tracing::info!(from = self.size, to = size, "making foreign objects");
        let new = self.size..size;
        let volumes = new.clone().map(|n| {
            object::<PersistentVolume>(json!({
                "metadata": { "name": format!("foreign-{n}") },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": { "storage": "1Gi" },
                    "csi": { "driver": DRIVER, "volumeHandle": format!("handle-{n}") },
                },
            }))
        });
        create(&Api::all(cluster.client()), volumes)
            .await
            .context("create foreign PersistentVolumes")?;
        let attachments = new.map(|n| {
            object::<VolumeAttachment>(json!({
                "metadata": { "name": format!("foreign-{n}") },
                "spec": {
                    "attacher": DRIVER,
                    "nodeName": format!("foreign-node-{}", n % NODES),
                    "source": { "persistentVolumeName": format!("foreign-{n}") },
                },
            }))
        });
        create(&Api::all(cluster.client()), attachments)
            .await
            .context("create foreign VolumeAttachments")?;
        self.size = size;
        Ok(())
    }
}
