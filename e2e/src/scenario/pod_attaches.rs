//! The plain path: a pod's volume is attached before it runs and detached after it is gone.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;

use super::stage::{A, PATIENCE, SECRET_KEY, Setting, Stage};
use super::{Oddity, Scenario, Verdict};
use crate::fixture::Access;
use crate::wait::Progress;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "pod-attaches",
    about: "A pod's volume is published once, the attachment tells where and how, and all of it goes with the pod.",
    setting: Setting {
        nodes: 1,
        ..Setting::DEFAULT
    },
    // From a cache that does not show its own success yet, the Go attacher may publish a second time.
    go: Verdict::Fails {
        oddity: Oddity::Listed(2),
        sign: "ControllerPublishVolume was called",
        always: false,
    },
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let volume = stage.volume("data", Access::OneNode).await?;
    stage.pod("web", A, &[&volume]).await?;
    stage.wait_until_running("web", PATIENCE).await?;

    let attachment = stage
        .wait_for_attachment(
            &volume,
            A,
            PATIENCE,
            "the attachment",
            |attachment| match attachment {
                Some(attachment) => Progress::Reached(attachment.clone()),
                None => Progress::Pending("there is none".to_owned()),
            },
        )
        .await?;
    let node_id = stage.node(A).node_id();
    ensure!(
        attachment.finalizers().contains(&stage.finalizer()),
        "no finalizer: {:?}",
        attachment.finalizers()
    );
    let recorded = attachment.annotations().get("csi.alpha.kubernetes.io/node-id");
    ensure!(
        recorded.is_some_and(|id| id == node_id),
        "the node id on the attachment is {recorded:?}"
    );
    let status = attachment.status.context("an attached volume has a status")?;

    let calls = stage.driver.calls()?;
    let publish = calls
        .iter()
        .find(|call| call.method == "ControllerPublishVolume")
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
    let pv = stage.persistent_volume(&volume).await?;
    ensure!(
        pv.finalizers().contains(&stage.finalizer()),
        "the volume is not held: {:?}",
        pv.finalizers()
    );

    stage.delete_pod("web").await?;
    stage.wait_until_pod_gone("web", PATIENCE).await?;
    stage.wait_until_detached(&volume, A, PATIENCE).await?;
    let published = stage.driver.published().await?;
    ensure!(published.is_empty(), "still published: {published:?}");
    for method in ["ControllerPublishVolume", "ControllerUnpublishVolume"] {
        let times = stage
            .driver
            .calls()?
            .iter()
            .filter(|call| call.method == method)
            .count();
        ensure!(times == 1, "{method} was called {times} times");
    }
    Ok(())
}
