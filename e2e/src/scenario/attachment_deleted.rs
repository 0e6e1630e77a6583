//! An administrator deletes the VolumeAttachment of a volume that a pod uses.

use std::time::Duration;

use anyhow::Result;

use super::Scenario;
use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use crate::cluster::ClusterSettings;
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::wait::Progress;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "attachment-deleted",
    "A volume whose VolumeAttachment is deleted manually is detached, and attached again for its pod.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    // The volume is detached while the pod uses it.
    node_drivers: false,
    own_cluster: Some(ClusterSettings {
        reconcile_sync_period: Some(Duration::from_secs(2)),
        ..ClusterSettings::DEFAULT
    }),
    ..ScenarioConfig::ONE_NODE
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("web", A, "data").await?;
    let name = env.attachment_name(&volume, A);
    let deleted = env.wait_until_attached(&name).await?.metadata.uid;

    env.allow_force_detach(&volume, A);
    env.delete_attachment(&name).await?;
    env.wait_for_attachment(&volume, A, STEP_TIMEOUT, "a new VolumeAttachment", |attachment| {
        let Some(attachment) = attachment else {
            return Progress::Pending("there is none".to_owned());
        };
        let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
        let is_new = attachment.metadata.uid != deleted;
        Progress::of(is_new && attached, || {
            format!("new: {is_new}, attached: {attached}")
        })
    })
    .await?;
    env.wait_for_volumes_attached(A, &[&volume]).await?;

    env.ensure_succeeded(&volume, &[PUBLISH, UNPUBLISH, PUBLISH])
}
