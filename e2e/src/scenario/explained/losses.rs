//! Volumes, nodes and places for pods that are lost, and what an explanation says of them.

use anyhow::{Result, ensure};

use super::super::stage::{A, PATIENCE, Setting, Stage};
use super::super::{Scenario, Verdict};
use super::asker::{Asker, Expected};
use crate::fixture::Access;
use crate::wait::Progress;

pub(in crate::scenario) const SCENARIO: Scenario = Scenario {
    name: "explained-losses",
    about: "A pod without a node, a deleted volume, a node that is down and one that is gone are told apart, and how to go on.",
    setting: Setting {
        nodes: 1,
        ..Setting::DEFAULT
    },
    go: Verdict::Passes,
    play: |stage| Box::pin(play(stage)),
};

/// What a kubelet says of itself when its node shuts down.
const DOWN: &str = "node is shutting down";

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let asker = Asker::new(stage).await?;
    let volume = stage.volume("data", Access::OneNode).await?;

    stage.homeless_pod("homeless", &[&volume]).await?;
    let unscheduled = Expected::stuck("pod-unscheduled", "scheduler");
    asker
        .wait(
            stage,
            "pod/homeless",
            unscheduled.saying("node affinity/selector"),
        )
        .await?;
    stage.delete_pod("homeless").await?;
    stage.wait_until_pod_gone("homeless", PATIENCE).await?;

    stage.pod("web", A, &[&volume]).await?;
    stage.wait_until_running("web", PATIENCE).await?;
    stage.delete_persistent_volume(&volume).await?;
    let held = Expected::stuck("volume-held-by-attachment", "person");
    asker
        .wait(stage, "pv/data", held.saying("End the pods that use the volume"))
        .await?;

    stage.lose_node(A);
    stage.report_not_ready(A, DOWN).await?;
    let unready = Expected::stuck("node-not-ready", "kubelet");
    asker.wait(stage, "pod/web", unready.saying(DOWN)).await?;
    stage.delete_pod("web").await?;
    let lost = Expected::stuck("node-lost", "person").saying("out-of-service");
    asker.wait(stage, "pod/web", lost).await?;
    in_plain_words(stage, &asker).await?;

    stage.remove_node(A, &volume).await?;
    let node = format!("node/{}", stage.node(A).name());
    let gone = || Expected::stuck("node-gone", "attach-detach-controller");
    asker.wait(stage, "pod/web", gone().saying("no node")).await?;
    asker.wait(stage, &node, gone()).await?;
    stage.remove_pod("web").await?;
    stage.wait_until_detached(&volume, A, PATIENCE).await?;

    // Nothing of the attacher's holds the volume any more: its claim does.
    let bound = Expected::stuck("volume-terminating", "person");
    asker
        .wait(stage, "pvc/data", bound.saying("delete the claim"))
        .await?;
    stage.delete_claim(&volume).await?;
    stage
        .wait_for_persistent_volume(&volume, PATIENCE, "the volume to go", |pv| {
            Progress::of(pv.is_none(), || "it is still there".to_owned())
        })
        .await?;
    asker.leave(stage).await
}

/// The answer as people read it: where it stands, who must act, why, what to do, and what can go wrong by it.
async fn in_plain_words(stage: &Stage<'_>, asker: &Asker) -> Result<()> {
    let text = asker.read(stage, "pod/web").await?;
    let node = stage.node(A).name();
    let pv = stage.volume_named("data")?.pv;
    let prefix = stage.prefix();
    let lines = [
        format!("pod/web in namespace {prefix}: STUCK"),
        format!("volume \"data\" of pod {prefix}/web"),
        format!("  => Node {node} is not ready, and its pod still holds the volume."),
        "  next:  a person, waited for since ".to_owned(),
        format!("  why:   The node's Ready condition: {DOWN}"),
        format!(
            "           $ kubectl taint nodes {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        ),
        "         DANGER: ".to_owned(),
    ];
    let mut rest = text.lines();
    for line in &lines {
        ensure!(
            rest.any(|told| told.starts_with(line.as_str())),
            "\"{line}\" is not told, or not in its place:\n{text}"
        );
    }
    ensure!(
        text.contains(&pv) && text.contains(stage.driver.name()),
        "neither volume nor driver are named:\n{text}"
    );
    ensure!(!text.contains("note: "), "something could not be read:\n{text}");
    Ok(())
}
