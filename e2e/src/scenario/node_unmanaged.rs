//! A kubelet with `enableControllerAttachDetach: false` attaches volumes itself; its Node lacks the annotation by which the
//! attach/detach controller manages a node.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::Patch;
use kube::runtime::watcher;
use serde_json::{Value, json};

use super::Scenario;
use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use crate::cluster::ClusterSettings;
use crate::fixture::{Access, HOSTNAME_LABEL, SCENARIO_LABEL, mk_pod};
use crate::objects;
use crate::wait::{self, Progress};

/// Annotation by which the attach/detach controller manages a node.
const CONTROLLER_MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

pub(super) const SCENARIO: Scenario = Scenario::new(
    "node-unmanaged",
    "A pod on a node that is not controller-managed gets no VolumeAttachment, and pods on other nodes do.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig::ONE_NODE);

/// The node gets the annotation when its pod is there already. No event of the pod follows, so its volume enters the desired
/// state of world with the populator's `findAndAddActivePods`.
pub(super) const MANAGED_LATER: Scenario = Scenario::new(
    "node-managed-later",
    "A pod on a node that becomes controller-managed later gets a VolumeAttachment then.",
    |env| Box::pin(managed_later(env)),
)
.with_config(ScenarioConfig {
    own_cluster: Some(ClusterSettings {
        populator_period: Some(Duration::from_secs(1)),
        ..ClusterSettings::DEFAULT
    }),
    ..ScenarioConfig::ONE_NODE
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let name = pod_on_unmanaged_node(env).await?;
    env.remove_pod("own").await?;
    delete_node(env, &name).await
}

async fn managed_later(env: &mut TestEnv<'_>) -> Result<()> {
    let name = pod_on_unmanaged_node(env).await?;
    let managed = json!({"metadata": {"annotations": {CONTROLLER_MANAGED: "true"}}});
    objects::patch(&Api::<Node>::all(env.client()), &name, &Patch::Merge(managed)).await?;
    // The driver is not installed on it.
    let attachments = Api::<VolumeAttachment>::all(env.client());
    let count_on_node = |seen: &wait::Seen<VolumeAttachment>| {
        let attachments = seen.values();
        attachments
            .filter(|attachment| attachment.spec.node_name == name)
            .count()
    };
    let config = watcher::Config::default;
    wait::for_objects(
        &attachments,
        config(),
        STEP_TIMEOUT,
        "a VolumeAttachment",
        |seen| Progress::of(count_on_node(seen) == 1, || "there is none".to_owned()),
    )
    .await?;
    // Then the failed attach is in the actual state of world.
    env.wait_for_event(
        "own",
        "FailedAttachVolume",
        "AttachVolume.Attach failed",
        STEP_TIMEOUT,
    )
    .await?;
    env.remove_pod("own").await?;
    // After a failed attach a volume counts as mounted until an update of the Node, which lists no volume in use.
    let heartbeat = json!({"status": {"conditions": [ready_condition()]}});
    objects::patch_status(
        &Api::<Node>::all(env.client()),
        &name,
        &Patch::Strategic(heartbeat),
    )
    .await?;
    let what = "the VolumeAttachment to go";
    wait::for_objects(&attachments, config(), STEP_TIMEOUT, what, |seen| {
        Progress::of(count_on_node(seen) == 0, || "it is still there".to_owned())
    })
    .await?;
    delete_node(env, &name).await
}

/// Creates a pod on a node that is not controller-managed, and checks that it gets no VolumeAttachment; returns the node's
/// name.
async fn pod_on_unmanaged_node(env: &mut TestEnv<'_>) -> Result<String> {
    let own = env.volume("own", Access::OneNode).await?;
    let managed = env.volume("managed", Access::OneNode).await?;
    let name = format!("{}-unmanaged", env.prefix());
    let nodes = Api::<Node>::all(env.client());
    objects::create(&nodes, &unmanaged_node(env.prefix(), &name)?).await?;

    let pods = Api::<Pod>::namespaced(env.client(), env.prefix());
    let pod = mk_pod(env.prefix(), "own", &name, std::slice::from_ref(&own.claim));
    objects::create(&pods, &pod).await?;
    wait::for_object(&pods, "own", STEP_TIMEOUT, "the pod to be scheduled", |pod| {
        let node = pod
            .and_then(|pod| pod.spec.as_ref())
            .and_then(|spec| spec.node_name.as_ref());
        Progress::of(node.is_some(), || "it is not".to_owned())
    })
    .await?;
    // The controller handles pods in order: once the later pod's volume is attached, it has handled the earlier pod.
    env.pod("managed", A, &[&managed]).await?;
    env.wait_until_running("managed", STEP_TIMEOUT).await?;

    let events = env.recorder().watch_events();
    let of_node = events.iter().filter(|event| event.object.spec.node_name == name);
    ensure!(
        of_node.count() == 0,
        "{name} is not controller-managed and has a VolumeAttachment"
    );
    Ok(name)
}

async fn delete_node(env: &TestEnv<'_>, name: &str) -> Result<()> {
    objects::delete(&Api::<Node>::all(env.client()), name).await
}

/// A Ready node as a kubelet registers it, without the annotation.
fn unmanaged_node(prefix: &str, name: &str) -> Result<Node> {
    let resources = json!({"cpu": "8", "memory": "16Gi", "pods": "110"});
    let node = json!({
        "metadata": {
            "name": name,
            "labels": {SCENARIO_LABEL: prefix, HOSTNAME_LABEL: name},
        },
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "conditions": [ready_condition()],
        },
    });
    serde_json::from_value(node).context("build the node")
}

fn ready_condition() -> Value {
    let now = Timestamp::now().to_string();
    json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now, "lastTransitionTime": now,
    })
}
