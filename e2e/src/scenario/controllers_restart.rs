//! kube-controller-manager is killed while volumes are attached, attaching and detaching. The attach/detach controller
//! of the next process rebuilds its state from node statuses and VolumeAttachments.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, Scenario};
use crate::cluster::ClusterSettings;
use crate::control_plane::Component;
use crate::driver::fault::FaultRule;
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::Access;

const CONFIG: ScenarioConfig = ScenarioConfig {
    own_cluster: Some(ClusterSettings::DEFAULT),
    // A call that hangs is repeated soon.
    timeout: Duration::from_secs(3),
    within: Duration::from_secs(900),
    ..ScenarioConfig::DEFAULT
};

/// With a standby that becomes leader.
const WITH_STANDBY: ScenarioConfig = ScenarioConfig {
    own_cluster: Some(ClusterSettings {
        standby_controller_manager: true,
        ..ClusterSettings::DEFAULT
    }),
    ..CONFIG
};

/// Timeout of the first step of the next controller: the Lease expires, and the process starts its controllers.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(180);
/// The calls are held until the controller has rebuilt its state.
const HELD: Duration = Duration::from_secs(360);

/// The same process starts again.
pub(super) const RESTART: Scenario = Scenario::new(
    "controllers-restart",
    "A restarted attach/detach controller finishes attaches and detaches, keeps volumes attached, and attaches no volume twice.",
    |env| Box::pin(run(env, Component::ControllerManager)),
)
.with_config(CONFIG)
// The call of the attach times out, and its retry succeeds.
.with_go(ExpectedOutcome::MAY_KEEP_ATTACH_ERROR);

/// Another replica becomes leader.
pub(super) const FAIL_OVER: Scenario = Scenario {
    name: "controllers-fail-over",
    about: "A standby attach/detach controller finishes attaches and detaches, keeps volumes attached, and attaches no volume twice.",
    config: WITH_STANDBY,
    run: |env| Box::pin(run(env, Component::StandbyControllerManager)),
    ..RESTART
};

/// The same process starts again before the calls end.
pub(super) const DURING_CALLS: Scenario = Scenario::new(
    "restart-during-calls",
    "A restarted attach/detach controller finishes a running attach and detach without repeating the CSI calls.",
    |env| Box::pin(during_calls(env, Component::ControllerManager)),
)
.with_config(ScenarioConfig {
    timeout: HELD,
    ..CONFIG
})
.with_go(ExpectedOutcome::MAY_PUBLISH_TWICE);

/// Another replica becomes leader before the calls end.
pub(super) const FAIL_OVER_DURING_CALLS: Scenario = Scenario {
    name: "fail-over-during-calls",
    about: "A standby attach/detach controller finishes a running attach and detach without repeating the CSI calls.",
    config: ScenarioConfig {
        timeout: HELD,
        ..WITH_STANDBY
    },
    run: |env| Box::pin(during_calls(env, Component::StandbyControllerManager)),
    ..DURING_CALLS
};

/// Holder and number of transitions of kube-controller-manager's Lease.
#[derive(Debug)]
struct LeaderElectionRecord {
    holder: String,
    transitions: i32,
}

async fn run(env: &mut TestEnv<'_>, next: Component) -> Result<()> {
    let kept = env.volume("kept", Access::OneNode).await?;
    let released = env.volume("released", Access::OneNode).await?;
    let leaving = env.volume("leaving", Access::OneNode).await?;
    let coming = env.volume("coming", Access::OneNode).await?;
    for (pod, volume) in [("kept", &kept), ("released", &released), ("leaving", &leaving)] {
        env.pod(pod, A, &[volume]).await?;
    }
    env.wait_until_all_running(3, STEP_TIMEOUT).await?;
    let publishes = env.driver.calls_to(PUBLISH, &kept.handle)?;

    env.detach_and_attach(&leaving, &coming, FaultRule::hang_after_effect)
        .await?;

    let before = leader_election_record(env, next).await?;
    let cluster = env.ctx().cluster();
    cluster.kill_component(Component::ControllerManager).await?;
    env.driver.clear_faults().await?;
    env.wait_until_attached(&env.attachment_name(&coming, B)).await?;
    env.wait_until_detached(&leaving, A, STEP_TIMEOUT).await?;
    // No controller observes the deletion of this pod.
    env.delete_pod("released").await?;
    env.wait_until_pod_gone("released", STEP_TIMEOUT).await?;

    if next == Component::ControllerManager {
        env.ctx().cluster().start_component(next).await?;
    }
    env.wait_until_running("coming", TAKEOVER_TIMEOUT).await?;
    env.wait_until_detached(&released, A, STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[&kept]).await?;
    env.wait_for_volumes_attached(B, &[&coming]).await?;
    env.pod("released-again", B, &[&released]).await?;
    env.wait_until_running("released-again", STEP_TIMEOUT).await?;
    env.ensure_calls(PUBLISH, &kept, publishes)?;
    let expected = [
        (&kept, &[PUBLISH][..]),
        (&released, &[PUBLISH, UNPUBLISH, PUBLISH]),
        (&leaving, &[PUBLISH, UNPUBLISH]),
        (&coming, &[PUBLISH]),
    ];
    for (volume, methods) in expected {
        env.ensure_succeeded(volume, methods)?;
    }
    ensure_one_fail_over(before, leader_election_record(env, next).await?)
}

