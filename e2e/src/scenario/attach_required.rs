//! A CSIDriver with `attachRequired: false`: volumes of its driver need no VolumeAttachment. The field is immutable, so a
//! driver that changes it deletes its CSIDriver and creates another one.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::Scenario;
use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use crate::cluster::ClusterSettings;
use crate::control_plane::Component;
use crate::driver::journal::UNPUBLISH;
use crate::fixture::{Access, mk_csi_driver};
use crate::objects;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "attach-required-changes",
    "Without attachRequired a pod runs without VolumeAttachment, and an attached volume is detached only after its pod; with it again, the volume of a running pod is attached.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    // The mock driver attaches by ControllerPublishVolume only.
    node_drivers: false,
    own_cluster: Some(ClusterSettings {
        populator_period: Some(Duration::from_secs(1)),
        ..ClusterSettings::DEFAULT
    }),
    ..ScenarioConfig::DEFAULT
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let early = env.volume("early", Access::OneNode).await?;
    let late = env.volume("late", Access::OneNode).await?;
    env.pod("early", A, &[&early]).await?;
    env.wait_until_running("early", STEP_TIMEOUT).await?;

    ensure_immutable(env).await?;
    replace_csi_driver(env, false).await?;
    let changes = ["Volume changes from attachable to non-attachable", &early.handle];
    let cluster = env.ctx().cluster();
    cluster
        .wait_for_component_log(Component::ControllerManager, &changes, STEP_TIMEOUT)
        .await?;
    env.pod("late", B, &[&late]).await?;
    env.wait_until_running("late", STEP_TIMEOUT).await?;
    // The node reports it in use, so the controller waits.
    env.ensure_calls(UNPUBLISH, &early, 0)?;
    env.delete_pod("early").await?;
    env.wait_until_detached(&early, A, STEP_TIMEOUT).await?;
    ensure!(
        !was_requested(env, &late),
        "a volume that needs no VolumeAttachment has one"
    );

    replace_csi_driver(env, true).await?;
    env.wait_until_attached(&env.attachment_name(&late, B)).await?;
    env.delete_pod("late").await?;
    env.wait_until_detached(&late, B, STEP_TIMEOUT).await
}

/// Whether there ever was a VolumeAttachment of the volume.
fn was_requested(env: &TestEnv<'_>, volume: &TestVolume) -> bool {
    let events = env.recorder().watch_events();
    let mut sources = events.iter().map(|event| &event.object.spec.source);
    sources.any(|source| source.persistent_volume_name.as_ref() == Some(&volume.pv))
}

async fn ensure_immutable(env: &TestEnv<'_>) -> Result<()> {
    let drivers = Api::<CSIDriver>::all(env.client());
    let patch = Patch::Merge(json!({"spec": {"attachRequired": false}}));
    match drivers
        .patch(env.driver.name(), &PatchParams::default(), &patch)
        .await
    {
        Err(kube::Error::Api(status)) => {
            ensure!(
                status.code == 422 && status.message.contains("field is immutable"),
                "the API server refused the change of attachRequired with {status:?}"
            );
            Ok(())
        }
        Err(error) => Err(error).context("change attachRequired"),
        Ok(_) => bail!("the API server accepted the change of attachRequired"),
    }
}

async fn replace_csi_driver(env: &TestEnv<'_>, attach_required: bool) -> Result<()> {
    let drivers = Api::<CSIDriver>::all(env.client());
    let name = env.driver.name();
    objects::delete(&drivers, name).await?;
    let registration = mk_csi_driver(env.prefix(), name, attach_required);
    objects::create(&drivers, &registration).await.map(drop)
}
