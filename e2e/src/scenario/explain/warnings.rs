//! What only people can end: an Event and `kubectl csi-attach explain` report it, and the attacher does not call the driver.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::Patch;
use serde_json::json;

use super::super::failure_events::wait_for_event;
use super::super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use super::super::{ExpectedOutcome, KnownIssue, Scenario};
use super::explain_cli::{Account, ExplainCli};
use crate::driver::journal::UNPUBLISH;
use crate::fixture::Access;
use crate::objects;

pub(in super::super) const SHARED_NODE_ID: Scenario = Scenario {
    name: "node-ids-shared",
    about: "Two nodes with one node id are reported on the VolumeAttachments of both; nothing is unpublished.",
    config: ScenarioConfig::DEFAULT,
    go: ExpectedOutcome::Fails {
        issue: KnownIssue(18),
        expected_error: "Event NodeIDNotUnique about",
        always: true,
    },
    run: |env| Box::pin(shared_node_id(env)),
};

pub(in super::super) const UNATTACHED: Scenario = Scenario {
    name: "published-unattached",
    about: "A volume that the driver lists on a node without VolumeAttachment is reported on its PersistentVolume and not unpublished, until the advice of the Event is followed.",
    config: ScenarioConfig {
        reconcile_sync: Duration::from_secs(1),
        ..ScenarioConfig::ONE_NODE
    },
    go: ExpectedOutcome::Fails {
        issue: KnownIssue(18),
        expected_error: "Event PublishedWithoutAttachment about",
        always: true,
    },
    run: |env| Box::pin(unattached(env)),
};

async fn shared_node_id(env: &mut TestEnv<'_>) -> Result<()> {
    let cli = ExplainCli::new(env).await?;
    let volumes = [
        env.volume("first", Access::OneNode).await?,
        env.volume("second", Access::OneNode).await?,
    ];
    env.pod("first", A, &[&volumes[0]]).await?;
    env.pod("second", B, &[&volumes[1]]).await?;
    env.wait_until_all_running(2, STEP_TIMEOUT).await?;

    let own_id = env.node(B).node_id().to_owned();
    env.node(B).reregister(env.node(A).node_id()).await?;
    let reported = is_reported_on_both(env, &cli, &volumes).await;
    // The detaches of the teardown need it.
    env.node(B).reregister(&own_id).await?;
    reported?;
    for volume in &volumes {
        env.ensure_calls(UNPUBLISH, volume, 0)?;
    }
    cli.teardown(env).await
}

async fn is_reported_on_both(env: &TestEnv<'_>, cli: &ExplainCli, volumes: &[TestVolume; 2]) -> Result<()> {
    for (node, volume) in [A, B].into_iter().zip(volumes) {
        let attachment = env.attachment_name(volume, node);
        let event = wait_for_event(env, "VolumeAttachment", &attachment, "NodeIDNotUnique", 1).await?;
        let message = event.message.context("an Event must have a message")?;
        for name in [A, B].map(|node| env.node(node).name()) {
            ensure!(
                message.contains(name),
                "the Event does not name {name}: {message}"
            );
        }
        is_explained(env, cli, &format!("va/{attachment}"), &message).await?;
    }
    Ok(())
}

async fn unattached(env: &mut TestEnv<'_>) -> Result<()> {
    let cli = ExplainCli::new(env).await?;
    let volume = env.volume("data", Access::OneNode).await?;
    env.create_attachment(&volume.pv, A).await?;
    let attachment = env.wait_until_attached(&volume.pv).await?;

    // As an API server does that loses the finalizer during a deletion (kubernetes#77988).
    env.attacher.crash().await?;
    let uid = attachment.metadata.uid.context("an object must have a UID")?;
    env.expect_lost_object(&uid);
    let attachments = Api::<VolumeAttachment>::all(env.client());
    let lost = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    objects::patch(&attachments, &volume.pv, &lost).await?;
    env.delete_attachment(&volume.pv).await?;
    env.attacher.revive().await?;
    let reason = "PublishedWithoutAttachment";
    let event = wait_for_event(env, "PersistentVolume", &volume.pv, reason, 1).await?;
    let message = event.message.context("an Event must have a message")?;
    let node_id = env.node(A).node_id();
    ensure!(
        message.contains(node_id) && message.contains(&volume.handle),
        "the Event does not name {} and {node_id}: {message}",
        volume.handle
    );
    is_explained(env, &cli, &format!("pv/{}", volume.pv), &message).await?;
    env.ensure_calls(UNPUBLISH, &volume, 0)?;

    env.create_attachment(&volume.pv, A).await?;
    env.wait_until_attached(&volume.pv).await?;
    env.delete_attachment(&volume.pv).await?;
    env.wait_until_attachment_gone(&volume.pv).await?;
    env.wait_until_published(&volume, A, false).await?;
    cli.teardown(env).await
}

/// The plugin shows the message of the attacher's Event.
async fn is_explained(env: &TestEnv<'_>, cli: &ExplainCli, object: &str, message: &str) -> Result<()> {
    let explained = cli
        .run_json(Account::Explain, env, object)
        .await?
        .json
        .to_string();
    ensure!(
        explained.contains(message),
        "{object} is explained as {explained}"
    );
    Ok(())
}
