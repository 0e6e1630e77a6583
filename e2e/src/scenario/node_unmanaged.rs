//! A kubelet with `enableControllerAttachDetach: false` attaches volumes itself; its Node lacks the annotation by which the
//! attach/detach controller manages a node.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, Scenario};
use crate::fixture::{Access, HOSTNAME_LABEL, SCENARIO_LABEL, mk_pod};
use crate::wait::{self, Progress};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "node-unmanaged",
    about: "A pod on a node that is not controller-managed gets no VolumeAttachment, and pods on other nodes do.",
    config: ScenarioConfig::ONE_NODE,
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(run(env)),
};

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let own = env.volume("own", Access::OneNode).await?;
    let managed = env.volume("managed", Access::OneNode).await?;
    let name = format!("{}-unmanaged", env.prefix());
    let nodes = Api::<Node>::all(env.client());
    let create = PostParams::default();
    nodes
        .create(&create, &unmanaged_node(env.prefix(), &name)?)
        .await
        .context("create the node")?;

    let pods = Api::<Pod>::namespaced(env.client(), env.prefix());
    let pod = mk_pod(env.prefix(), "own", &name, std::slice::from_ref(&own.claim));
    pods.create(&create, &pod).await.context("create the pod")?;
    wait::for_object(&pods, "own", STEP_TIMEOUT, "the pod to be scheduled", |pod| {
        let node = pod
            .and_then(|pod| pod.spec.as_ref())
            .and_then(|spec| spec.node_name.as_ref());
        Progress::of(node.is_some(), || "it is not".to_owned())
    })
    .await?;
    // The controller handles pods in order: once the later one is attached, it has seen the earlier one.
    env.pod("managed", A, &[&managed]).await?;
    env.wait_until_running("managed", STEP_TIMEOUT).await?;

    let events = env.recorder().watch_events();
    let of_node = events
        .iter()
        .filter(|event| event.attachment.spec.node_name == name);
    ensure!(
        of_node.count() == 0,
        "{name} is not controller-managed and has a VolumeAttachment"
    );
    env.remove_pod("own").await?;
    nodes
        .delete(&name, &DeleteParams::default())
        .await
        .context("delete the node")?;
    Ok(())
}

/// A Ready node as a kubelet registers it, without the annotation.
fn unmanaged_node(prefix: &str, name: &str) -> Result<Node> {
    let resources = json!({"cpu": "8", "memory": "16Gi", "pods": "110"});
    let now = Timestamp::now().to_string();
    let node = json!({
        "metadata": {
            "name": name,
            "labels": {SCENARIO_LABEL: prefix, HOSTNAME_LABEL: name},
        },
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
        },
    });
    serde_json::from_value(node).context("build the node")
}
