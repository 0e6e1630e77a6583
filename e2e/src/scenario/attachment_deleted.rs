//! An administrator deletes the VolumeAttachment of a volume that a pod uses.

use std::time::Duration;

use anyhow::Result;

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, Scenario};
use crate::cluster::ClusterSettings;
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::Access;
use crate::wait::Progress;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "attachment-deleted",
    about: "A volume whose VolumeAttachment is deleted manually is detached, and attached again for its pod.",
    config: ScenarioConfig {
        // The volume is detached while the pod uses it.
        node_drivers: false,
        own_cluster: Some(ClusterSettings {
            reconcile_sync_period: Some(Duration::from_secs(2)),
            ..ClusterSettings::DEFAULT
        }),
        ..ScenarioConfig::ONE_NODE
    },
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(run(env)),
};

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("web", A, &[&volume]).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
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
