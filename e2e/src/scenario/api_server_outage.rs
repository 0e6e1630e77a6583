//! The API server is killed in the middle of an attach and of a detach.

use std::time::Duration;

use anyhow::Result;

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::cluster::ClusterSettings;
use crate::control_plane::Component;
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::Access;

/// How long the driver takes to answer: the API server is killed meanwhile.
const SLOW: Duration = Duration::from_secs(3);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "api-server-outage",
    about: "An attach and a detach whose calls end while the API server is down are finished when it is back.",
    config: ScenarioConfig {
        own_cluster: Some(ClusterSettings::DEFAULT),
        ..ScenarioConfig::DEFAULT
    },
    // The retry of the call that timed out can succeed from a cache without the error.
    go: ExpectedOutcome::Fails {
        issue: KnownIssue(21),
        expected_error: "it is attached and still has an attachError",
        always: false,
    },
    run: |env| Box::pin(run(env)),
};

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let leaving = env.volume("leaving", Access::OneNode).await?;
    let coming = env.volume("coming", Access::OneNode).await?;
    env.pod("leaving", A, &[&leaving]).await?;
    env.wait_until_running("leaving", STEP_TIMEOUT).await?;
    let attach =
        FaultRule::delay_answer("attach", Method::ControllerPublishVolume, SLOW).for_volume(&coming.handle);
    let detach = FaultRule::delay_answer("detach", Method::ControllerUnpublishVolume, SLOW)
        .for_volume(&leaving.handle);
    env.driver.set_faults(&[attach, detach]).await?;
    env.delete_pod("leaving").await?;
    env.pod("coming", B, &[&coming]).await?;
    for (volume, node, published) in [(&coming, B, true), (&leaving, A, false)] {
        let node_id = env.node(node).node_id().to_owned();
        env.driver
            .wait_until_published(&volume.handle, &node_id, published, STEP_TIMEOUT)
            .await?;
    }

    let cluster = env.ctx().cluster();
    cluster.kill_component(Component::ApiServer).await?;
    for volume in [&coming, &leaving] {
        env.wait_until_call_ended(volume, STEP_TIMEOUT).await?;
    }
    env.ctx().cluster().start_component(Component::ApiServer).await?;
    env.wait_until_running("coming", STEP_TIMEOUT).await?;
    env.wait_until_detached(&leaving, A, STEP_TIMEOUT).await
}
