//! Failures of programs and nodes while volumes are in use.

use anyhow::{Context, Result, ensure};
use csi_e2e::document::block;
use csi_e2e::nodes::{DRIVER_NAMESPACE, NODES};
use csi_e2e::toolchain::{Settings, Toolchain};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use crate::env::{EXT4, Env, PodSpec, WRITE};
use crate::recipes::{TROUBLESHOOTING, shell};
use crate::restore::remove_out_of_service_taint;
use crate::shared_nodes::Scenario;

const A: &str = NODES[0];
const B: &str = NODES[1];

pub(crate) const SCENARIOS: &[Scenario] = scenarios![
    kubelet_is_killed_with_a_volume_mounted,
    kubelet_is_killed_while_it_stages,
    failed_stage_is_repeated,
    uncertain_stage_is_unstaged,
    node_driver_is_replaced_under_a_pod,
    lost_node_is_taken_out_of_service,
];

/// A pod is deleted while its kubelet is down. The next kubelet reconstructs the mounts from disk and unmounts them, and the
/// volume is detached with its data.
async fn kubelet_is_killed_with_a_volume_mounted(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Filesystem").await?;
    env.run_writer("web-1", A).await?;
    let node = env.nodes.node(A)?;
    node.kill_kubelet().await?;
    env.force_delete_pod("web-1").await?;
    node.start_kubelet()?;
    env.wait_until_detached("data").await?;
    env.wait_until_nothing_is_mounted().await?;
    env.run_reader("web-2", B).await
}

/// kubelet is killed during NodeStageVolume, which the driver completes. The next kubelet stages again and starts the pod.
async fn kubelet_is_killed_while_it_stages(env: &Env<'_>) -> Result<()> {
    let driver = env.nodes.node_driver(A)?;
    let rule = json!({
        "id": "held",
        "match": {"method": "NodeStageVolume"},
        "phase": "after",
        "action": {"hang": "client-cancel"},
    });
    driver.put_fault(&rule).await.context("hold NodeStageVolume")?;
    env.claim("data", EXT4, "Filesystem").await?;
    env.create_pod(&PodSpec::new("web", WRITE).on(A).claim("data"))
        .await?;
    env.wait_for_running_call(&driver, "NodeStageVolume").await?;
    let node = env.nodes.node(A)?;
    node.kill_kubelet().await?;
    driver
        .remove_fault("held")
        .await
        .context("release NodeStageVolume")?;
    node.start_kubelet()?;
    env.wait_until_ready("web").await?;
    env.delete_pod("web").await?;
    env.wait_until_detached("data").await
}

/// NodeStageVolume fails twice: kubelet reports it in Events and retries the call.
async fn failed_stage_is_repeated(env: &Env<'_>) -> Result<()> {
    let driver = env.nodes.node_driver(A)?;
    let rule = json!({
        "id": "fails",
        "match": {"method": "NodeStageVolume"},
        "action": {"code": "INTERNAL", "message": "the device is busy"},
        "times": 2,
    });
    driver
        .put_fault(&rule)
        .await
        .context("let NodeStageVolume fail")?;
    env.claim("data", EXT4, "Filesystem").await?;
    env.create_pod(&PodSpec::new("web", "true").on(A).claim("data"))
        .await?;
    env.wait_for_event("web", "FailedMount", "the device is busy")
        .await?;
    env.wait_until_ready("web").await?;
    driver.remove_fault("fails").await.context("remove the fault")?;
    let calls = env.calls(A, "NodeStageVolume", "data").await?;
    ensure!(
        calls.len() == 3,
        "NodeStageVolume was not called 3 times: {calls:?}"
    );
    env.delete_pod("web").await?;
    env.wait_until_detached("data").await
}

