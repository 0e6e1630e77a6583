//! Nodes of a stage that are lost, and volumes that the array loses.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::{Stage, StageVolume};

/// The taint by which an administrator vouches that a node is shut down, so that its volumes may be taken
/// away although nobody unmounted them.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

// === impl Stage ===

impl Stage<'_> {
    /// Takes the volume from the node behind everybody's back.
    pub async fn take_away(&mut self, volume: &StageVolume, node: usize) -> Result<()> {
        let node_id = self.node(node).node_id().to_owned();
        self.forced
            .insert((volume.handle.clone(), self.node(node).name().to_owned()));
        self.attachers_cannot_know(volume, node);
        self.driver.take_away(&volume.handle, &node_id).await
    }

    /// The scenario does something about this volume and node that makes a status wrong for a while, whoever
    /// wrote it.
    pub fn attachers_cannot_know(&mut self, volume: &StageVolume, node: usize) {
        let node_id = self.node(node).node_id().to_owned();
        self.beyond.insert((volume.handle.clone(), node_id));
    }

    /// Has a node go down without a word: no heartbeat, no unmount.
    pub fn lose_node(&self, node: usize) {
        self.node(node).fall_silent();
    }

    /// Does what an administrator does about a node that is down: vouches for it and removes the pod that was
    /// there. From now on the volume may be detached from it by force.
    pub async fn give_node_up(&mut self, node: usize, pod: &str, volume: &StageVolume) -> Result<()> {
        let name = self.node(node).name().to_owned();
        self.forced.insert((volume.handle.clone(), name.clone()));
        let taint = json!({"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"});
        let patch = Patch::Strategic(json!({"spec": {"taints": [taint]}}));
        Api::<Node>::all(self.client())
            .patch(&name, &PatchParams::default(), &patch)
            .await
            .with_context(|| format!("taint node {name}"))?;
        self.pods()
            .delete(pod, &DeleteParams::default().grace_period(0))
            .await
            .with_context(|| format!("remove pod {pod} for good"))?;
        Ok(())
    }
}
