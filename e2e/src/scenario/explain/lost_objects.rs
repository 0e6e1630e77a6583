//! Explanations of pods whose volume, node or scheduling is lost.

use anyhow::{Result, ensure};

use super::super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::super::{ExpectedOutcome, Scenario};
use super::explain_cli::{Expected, ExplainCli};
use crate::fixture::Access;
use crate::wait::Progress;

pub(in crate::scenario) const SCENARIO: Scenario = Scenario {
    name: "explain-lost-objects",
    about: "kubectl csi-attach explain distinguishes a pod without a node, a deleted volume, a node that is down and a deleted node, and names the next step.",
    config: ScenarioConfig::ONE_NODE,
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(run(env)),
};

/// Message of the Ready condition that a kubelet reports when its node shuts down.
const DOWN: &str = "node is shutting down";

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let cli = ExplainCli::new(env).await?;
    let volume = env.volume("data", Access::OneNode).await?;

    env.unschedulable_pod("unschedulable", &[&volume]).await?;
    let unscheduled = Expected::stuck("pod-unscheduled", "scheduler");
    cli.wait(
        env,
        "pod/unschedulable",
        unscheduled.saying("node affinity/selector"),
    )
    .await?;
    env.delete_pod("unschedulable").await?;
    env.wait_until_pod_gone("unschedulable", STEP_TIMEOUT).await?;

    env.pod("web", A, &[&volume]).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    env.delete_persistent_volume(&volume).await?;
    let held = Expected::stuck("volume-held-by-attachment", "administrator");
    cli.wait(env, "pv/data", held.saying("End the pods that use the volume"))
        .await?;

    env.lose_node(A).await?;
    env.report_not_ready(A, DOWN).await?;
    let unready = Expected::stuck("node-not-ready", "kubelet");
    cli.wait(env, "pod/web", unready.saying(DOWN)).await?;
    env.delete_pod("web").await?;
    let lost = Expected::stuck("node-lost", "administrator").saying("out-of-service");
    cli.wait(env, "pod/web", lost).await?;
    in_plain_words(env, &cli).await?;

    env.remove_node(A, &volume).await?;
    let node = format!("node/{}", env.node(A).name());
    let gone = || Expected::stuck("node-gone", "attach-detach-controller");
    cli.wait(env, "pod/web", gone().saying("no node")).await?;
    cli.wait(env, &node, gone()).await?;
    env.remove_pod("web").await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;

    // The attacher's finalizer is gone; only the claim keeps the PersistentVolume.
    let bound = Expected::stuck("volume-terminating", "administrator");
    cli.wait(env, "pvc/data", bound.saying("delete the claim"))
        .await?;
    env.delete_claim(&volume).await?;
    env.wait_for_persistent_volume(&volume, STEP_TIMEOUT, "the volume to go", |pv| {
        Progress::of(pv.is_none(), || "it is still there".to_owned())
    })
    .await?;
    cli.teardown(env).await
}

/// The text output: state, component that must act, reason, advice, and its risks.
async fn in_plain_words(env: &TestEnv<'_>, cli: &ExplainCli) -> Result<()> {
    let text = cli.read(env, "pod/web").await?;
    let node = env.node(A).name();
    let pv = env.volume_named("data")?.pv;
    let prefix = env.prefix();
    let lines = [
        format!("pod/web in namespace {prefix}: STUCK"),
        format!("volume \"data\" of pod {prefix}/web"),
        format!("  => Node {node} is not ready, and its pod still uses the volume."),
        "  next:  an administrator, due since ".to_owned(),
        format!("  why:   The node's Ready condition: {DOWN}"),
        format!(
            "           $ kubectl taint nodes {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        ),
        "         DANGER: ".to_owned(),
    ];
    let mut rest = text.lines();
    for line in &lines {
        ensure!(
            rest.any(|found| found.starts_with(line.as_str())),
            "\"{line}\" is missing, or not in its place:\n{text}"
        );
    }
    ensure!(
        text.contains(&pv) && text.contains(env.driver.name()),
        "neither volume nor driver are named:\n{text}"
    );
    ensure!(!text.contains("note: "), "something could not be read:\n{text}");
    Ok(())
}