/// NodeStageVolume times out after it has staged the volume, and the pod is deleted before a retry succeeds: kubelet unstages
/// the volume, which may be staged (uncertain mount).
async fn uncertain_stage_is_unstaged(env: &Env<'_>) -> Result<()> {
    let driver = env.nodes.node_driver(A)?;
    let rule = json!({
        "id": "times-out",
        "match": {"method": "NodeStageVolume"},
        "phase": "after",
        "action": {"code": "DEADLINE_EXCEEDED", "message": "the device is slow"},
    });
    driver
        .put_fault(&rule)
        .await
        .context("let NodeStageVolume time out")?;
    env.claim("data", EXT4, "Filesystem").await?;
    env.create_pod(&PodSpec::new("web", "true").on(A).claim("data"))
        .await?;
    env.wait_for_event("web", "FailedMount", "the device is slow")
        .await?;
    env.delete_pod("web").await?;
    env.wait_until_detached("data").await?;
    driver
        .remove_fault("times-out")
        .await
        .context("remove the fault")?;
    for (method, expected) in [("NodePublishVolume", false), ("NodeUnstageVolume", true)] {
        let calls = env.calls(A, method, "data").await?;
        ensure!(calls.is_empty() != expected, "calls of {method}: {calls:?}");
    }
    env.wait_until_nothing_is_mounted().await
}

/// The node's driver is killed, and its pod replaced, while a pod uses a volume: the pod keeps it, and the next driver
/// unmounts it.
async fn node_driver_is_replaced_under_a_pod(env: &Env<'_>) -> Result<()> {
    env.claim("data", EXT4, "Filesystem").await?;
    env.run_writer("web-1", A).await?;
    let node = env.nodes.node(A)?;
    // In the PID namespace of the node.
    node.command(&["pkill", "-KILL", "-f", "^/csi-mock-driver --mode=node"])
        .await?;
    env.restart_node_driver(A).await?;
    env.run_reader("web-2", A).await?;
    env.filesystem(node, "web-1", "data").await?;
    env.delete_pod("web-1").await?;
    env.delete_pod("web-2").await?;
    env.wait_until_detached("data").await
}

/// A node loses its power. With the out-of-service taint of the troubleshooting guide its pods are deleted and the volume is
/// detached without kubelet, so that a pod on the other node gets it with its data; then the node boots again.
async fn lost_node_is_taken_out_of_service(env: &Env<'_>) -> Result<()> {
    let controller = controller_node(env).await?;
    let (lost, other) = if controller == A { (B, A) } else { (A, B) };
    env.claim("data", EXT4, "Filesystem").await?;
    env.run_pod(
        &PodSpec::new("web-1", &format!("{WRITE}\nsync"))
            .on(lost)
            .claim("data"),
    )
    .await?;
    let node = env.nodes.node(lost)?;
    node.crash().await?;
    env.nodes.wait_until_not_ready(node).await?;
    let toolchain = Toolchain::new(env.nodes.run(), Settings::of_test());
    let shell = shell(env.nodes, &toolchain).await?.replacing("<node>", lost);
    shell.run(&block(TROUBLESHOOTING, "kubectl taint node")?).await?;
    shell.ensure_all_replaced()?;
    env.run_reader("web-2", other).await?;
    let attached = env.attached_to("data").await?;
    ensure!(attached == [other], "the volume is attached to {attached:?}");
    env.nodes.boot(node).await?;
    remove_out_of_service_taint(env.nodes, lost).await?;
    env.nodes.wait_until_ready(node).await?;
    env.nodes.wait_until_deployed().await?;
    env.delete_pod("web-2").await?;
    env.run_reader("web-3", lost).await
}

/// The node of the pod with attacher and array.
async fn controller_node(env: &Env<'_>) -> Result<String> {
    let pods = Api::<Pod>::namespaced(env.nodes.client(), DRIVER_NAMESPACE);
    let selected = ListParams::default().labels("app.kubernetes.io/name=csi-attacher");
    let pod = pods.list(&selected).await?.into_iter().next();
    let node = pod.and_then(|pod| pod.spec?.node_name);
    node.context("the attacher must have a pod on a node")
}
