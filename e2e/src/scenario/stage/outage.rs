//! Nodes of a stage that are lost or come back as others, and volumes that the array loses.

use anyhow::{Context, Result};
use jiff::Timestamp;
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

    /// Has the driver come back on the node under an id that no node had so far; answers with that id. What is
    /// attached to the node is still where it was, and is judged by that.
    pub async fn register_anew(&self, node: usize) -> Result<String> {
        let node_id = self.driver.node_id(self.nodes.len())?;
        self.node(node)
            .register_anew(self.driver.name(), &node_id)
            .await?;
        Ok(node_id)
    }

    /// What is attached to the node is attached under this id.
    pub fn judge_by(&mut self, node: usize, node_id: &str) {
        self.nodes[node].known_as(node_id);
    }

    /// Has a node go down without a word: no heartbeat, no unmount.
    pub fn lose_node(&self, node: usize) {
        self.node(node).fall_silent();
    }

    /// Has a node that went down report that it is not ready, as its kubelet does with its last words.
    pub async fn report_not_ready(&self, node: usize, message: &str) -> Result<()> {
        let name = self.node(node).name();
        let now = Timestamp::now().to_string();
        let condition = json!({
            "type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        });
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        Api::<Node>::all(self.client())
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .with_context(|| format!("report node {name} not ready"))?;
        Ok(())
    }

    /// Does what a cloud's controller does about a machine that is gone: removes the node. Once its pods are removed
    /// too, the volume is detached from it although nobody unmounted it.
    pub async fn remove_node(&mut self, node: usize, volume: &StageVolume) -> Result<()> {
        let name = self.node(node).name().to_owned();
        self.forced.insert((volume.handle.clone(), name.clone()));
        let nodes = Api::<Node>::all(self.client());
        // The attach/detach controller goes by the last status of a node that is gone, and would wait for it to
        // unmount the volume: six minutes.
        let unused = Patch::Strategic(json!({"status": {"volumesInUse": []}}));
        nodes
            .patch_status(&name, &PatchParams::default(), &unused)
            .await
            .with_context(|| format!("report node {name} without volumes"))?;
        nodes
            .delete(&name, &DeleteParams::default())
            .await
            .with_context(|| format!("remove node {name}"))?;
        Ok(())
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
        self.remove_pod(pod).await
    }
}
