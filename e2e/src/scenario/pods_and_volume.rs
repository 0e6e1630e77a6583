//! Pods that come and go around one volume.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, Scenario};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::Access;

/// Why a detach fails.
const REASON: &str = "the port is locked";

/// Longer than the attach/detach controller takes to see that a pod is gone.
const SLOW: Duration = Duration::from_secs(4);

/// If the attach/detach controller's cache still has the VolumeAttachment that is being deleted, the CSI plugin creates
/// none and waits for that one, for up to two minutes.
const LOST_ATTACH: Duration = Duration::from_secs(180);

pub(super) const SHARE: Scenario = Scenario {
    name: "pods-share-volume",
    about: "Two pods on one node share a volume: it stays attached until both are gone.",
    config: ScenarioConfig::ONE_NODE,
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(share(env)),
};

pub(super) const RETURNS: Scenario = Scenario {
    name: "pod-returns",
    about: "A pod that returns to its node while the detach fails gets its volume again.",
    config: ScenarioConfig::ONE_NODE,
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(returns(env)),
};

pub(super) const DELETED_EARLY: Scenario = Scenario {
    name: "pod-deleted-early",
    about: "A volume whose pod is deleted during the attach is detached when the attach has finished.",
    config: ScenarioConfig::ONE_NODE,
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(deleted_early(env)),
};

pub(super) const MANY_NODES: Scenario = Scenario {
    name: "pods-on-many-nodes",
    about: "A ReadWriteMany volume is attached to two nodes concurrently and detached from each independently.",
    // Emulated devices have a filesystem on one node at a time only.
    config: ScenarioConfig {
        node_drivers: false,
        ..ScenarioConfig::DEFAULT
    },
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(many_nodes(env, Access::ManyNodes)),
};

pub(super) const READERS: Scenario = Scenario {
    name: "readers-on-many-nodes",
    about: "A ReadOnlyMany volume is attached to two nodes concurrently and detached from each independently.",
    run: |env| Box::pin(many_nodes(env, Access::ManyReaders)),
    ..MANY_NODES
};

pub(super) const ONE_POD: Scenario = Scenario {
    name: "read-write-once-pod",
    about: "The scheduler keeps a second pod off a ReadWriteOncePod volume until the first is gone.",
    config: ScenarioConfig {
        node_drivers: false,
        ..ScenarioConfig::ONE_NODE
    },
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(one_pod(env)),
};

async fn share(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("one", A, &[&volume]).await?;
    env.pod("two", A, &[&volume]).await?;
    env.wait_until_all_running(2, STEP_TIMEOUT).await?;
    env.delete_pod("one").await?;
    env.wait_until_pod_gone("one", STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[&volume]).await?;
    let calls = env.driver.calls()?;
    ensure!(
        calls.iter().all(|call| call.method != UNPUBLISH),
        "the volume was detached although a pod uses it"
    );
    env.delete_pod("two").await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await
}

async fn returns(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("first", A, &[&volume]).await?;
    env.wait_until_running("first", STEP_TIMEOUT).await?;
    let locked = FaultRule::fail("locked", Method::ControllerUnpublishVolume, "INTERNAL", REASON);
    env.driver.set_faults(&[locked]).await?;
    env.delete_pod("first").await?;
    env.wait_for_detach_error(&volume, A, REASON).await?;
    env.pod("second", A, &[&volume]).await?;
    env.driver.clear_faults().await?;
    env.wait_until_running("second", LOST_ATTACH).await
}

async fn deleted_early(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    let slow = FaultRule::delay_answer("slow", Method::ControllerPublishVolume, SLOW);
    env.driver.set_faults(&[slow]).await?;
    env.pod("web", A, &[&volume]).await?;
    let node_id = env.node(A).node_id().to_owned();
    env.driver
        .wait_until_published(&volume.handle, &node_id, true, STEP_TIMEOUT)
        .await?;
    env.delete_pod("web").await?;
    env.wait_until_pod_gone("web", STEP_TIMEOUT).await?;
    let calls = env.driver.calls()?;
    ensure!(
        calls
            .iter()
            .any(|call| call.method == PUBLISH && call.end.is_none()),
        "the attach ended before the pod was gone"
    );
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await
}

async fn one_pod(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OnePod).await?;
    env.pod("first", A, &[&volume]).await?;
    env.wait_until_running("first", STEP_TIMEOUT).await?;
    env.pod("second", A, &[&volume]).await?;
    env.wait_for_event("second", "FailedScheduling", "ReadWriteOncePod", STEP_TIMEOUT)
        .await?;
    env.ensure_not_running("second").await?;
    env.delete_pod("first").await?;
    env.wait_until_running("second", STEP_TIMEOUT).await
}

async fn many_nodes(env: &mut TestEnv<'_>, access: Access) -> Result<()> {
    let volume = env.volume("data", access).await?;
    env.pod("on-a", A, &[&volume]).await?;
    env.pod("on-b", B, &[&volume]).await?;
    env.wait_until_all_running(2, STEP_TIMEOUT).await?;
    let published = env.driver.published().await?;
    let nodes = published
        .get(&volume.handle)
        .map_or(0, std::collections::BTreeSet::len);
    ensure!(nodes == 2, "published to {nodes} nodes");
    env.delete_pod("on-a").await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(B, &[&volume]).await?;
    env.delete_pod("on-b").await?;
    env.wait_until_detached(&volume, B, STEP_TIMEOUT).await
}
