//! Kubelet's CSINode, and the driver's node id and topology on its Node: upstream's `nodeinfomanager`.
//!
//! Kubelet creates a CSINode that was deleted only when it starts, when a driver registers and when it updates the attach limit.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use csi_proto::v1;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::csi_mounter::CSI_TIMEOUT;
use super::node_registration::{NodeRegistration, owner};
use crate::driver_connection::DriverConnection;

/// Annotation of a CSINode: the in-tree plugins that are migrated to CSI on this node.
const MIGRATED_PLUGINS: (&str, &str) = (
    "storage.alpha.kubernetes.io/migrated-plugins",
    "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/cinder",
);
/// Annotation of a Node: a JSON object with the node's id of each driver.
const NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";

// === impl NodeRegistration ===

impl NodeRegistration {
    /// Writes the driver's NodeGetInfo response into Node and CSINode. `node` is the Node of kubelet's start.
    ///
    /// # Errors
    /// The driver's call failed, a label of the Node contradicts the driver's topology, or the API server rejected an
    /// object; kubelet retries.
    pub(super) async fn install_driver(
        &self,
        node: &Node,
        driver: &DriverConnection,
    ) -> anyhow::Result<String> {
        let (entry, topology) = node_info(driver).await?;
        self.update_node(&entry, topology).await?;
        let name = entry.name.clone();
        let written = self.update_csi_node(node, entry).await;
        if let Err(kube::Error::Api(status)) = &written
            && status.code == 422
        {
            // Only the attach limit is mutable: kubelet unregisters the driver, which then registers again.
            let mut csi_node = self.csi_node_of(node).await?;
            csi_node.spec.drivers.retain(|driver| driver.name != name);
            self.replace(&csi_node).await?;
        }
        written?;
        Ok(name)
    }

    /// Writes the driver's NodeGetInfo response into CSINode, whose attach limit may have changed.
    ///
    /// # Errors
    /// The driver's call failed, or the API server rejected an object.
    pub(super) async fn update_driver(&self, node: &Node, driver: &DriverConnection) -> anyhow::Result<()> {
        let (entry, _) = node_info(driver).await?;
        Ok(self.update_csi_node(node, entry).await?)
    }

    /// Creates the CSINode, or adopts that of a previous kubelet.
    pub(super) async fn initialize_csi_node(&self, node: &Node) -> kube::Result<()> {
        let mut csi_node = self.csi_node_of(node).await?;
        let annotations = csi_node.metadata.annotations.get_or_insert_default();
        let (key, plugins) = MIGRATED_PLUGINS;
        if annotations.get(key).is_none_or(|known| known != plugins) {
            annotations.insert(key.to_owned(), plugins.to_owned());
            self.replace(&csi_node).await?;
        }
        Ok(())
    }

    async fn update_node(
        &self,
        entry: &CSINodeDriver,
        topology: BTreeMap<String, String>,
    ) -> anyhow::Result<()> {
        let nodes = Api::<Node>::all(self.client.clone());
        let metadata = nodes.get(&self.name).await?.metadata;
        let labels = metadata.labels.unwrap_or_default();
        for (key, value) in &topology {
            let known = labels.get(key).unwrap_or(value);
            ensure!(
                known == value,
                "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{known:?}"
            );
        }
        let ids = metadata
            .annotations
            .and_then(|mut annotations| annotations.remove(NODE_ID));
        let ids = ids.map(|ids| serde_json::from_str(&ids)).transpose();
        let mut ids: BTreeMap<String, String> = ids.context("parse the node ids")?.unwrap_or_default();
        let id = ids.insert(entry.name.clone(), entry.node_id.clone());
        let has_labels = topology.keys().all(|key| labels.contains_key(key));
        if has_labels && id.as_ref() == Some(&entry.node_id) {
            return Ok(());
        }
        let patch =
            json!({"metadata": {"labels": topology, "annotations": {NODE_ID: json!(ids).to_string()}}});
        nodes
            .patch(&self.name, &PatchParams::default(), &Patch::Strategic(patch))
            .await?;
        Ok(())
    }

    async fn update_csi_node(&self, node: &Node, entry: CSINodeDriver) -> kube::Result<()> {
        let mut csi_node = self.csi_node_of(node).await?;
        if csi_node.spec.drivers.contains(&entry) {
            return Ok(());
        }
        csi_node.spec.drivers.retain(|driver| driver.name != entry.name);
        csi_node.spec.drivers.push(entry);
        self.replace(&csi_node).await
    }

    /// The CSINode of this Node; that of another Node of the same name is replaced.
    async fn csi_node_of(&self, node: &Node) -> kube::Result<CSINode> {
        let csi_nodes = Api::<CSINode>::all(self.client.clone());
        let owner = owner(node);
        if let Some(known) = csi_nodes.get_opt(&self.name).await? {
            let mut owners = known.metadata.owner_references.iter().flatten();
            if owners.any(|known| known.kind == owner.kind && known.uid == owner.uid) {
                return Ok(known);
            }
            csi_nodes.delete(&self.name, &DeleteParams::default()).await?;
        }
        let (key, plugins) = MIGRATED_PLUGINS;
        let csi_node = CSINode {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                owner_references: Some(vec![owner]),
                annotations: Some(BTreeMap::from([(key.to_owned(), plugins.to_owned())])),
                ..ObjectMeta::default()
            },
            ..CSINode::default()
        };
        csi_nodes.create(&PostParams::default(), &csi_node).await
    }

    async fn replace(&self, csi_node: &CSINode) -> kube::Result<()> {
        let csi_nodes = Api::<CSINode>::all(self.client.clone());
        let replaced = csi_nodes
            .replace(&self.name, &PostParams::default(), csi_node)
            .await;
        replaced.map(drop)
    }
}

// === functions ===

/// The CSINode entry and the topology in the driver's NodeGetInfo response.
async fn node_info(driver: &DriverConnection) -> anyhow::Result<(CSINodeDriver, BTreeMap<String, String>)> {
    let driver = driver.with_timeout(CSI_TIMEOUT);
    let name = driver.name().await?;
    let request = v1::NodeGetInfoRequest {};
    let info = driver.node().node_get_info(request).await?.into_inner();
    ensure!(
        !info.node_id.is_empty(),
        "error adding CSI driver node info: driverNodeID must not be empty"
    );
    let topology = info.accessible_topology.unwrap_or_default().segments;
    let topology: BTreeMap<_, _> = topology.into_iter().collect();
    let limit = info.max_volumes_per_node.min(i32::MAX.into());
    let entry = CSINodeDriver {
        name,
        node_id: info.node_id,
        topology_keys: Some(topology.keys().cloned().collect()),
        // 0 means no limit, not zero volumes.
        allocatable: (limit > 0).then(|| VolumeNodeResources {
            count: i32::try_from(limit).ok(),
        }),
    };
    Ok((entry, topology))
}
