//! The simplest path: a pod's volume is attached before the pod runs and detached after its deletion.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;

use super::test_env::{A, SECRET_KEY, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, Scenario};
use crate::driver::journal::{PUBLISH, UNPUBLISH};

pub(super) const SCENARIO: Scenario = Scenario::new(
    "pod-attaches",
    "A pod's volume is published once, its VolumeAttachment has node id and attachmentMetadata, and nothing remains after the pod's deletion.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig::ONE_NODE)
.with_go(ExpectedOutcome::MAY_PUBLISH_TWICE);

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("web", A, "data").await?;

    let attachment = env.wait_until_attachment_exists(&volume, A).await?;
    let node_id = env.node(A).node_id();
    ensure!(
        attachment.finalizers().contains(&env.finalizer()),
        "no finalizer: {:?}",
        attachment.finalizers()
    );
    let recorded = attachment.annotations().get("csi.alpha.kubernetes.io/node-id");
    ensure!(
        recorded.is_some_and(|id| id == node_id),
        "the node id on the attachment is {recorded:?}"
    );
    let status = attachment.status.context("an attached volume has a status")?;

    let calls = env.driver.calls()?;
    let publish = calls
        .iter()
        .find(|call| call.method == PUBLISH)
        .context("no ControllerPublishVolume in the journal")?;
    ensure!(
        publish.volume == volume.handle && publish.node == node_id,
        "published elsewhere: {publish:?}"
    );
    ensure!(
        publish.secrets == BTreeSet::from([SECRET_KEY.to_owned()]),
        "secrets sent: {:?}",
        publish.secrets
    );
    let context = &publish
        .end
        .as_ref()
        .context("the publish must have ended")?
        .context;
    ensure!(
        !context.is_empty(),
        "the driver gave no publish context, so its way to the node is untested"
    );
    ensure!(
        status.attachment_metadata.as_ref() == Some(context),
        "the publish context {context:?} arrived as {:?}",
        status.attachment_metadata
    );
    let pv = env.persistent_volume(&volume).await?;
    ensure!(
        pv.finalizers().contains(&env.finalizer()),
        "the volume is not held: {:?}",
        pv.finalizers()
    );

    env.delete_pod("web").await?;
    env.wait_until_pod_gone("web", STEP_TIMEOUT).await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    for method in [PUBLISH, UNPUBLISH] {
        env.ensure_calls(method, &volume, 1)?;
    }
    Ok(())
}
