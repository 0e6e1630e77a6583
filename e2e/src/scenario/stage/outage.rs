//! Nodes of a stage that are lost.

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
