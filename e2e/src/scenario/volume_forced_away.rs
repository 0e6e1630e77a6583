//! Somebody removes the PersistentVolume of an attached volume by force.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::stage::{A, PATIENCE, SECRET_KEY, Setting, Stage};
use super::{Oddity, Scenario, Verdict};
use crate::wait;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "volume-forced-away",
    about: "A volume whose PersistentVolume was removed with its finalizers is detached all the same, by an attacher that never saw it.",
    setting: Setting {
        nodes: 1,
        ..Setting::DEFAULT
    },
    go: Verdict::Fails {
        oddity: Oddity::Listed(10),
        sign: "failed: persistentvolume",
        always: true,
    },
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let namespace = stage.prefix().to_owned();
    let (pv, handle) = stage.loose_secret_volume(&namespace).await?;
    stage.ask_to_attach(&pv, A).await?;
    stage.wait_until_attached(&pv).await?;

    let volumes = Api::<PersistentVolume>::all(stage.client());
    volumes.delete(&pv, &DeleteParams::default()).await?;
    let strip = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    volumes
        .patch(&pv, &PatchParams::default(), &strip)
        .await
        .context("strip the volume of its finalizers")?;
    wait::for_absence(&volumes, &pv, PATIENCE, "the volume to go").await?;
    // What the attacher remembers of the volume goes with it.
    stage.subject.crash().await?;
    stage.subject.revive().await?;

    stage.ask_to_detach(&pv).await?;
    stage.wait_until_let_go(&pv).await?;
    let published = stage.driver.published().await?;
    ensure!(published.is_empty(), "still published: {published:?}");
    let calls = stage.driver.calls()?;
    let detach = calls
        .iter()
        .find(|call| call.method == "ControllerUnpublishVolume" && call.volume == handle && call.succeeded())
        .context("no ControllerUnpublishVolume by the handle of the volume")?;
    ensure!(
        detach.node == stage.node(A).node_id(),
        "it was detached from {}",
        detach.node
    );
    ensure!(
        detach.secrets.iter().eq([SECRET_KEY]),
        "the detach came with the secrets {:?}",
        detach.secrets
    );
    Ok(())
}