async fn during_calls(env: &mut TestEnv<'_>, next: Component) -> Result<()> {
    let kept = env.volume("kept", Access::OneNode).await?;
    let leaving = env.volume("leaving", Access::OneNode).await?;
    let coming = env.volume("coming", Access::OneNode).await?;
    for (pod, volume) in [("kept", &kept), ("leaving", &leaving)] {
        env.pod(pod, A, &[volume]).await?;
    }
    env.wait_until_all_running(2, STEP_TIMEOUT).await?;
    env.detach_and_attach(&leaving, &coming, FaultRule::hold_response)
        .await?;
    let before = env.wait_until_attachment_exists(&coming, B).await?.metadata.uid;

    let leader = leader_election_record(env, next).await?;
    let cluster = env.ctx().cluster();
    cluster.kill_component(Component::ControllerManager).await?;
    if next == Component::ControllerManager {
        cluster.start_component(next).await?;
    }
    // The volumes of both VolumeAttachments are uncertain; only the one with a pod is desired.
    env.wait_for_total_volumes_of(next, 2, 3, TAKEOVER_TIMEOUT)
        .await?;
    env.ensure_calls_in_flight(&[&coming, &leaving])?;
    env.driver.clear_faults().await?;
    env.wait_until_running("coming", STEP_TIMEOUT).await?;
    env.wait_until_detached(&leaving, A, STEP_TIMEOUT).await?;

    env.wait_for_volumes_attached(A, &[&kept]).await?;
    env.wait_for_volumes_attached(B, &[&coming]).await?;
    env.wait_for_total_volumes_of(next, 2, 2, STEP_TIMEOUT).await?;
    let after = env.wait_until_attachment_exists(&coming, B).await?.metadata.uid;
    ensure!(
        after == before,
        "the VolumeAttachment was replaced: its UID was {before:?} and is {after:?}"
    );
    for (volume, unpublishes) in [(&kept, 0), (&coming, 0), (&leaving, 1)] {
        for (method, expected) in [(PUBLISH, 1), (UNPUBLISH, unpublishes)] {
            env.ensure_calls(method, volume, expected)?;
        }
    }
    ensure_one_fail_over(leader, leader_election_record(env, next).await?)
}

/// `None` unless `next` is a standby process: a single replica and the embedded controllers have no Lease.
async fn leader_election_record(env: &TestEnv<'_>, next: Component) -> Result<Option<LeaderElectionRecord>> {
    let is_process = env.ctx().cluster().component_pid(next)?.is_some();
    if next != Component::StandbyControllerManager || !is_process {
        return Ok(None);
    }
    let leases = Api::<Lease>::namespaced(env.client(), "kube-system");
    let lease = leases.get("kube-controller-manager").await;
    let lease = lease.context("read the Lease of kube-controller-manager")?;
    let spec = lease.spec.unwrap_or_default();
    Ok(Some(LeaderElectionRecord {
        holder: spec.holder_identity.context("the Lease must have a holder")?,
        transitions: spec.lease_transitions.unwrap_or_default(),
    }))
}

/// Fails unless the Lease changed its holder exactly once, where there is one.
fn ensure_one_fail_over(
    before: Option<LeaderElectionRecord>,
    after: Option<LeaderElectionRecord>,
) -> Result<()> {
    let (before, after) = match (before, after) {
        (None, None) => return Ok(()),
        (Some(before), Some(after)) => (before, after),
        (before, after) => bail!("the standby process has ended: {before:?}, {after:?}"),
    };
    ensure!(
        before.holder != after.holder && before.transitions + 1 == after.transitions,
        "the Lease of kube-controller-manager must change its holder once: {before:?}, {after:?}"
    );
    Ok(())
}
