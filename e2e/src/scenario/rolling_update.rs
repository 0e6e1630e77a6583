//! Rolling updates of the attacher, replica by replica, while pods come and go.

use anyhow::Result;

use super::leader::{History, attach};
use super::test_context::Build;
use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use super::{ExpectedOutcome, Scenario};
use crate::attacher::Kind;
use crate::fixture::Access;

pub(super) const KIND: Scenario = Scenario {
    name: "leader-changes-kind",
    about: "A rolling update between the two attachers and back, replica by replica, while pods are created and deleted.",
    config: ScenarioConfig::DEFAULT,
    go: ExpectedOutcome::Passes,
    run: |env| {
        let other = match env.attacher.kind() {
            Kind::Ours => Kind::Go,
            Kind::Go => Kind::Ours,
        };
        Box::pin(run(env, Build::Current(other)))
    },
};

pub(super) const VERSION: Scenario = Scenario {
    name: "leader-changes-version",
    about: "A rolling update from an earlier build of our attacher and back, replica by replica, while pods are created and deleted.",
    config: ScenarioConfig::DEFAULT,
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(run(env, Build::Previous)),
};

async fn run(env: &mut TestEnv<'_>, other: Build) -> Result<()> {
    let kind = env.attacher.kind();
    let mut history = History::begin(env).await?;
    let mut first = env.replica(other, "one").await?;
    history.wait_for_holder("one").await?;
    let mut second = env.replica(kind, "two").await?;
    attach(env, "before", A).await?;

    let upgrade = create_pods(env, "up").await?;
    first.stop().await?;
    history.wait_for_holder("two").await?;
    for (pod, ..) in &upgrade {
        env.wait_until_running(pod, STEP_TIMEOUT).await?;
    }
    let mut third = env.replica(other, "three").await?;
    let downgrade = create_pods(env, "down").await?;
    for (pod, ..) in &upgrade {
        env.delete_pod(pod).await?;
    }
    second.stop().await?;
    history.wait_for_holder("three").await?;
    for (pod, ..) in &downgrade {
        env.wait_until_running(pod, STEP_TIMEOUT).await?;
    }
    for (_, volume, node) in &upgrade {
        env.wait_until_detached(volume, *node, STEP_TIMEOUT).await?;
    }
    history.ensure_one_at_a_time(3)?;
    third.stop().await?;
    env.attacher.revive().await
}

/// Creates pods without waiting until they run.
async fn create_pods(env: &mut TestEnv<'_>, name: &str) -> Result<Vec<(String, TestVolume, usize)>> {
    let mut pods = Vec::new();
    for (number, node) in [A, B, A, B].into_iter().enumerate() {
        let pod = format!("{name}-{number}");
        let volume = env.volume(&pod, Access::OneNode).await?;
        env.pod(&pod, node, &[&volume]).await?;
        pods.push((pod, volume, node));
    }
    Ok(pods)
}
