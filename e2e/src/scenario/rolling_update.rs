//! Rolling updates of the attacher, replica by replica, while pods are created and deleted.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;

use super::Scenario;
use super::leader::History;
use super::test_context::Build;
use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use crate::attacher::Kind;
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::{Call, PUBLISH, UNPUBLISH};
use crate::fixture::Access;
use crate::wait::Progress;

/// Volumes that are attached, and volumes that are detached, during each hand-over: more than the attacher has workers.
const VOLUMES: usize = 20;

/// Timeout for all pods.
const LONG: Duration = Duration::from_secs(180);

const CONFIG: ScenarioConfig = ScenarioConfig {
    // Attaches and detaches overlap.
    latency: Duration::from_secs(2),
    within: Duration::from_secs(900),
    ..ScenarioConfig::DEFAULT
};

pub(super) const KIND: Scenario = Scenario::new(
    "leader-changes-kind",
    "A rolling update between the two attachers and back, replica by replica, while pods are created and deleted.",
    |env| {
        let other = match env.attacher.kind() {
            Kind::Ours => Kind::Go,
            Kind::Go => Kind::Ours,
        };
        Box::pin(run(env, Build::Current(other)))
    },
)
.with_config(ScenarioConfig {
    both_kinds: true,
    ..CONFIG
});

pub(super) const VERSION: Scenario = Scenario::new(
    "leader-changes-version",
    "A rolling update from an earlier build of our attacher and back, replica by replica, while pods are created and deleted.",
    |env| Box::pin(run(env, Build::Previous)),
)
.with_config(CONFIG);

async fn run(env: &mut TestEnv<'_>, other: Build) -> Result<()> {
    let kind = env.attacher.kind();
    let mut history = History::begin(env).await?;
    let mut first = env.replica(other, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = env.replica(kind, "two").await?;
    let before = env.volumes("before", VOLUMES, Access::OneNode).await?;
    let upgrade = env.volumes("up", VOLUMES, Access::OneNode).await?;
    let downgrade = env.volumes("down", VOLUMES, Access::OneNode).await?;
    create_pods(env, &before).await?;
    env.wait_until_all_running(VOLUMES, LONG).await?;

    replace_pods(env, &before, &upgrade).await?;
    first.stop().await?;
    history.wait_for_holder("two").await?;
    wait_until_replaced(env, &before).await?;

    let mut third = env.replica(other, "three").await?;
    replace_pods(env, &upgrade, &downgrade).await?;
    second.stop().await?;
    history.wait_for_holder("three").await?;
    wait_until_replaced(env, &upgrade).await?;

    // The Go sidecar does not finish its calls when it is stopped, and the next leader repeats them.
    let repeats = kind == Kind::Go || other.kind() == Kind::Go;
    let calls = env.driver.calls()?;
    for (volumes, expected) in [
        (&before, &[PUBLISH, UNPUBLISH][..]),
        (&upgrade, &[PUBLISH, UNPUBLISH][..]),
        (&downgrade, &[PUBLISH][..]),
    ] {
        for volume in volumes {
            ensure_calls(&calls, volume, expected, repeats)?;
        }
    }
    history.ensure_one_at_a_time(3)?;
    third.stop().await?;
    env.attacher.revive().await
}

/// Creates a pod for each volume, on node A and B in turn, without waiting until it runs.
async fn create_pods(env: &TestEnv<'_>, volumes: &[TestVolume]) -> Result<()> {
    let pods = (0..).zip(volumes);
    let pods = pods.map(|(index, volume)| async move {
        let node = [A, B][index % 2];
        env.pod(&volume.claim, node, &[volume]).await
    });
    try_join_all(pods).await.map(drop)
}

/// Deletes the pods of `old` and creates those of `new`, and waits until the driver executes both an unpublish and a
/// publish. The driver holds one response to an unpublish until then.
async fn replace_pods(env: &mut TestEnv<'_>, old: &[TestVolume], new: &[TestVolume]) -> Result<()> {
    let held = FaultRule::hold_response("held", Method::ControllerUnpublishVolume).for_volume(&old[0].handle);
    env.driver.set_faults(&[held]).await?;
    try_join_all(old.iter().map(|volume| env.delete_pod(&volume.claim))).await?;
    wait_until_in_flight(env, &[UNPUBLISH]).await?;
    create_pods(env, new).await?;
    wait_until_in_flight(env, &[UNPUBLISH, PUBLISH]).await?;
    env.driver.clear_faults().await
}

async fn wait_until_in_flight(env: &TestEnv<'_>, methods: &[&str]) -> Result<()> {
    let what = format!("{methods:?} in flight");
    env.driver
        .wait_for_calls(STEP_TIMEOUT, &what, |calls| {
            let running = |method: &str| {
                calls
                    .iter()
                    .any(|call| call.method == method && call.end.is_none())
            };
            Progress::of(methods.iter().all(|&method| running(method)), || {
                let ended = calls.iter().filter(|call| call.end.is_some()).count();
                format!("{ended} of {} calls have ended", calls.len())
            })
        })
        .await
}

/// Waits until only the pods of the new volumes are left, which run, and the old volumes are detached.
async fn wait_until_replaced(env: &TestEnv<'_>, old: &[TestVolume]) -> Result<()> {
    env.wait_until_all_running(VOLUMES, LONG).await?;
    for (index, volume) in old.iter().enumerate() {
        env.wait_until_detached(volume, [A, B][index % 2], LONG).await?;
    }
    Ok(())
}

/// Fails unless the driver was called with these methods for the volume, in this order.
fn ensure_calls(calls: &[Call], volume: &TestVolume, expected: &[&str], repeats: bool) -> Result<()> {
    let calls = calls.iter().filter(|call| call.volume == volume.handle);
    let calls = calls.filter(|call| [PUBLISH, UNPUBLISH].contains(&call.method.as_str()));
    let mut methods: Vec<_> = calls.map(|call| call.method.as_str()).collect();
    if repeats {
        methods.dedup();
    }
    ensure!(
        methods == expected,
        "the calls for {} are {methods:?}, expected {expected:?}",
        volume.pv
    );
    Ok(())
}
