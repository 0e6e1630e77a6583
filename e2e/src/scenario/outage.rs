//! The API server or etcd is killed in the middle of an attach and of a detach. Without etcd the API server stays up and
//! refuses writes.

use std::time::Duration;

use anyhow::{Context, Result};

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::cluster::ClusterSettings;
use crate::control_plane::Component;
use crate::driver::fault::FaultRule;
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::Access;
use crate::invariant::observations::WatchEvent;

/// kube-apiserver may block a write for its whole request timeout, a minute.
const WRITE_FAILS: Duration = Duration::from_secs(120);

pub(super) const API_SERVER: Scenario = Scenario::new(
    "api-server-outage",
    "The attacher finishes an attach and a detach whose CSI calls return during an API server outage, without repeating the calls.",
    |env| Box::pin(run(env, Component::ApiServer)),
)
.with_config(ScenarioConfig {
    own_cluster: Some(ClusterSettings::DEFAULT),
    // The responses are held until the component is down.
    timeout: Duration::from_secs(120),
    ..ScenarioConfig::DEFAULT
})
// The Go attacher publishes again when the status write fails.
.with_go(ExpectedOutcome::may_fail(KnownIssue(2), "was called"));

pub(super) const ETCD: Scenario = Scenario {
    name: "etcd-outage",
    about: "The attacher finishes an attach and a detach whose CSI calls return during an etcd outage, without repeating the calls.",
    run: |env| Box::pin(run(env, Component::Etcd)),
    ..API_SERVER
};

async fn run(env: &mut TestEnv<'_>, component: Component) -> Result<()> {
    let leaving = env.volume("leaving", Access::OneNode).await?;
    let coming = env.volume("coming", Access::OneNode).await?;
    env.pod("leaving", A, &[&leaving]).await?;
    env.wait_until_running("leaving", STEP_TIMEOUT).await?;
    env.detach_and_attach(&leaving, &coming, FaultRule::hold_response)
        .await?;
    // If the recorder first saw the end of the attachment after the outage, the detach would seem to precede its deletion.
    let name = env.attachment_name(&leaving, A);
    let mut recorded = env.recorder().follow();
    let is_deleting = |events: &Vec<WatchEvent>| {
        let mut metadata = events.iter().map(|event| &event.object.metadata);
        metadata.any(|metadata| {
            metadata.name.as_deref() == Some(name.as_str()) && metadata.deletion_timestamp.is_some()
        })
    };
    tokio::time::timeout(STEP_TIMEOUT, recorded.wait_for(is_deleting))
        .await
        .context("the recorder did not see the attachment's deletionTimestamp")?
        .context("the recorder ended")?;

    env.ctx().cluster().kill_component(component).await?;
    env.ensure_calls_in_flight(&[&coming, &leaving])?;
    env.driver.clear_faults().await?;
    for (volume, node) in [(&coming, B), (&leaving, A)] {
        env.wait_until_call_ended(volume, STEP_TIMEOUT).await?;
        if component == Component::Etcd {
            let write_failed = ["err=\"", &env.attachment_name(volume, node)];
            env.attacher.wait_for_log(&write_failed, WRITE_FAILS).await?;
        }
    }
    env.ctx().cluster().start_component(component).await?;
    env.wait_until_running("coming", STEP_TIMEOUT).await?;
    env.wait_until_detached(&leaving, A, STEP_TIMEOUT).await?;
    env.ensure_calls(PUBLISH, &coming, 1)?;
    env.ensure_calls(UNPUBLISH, &leaving, 1)
}
