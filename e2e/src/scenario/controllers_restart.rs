//! kube-controller-manager is killed while volumes are attached, attaching and detaching. The attach/detach controller
//! of the next process rebuilds its state from node statuses and VolumeAttachments.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::cluster::ClusterSettings;
use crate::control_plane::Component;
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::PUBLISH;
use crate::fixture::Access;

const CONFIG: ScenarioConfig = ScenarioConfig {
    own_cluster: Some(ClusterSettings::DEFAULT),
    // A call that hangs is repeated soon.
    timeout: Duration::from_secs(3),
    ..ScenarioConfig::DEFAULT
};

/// The same process starts again.
pub(super) const RESTART: Scenario = Scenario {
    name: "controllers-restart",
    about: "A restarted attach/detach controller finishes attaches and detaches, keeps what is attached, and attaches nothing twice.",
    config: CONFIG,
    // The retry of the call that timed out can succeed from a cache without the error.
    go: ExpectedOutcome::Fails {
        issue: KnownIssue(21),
        expected_error: "it is attached and still has an attachError",
        always: false,
    },
    run: |env| Box::pin(run(env, Component::ControllerManager)),
};

/// Another replica takes over.
pub(super) const FAIL_OVER: Scenario = Scenario {
    name: "controllers-fail-over",
    about: "A standby attach/detach controller finishes attaches and detaches, keeps what is attached, and attaches nothing twice.",
    config: ScenarioConfig {
        own_cluster: Some(ClusterSettings {
            standby_controller_manager: true,
            ..ClusterSettings::DEFAULT
        }),
        ..CONFIG
    },
    // The retry of the call that timed out can succeed from a cache without the error.
    go: ExpectedOutcome::Fails {
        issue: KnownIssue(21),
        expected_error: "it is attached and still has an attachError",
        always: false,
    },
    run: |env| Box::pin(run(env, Component::StandbyControllerManager)),
};

async fn run(env: &mut TestEnv<'_>, next: Component) -> Result<()> {
    let kept = env.volume("kept", Access::OneNode).await?;
    let released = env.volume("released", Access::OneNode).await?;
    let leaving = env.volume("leaving", Access::OneNode).await?;
    let coming = env.volume("coming", Access::OneNode).await?;
    for (pod, volume) in [("kept", &kept), ("released", &released), ("leaving", &leaving)] {
        env.pod(pod, A, &[volume]).await?;
    }
    env.wait_until_all_running(3, STEP_TIMEOUT).await?;
    let publishes = publishes(env, &kept)?;

    // The array attaches and detaches, and the attacher does not learn of it.
    let hang = |id: &str, method, volume: &TestVolume| {
        FaultRule::hang_after_effect(id, method).for_volume(&volume.handle)
    };
    let attach = hang("attach", Method::ControllerPublishVolume, &coming);
    let detach = hang("detach", Method::ControllerUnpublishVolume, &leaving);
    env.driver.set_faults(&[attach, detach]).await?;
    env.pod("coming", B, &[&coming]).await?;
    env.delete_pod("leaving").await?;
    for (volume, node, published) in [(&coming, B, true), (&leaving, A, false)] {
        let node_id = env.node(node).node_id().to_owned();
        env.driver
            .wait_until_published(&volume.handle, &node_id, published, STEP_TIMEOUT)
            .await?;
    }

    let cluster = env.ctx().cluster();
    cluster.kill_component(Component::ControllerManager).await?;
    env.driver.clear_faults().await?;
    env.wait_until_attached(&env.attachment_name(&coming, B)).await?;
    env.wait_until_detached(&leaving, A, STEP_TIMEOUT).await?;
    // No controller sees this pod go.
    env.delete_pod("released").await?;
    env.wait_until_pod_gone("released", STEP_TIMEOUT).await?;

    if next == Component::ControllerManager {
        env.ctx().cluster().start_component(next).await?;
    }
    env.wait_until_running("coming", STEP_TIMEOUT).await?;
    env.wait_until_detached(&released, A, STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[&kept]).await?;
    env.wait_for_volumes_attached(B, &[&coming]).await?;
    env.pod("released-again", B, &[&released]).await?;
    env.wait_until_running("released-again", STEP_TIMEOUT).await?;
    let again = self::publishes(env, &kept)? - publishes;
    ensure!(
        again == 0,
        "{again} more publish calls for a volume that stayed attached"
    );
    Ok(())
}

fn publishes(env: &TestEnv<'_>, volume: &TestVolume) -> Result<usize> {
    let calls = env.driver.calls()?.into_iter();
    Ok(calls
        .filter(|call| call.method == PUBLISH && call.volume == volume.handle)
        .count())
}
