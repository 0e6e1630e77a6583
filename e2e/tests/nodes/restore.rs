//! Restores the defaults of the shared nodes after a failed scenario.

use anyhow::{Context, Result};
use csi_e2e::fixture::OUT_OF_SERVICE;
use csi_e2e::nodes::{DRIVER, NODES, RealNodes};
use csi_e2e::objects;
use csi_mock_driver::admin_api::resource::NodeChange;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams};
use serde_json::json;

/// The driver's default capability by which kubelet delegates fsGroup to it.
pub(crate) const VOLUME_MOUNT_GROUP: &str = "NODE_VOLUME_MOUNT_GROUP";
/// The attach limit of `deploy/`.
pub(crate) const ATTACH_LIMIT: usize = 64;

/// Restores the initial state of scenarios: running nodes, no fault rules, default settings.
pub(crate) async fn restore(nodes: &RealNodes) -> Result<()> {
    for node in nodes.nodes() {
        if !node.is_up() {
            nodes.boot(node).await.context("boot a crashed node")?;
        } else if !node.runs_kubelet() {
            node.start_kubelet()?;
        }
        remove_out_of_service_taint(nodes, node.name()).await?;
        nodes.wait_until_ready(node).await?;
    }
    nodes.wait_until_deployed().await?;
    let mut drivers = vec![nodes.array()?];
    for node in NODES {
        let driver = nodes.node_driver(node)?;
        driver
            .set_capability(VOLUME_MOUNT_GROUP, true)
            .await
            .context("enable VOLUME_MOUNT_GROUP")?;
        drivers.push(driver);
    }
    for driver in drivers {
        for rule in driver.faults().await.context("list fault rules")?.rules {
            let removed = driver.remove_fault(&rule.id).await;
            removed.context("remove a fault rule")?;
        }
    }
    limit(nodes, ATTACH_LIMIT).await?;
    let drivers = Api::<CSIDriver>::all(nodes.client());
    match drivers.get_opt(DRIVER).await? {
        None => {
            nodes.redeploy().await.context("create the CSIDriver again")?;
            set_attach_capability(nodes, true).await?;
        }
        Some(driver) if driver.spec.attach_required != Some(true) => set_attach_required(nodes, true).await?,
        Some(_) => {}
    }
    set_update_period(nodes, None).await
}

/// Limits the volumes of the first node, in the array and in NodeGetInfo.
pub(crate) async fn limit(nodes: &RealNodes, limit: usize) -> Result<()> {
    let node = NODES[0];
    let change = NodeChange {
        limit: Some(limit),
        advertised_limit: Some(limit),
        ..NodeChange::default()
    };
    let changed = nodes.array()?.change_node(node, &change).await;
    changed
        .map(drop)
        .with_context(|| format!("limit {node} to {limit} volumes at the array"))
}

pub(crate) async fn set_update_period(nodes: &RealNodes, seconds: Option<u32>) -> Result<()> {
    let drivers = Api::<CSIDriver>::all(nodes.client());
    let patch = json!({"spec": {"nodeAllocatableUpdatePeriodSeconds": seconds}});
    objects::patch(&drivers, DRIVER, &Patch::Merge(&patch))
        .await
        .map(drop)
}

/// Replaces the CSIDriver, whose `attachRequired` is immutable, and sets the driver's attach capability.
pub(crate) async fn set_attach_required(nodes: &RealNodes, required: bool) -> Result<()> {
    set_attach_capability(nodes, required).await?;
    let drivers = Api::<CSIDriver>::all(nodes.client());
    let mut driver = drivers.get(DRIVER).await?;
    objects::delete(&drivers, DRIVER).await?;
    driver.metadata = ObjectMeta {
        name: Some(DRIVER.to_owned()),
        ..ObjectMeta::default()
    };
    driver.spec.attach_required = Some(required);
    objects::create(&drivers, &driver).await.map(drop)
}

async fn set_attach_capability(nodes: &RealNodes, attaches: bool) -> Result<()> {
    for driver in [
        nodes.array()?,
        nodes.node_driver(NODES[0])?,
        nodes.node_driver(NODES[1])?,
    ] {
        let set = driver.set_capability("PUBLISH_UNPUBLISH_VOLUME", attaches).await;
        set.context("set the driver's capability")?;
    }
    Ok(())
}

/// Removes the out-of-service taint, if the node has it.
pub(crate) async fn remove_out_of_service_taint(nodes: &RealNodes, name: &str) -> Result<()> {
    let api = Api::<Node>::all(nodes.client());
    loop {
        let found = api.get(name).await?;
        let mut taints = found.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.retain(|taint| taint.key != OUT_OF_SERVICE);
        let patch = json!({"metadata": {"resourceVersion": found.metadata.resource_version}, "spec": {"taints": taints}});
        match api
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
        {
            // The node lifecycle controller changed the taints concurrently.
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            patched => return Ok(patched.map(drop)?),
        }
    }
}
