//! Lost and reregistered nodes of a test environment, and volumes that the array loses.

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ObjectMeta, Patch};
use serde_json::{Value, json};

use super::{STEP_TIMEOUT, TestEnv, TestVolume};
use crate::fixture::OUT_OF_SERVICE;
use crate::objects;
use crate::wait;

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Unpublishes the volume at the array, without the attacher.
    pub async fn unpublish_out_of_band(&mut self, volume: &TestVolume, node: usize) -> Result<()> {
        let node_id = self.node(node).node_id().to_owned();
        self.allow_force_detach(volume, node);
        self.exempt_from_attached(volume, node);
        self.driver.unpublish_out_of_band(&volume.handle, &node_id).await
    }

    /// Exempts this volume and node from the clauses about `attached: true`, because the scenario makes a status temporarily wrong.
    pub fn exempt_from_attached(&mut self, volume: &TestVolume, node: usize) {
        let node_id = self.node(node).node_id().to_owned();
        self.exempt.insert((volume.handle.clone(), node_id));
    }

    /// Exempts the object with this UID from the invariants, because the scenario makes the API server lose it, or its finalizer.
    pub fn expect_lost_object(&mut self, uid: &str) {
        self.lost_objects.insert(uid.to_owned());
    }

    /// Reregisters the driver on the node under a new id, as after the machine behind it was replaced; returns the id.
    /// Existing attachments stay attached to the old id, and are verified with it.
    pub async fn reregister(&self, node: usize) -> Result<String> {
        let node = self.node(node);
        let new = format!("{}-replaced", node.node_id());
        self.driver.rename_node(node.node_id(), &new).await?;
        node.reregister(&new).await?;
        Ok(new)
    }

    /// Makes the invariants expect the node's volumes to be published to this id.
    pub fn expect_node_id(&mut self, node: usize, node_id: &str) {
        self.nodes[node].set_node_id(node_id);
    }

    /// Stops the node's kubelet without a shutdown: no heartbeat, no unmount.
    pub async fn lose_node(&mut self, node: usize) -> Result<()> {
        self.nodes[node].crash().await
    }

    /// Starts a lost node again, with its mounts.
    pub fn recover_node(&mut self, node: usize) -> Result<()> {
        self.nodes[node].recover()
    }

    /// Reports that a stopped node is not ready, as its kubelet does in its last status update.
    pub async fn report_not_ready(&self, node: usize, message: &str) -> Result<()> {
        let name = self.node(node).name();
        let now = Timestamp::now().to_string();
        let condition = json!({
            "type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        });
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        objects::patch_status(&Api::<Node>::all(self.client()), name, &patch)
            .await
            .map(drop)
    }

    /// Deletes the Node, as a cloud controller manager does for a deleted machine. Once its pods are deleted too, the
    /// volume is detached from it although it was not unmounted.
    pub async fn remove_node(&mut self, node: usize, volume: &TestVolume) -> Result<()> {
        let name = self.node(node).name().to_owned();
        self.allow_force_detach(volume, node);
        let nodes = Api::<Node>::all(self.client());
        // The attach/detach controller uses the last status of a deleted node, and would wait six minutes for the
        // unmount.
        let unused = Patch::Strategic(json!({"status": {"volumesInUse": []}}));
        objects::patch_status(&nodes, &name, &unused).await?;
        self.delete_node(node).await
    }

    /// Deletes the Node object, whose last status may report volumes in use.
    pub async fn delete_node(&self, node: usize) -> Result<()> {
        let name = self.node(node).name();
        objects::delete(&Api::<Node>::all(self.client()), name).await
    }

    /// Deletes the Node object and creates it again with the status that its running kubelet reports.
    pub async fn recreate_node(&self, node: usize) -> Result<()> {
        let nodes = Api::<Node>::all(self.client());
        let name = self.node(node).name();
        let mut new = nodes.get(name).await?;
        new.metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: new.metadata.labels,
            annotations: new.metadata.annotations,
            ..ObjectMeta::default()
        };
        // The attach/detach controller's report, not kubelet's.
        new.status.get_or_insert_default().volumes_attached = None;
        self.delete_node(node).await?;
        wait::for_absence(&nodes, name, STEP_TIMEOUT, "the Node to be deleted").await?;
        objects::create(&nodes, &new).await.map(drop)
    }

    /// Expects the volume to be detached from the node although it is mounted there, from now on.
    pub fn allow_force_detach(&mut self, volume: &TestVolume, node: usize) {
        let node = self.node(node).name().to_owned();
        let force = (volume.handle.clone(), node);
        self.force_detached.entry(force).or_insert_with(Timestamp::now);
    }

    /// Handles a node that is down as an administrator does: adds the out-of-service taint and deletes the node's pod.
    /// From then on the volume may be force-detached from the node.
    pub async fn mark_out_of_service(&mut self, node: usize, pod: &str, volume: &TestVolume) -> Result<()> {
        self.taint_out_of_service(node, volume).await?;
        self.remove_pod(pod).await
    }

    /// Adds the out-of-service taint. From then on the volume may be force-detached from the node.
    pub async fn taint_out_of_service(&mut self, node: usize, volume: &TestVolume) -> Result<()> {
        self.allow_force_detach(volume, node);
        self.set_out_of_service(node, true).await
    }

    /// Adds the out-of-service taint, or removes all taints; the node lifecycle controller restores its own.
    pub async fn set_out_of_service(&self, node: usize, tainted: bool) -> Result<()> {
        let taint = json!({"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"});
        let taints = if tainted { json!([taint]) } else { Value::Null };
        self.set_taints(node, taints).await
    }

    /// Gives the node this taint only; the node lifecycle controller restores its own.
    pub async fn taint(&self, node: usize, key: &str, effect: &str) -> Result<()> {
        self.set_taints(node, json!([{"key": key, "effect": effect}]))
            .await
    }

    /// Removes all taints; the node lifecycle controller restores its own.
    pub async fn remove_taints(&self, node: usize) -> Result<()> {
        self.set_taints(node, Value::Null).await
    }

    async fn set_taints(&self, node: usize, taints: Value) -> Result<()> {
        let name = self.node(node).name();
        let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
        objects::patch(&Api::<Node>::all(self.client()), name, &patch)
            .await
            .map(drop)
    }
}
