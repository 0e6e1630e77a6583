//! The PersistentVolume of an attached volume is removed together with its finalizers.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::test_env::{A, SECRET_KEY, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::driver::journal::UNPUBLISH;
use crate::objects;
use crate::wait;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "volume-force-deleted",
    "A volume whose PersistentVolume was force-deleted is detached from the record, by an attacher that never saw the PersistentVolume.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    node_drivers: false,
    ..ScenarioConfig::ONE_NODE
})
.with_go(ExpectedOutcome::fails(KnownIssue(10), "failed: persistentvolume"));

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let namespace = env.prefix().to_owned();
    let (pv, handle) = env.unbound_volume_with_secret(&namespace).await?;
    env.create_attachment(&pv, A).await?;
    env.wait_until_attached(&pv).await?;

    let volumes = Api::<PersistentVolume>::all(env.client());
    objects::delete(&volumes, &pv).await?;
    let strip = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let stripped = volumes.patch(&pv, &PatchParams::default(), &strip).await;
    let stripped = stripped.context("strip the volume of its finalizers")?;
    env.expect_lost_object(&stripped.metadata.uid.context("an object has a UID")?);
    wait::for_absence(&volumes, &pv, STEP_TIMEOUT, "the volume to go").await?;
    // The attacher's cached state of the volume is deleted with it.
    env.attacher.crash().await?;
    env.attacher.revive().await?;

    env.delete_attachment(&pv).await?;
    env.wait_until_attachment_gone(&pv).await?;
    let calls = env.driver.calls()?;
    let detach = calls
        .iter()
        .find(|call| call.method == UNPUBLISH && call.volume == handle && call.succeeded())
        .context("no ControllerUnpublishVolume by the handle of the volume")?;
    ensure!(
        detach.node == env.node(A).node_id(),
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
