//! Somebody deletes the PersistentVolume of a running pod.

use anyhow::{Result, ensure};
use kube::ResourceExt;

use super::stage::{A, PATIENCE, Setting, Stage};
use super::{Scenario, Verdict};
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::Access;
use crate::wait::Progress;

const REASON: &str = "the array is busy";

pub(super) const SCENARIO: Scenario = Scenario {
    name: "volume-deleted",
    about: "A deleted PersistentVolume stays, held by the attacher's finalizer, until its volume is detached.",
    setting: Setting {
        nodes: 1,
        ..Setting::DEFAULT
    },
    go: Verdict::Passes,
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let volume = stage.volume("data", Access::OneNode).await?;
    stage.pod("web", A, &[&volume]).await?;
    stage.wait_until_running("web", PATIENCE).await?;
    stage.delete_persistent_volume(&volume).await?;

    // The detach fails until further notice, so that what holds the volume meanwhile can be seen.
    let busy = FaultRule::fail("busy", Method::ControllerUnpublishVolume, "ABORTED", REASON);
    stage.driver.set_faults(&[busy]).await?;
    stage.delete_claim(&volume).await?;
    stage.delete_pod("web").await?;
    stage.wait_until_pod_gone("web", PATIENCE).await?;
    stage
        .wait_for_attachment(
            &volume,
            A,
            PATIENCE,
            "the attachment's detachError",
            |attachment| {
                let status = attachment.and_then(|attachment| attachment.status.as_ref());
                let error = status.and_then(|status| status.detach_error.as_ref());
                let told = error
                    .and_then(|error| error.message.as_deref())
                    .is_some_and(|text| text.contains(REASON));
                Progress::of(told, || format!("its status is {status:?}"))
            },
        )
        .await?;
    let ours = [stage.finalizer()];
    stage
        .wait_for_persistent_volume(
            &volume,
            PATIENCE,
            "only the attacher to hold the volume",
            |pv| match pv {
                Some(pv) => Progress::of(pv.finalizers() == ours, || {
                    format!("it is held by {:?}", pv.finalizers())
                }),
                None => Progress::Pending("it is gone although its volume is attached".to_owned()),
            },
        )
        .await?;
    let published = stage.driver.published().await?;
    ensure!(
        published.contains_key(&volume.handle),
        "the volume was detached too early"
    );

    stage.driver.clear_faults().await?;
    stage.wait_until_detached(&volume, A, PATIENCE).await?;
    stage
        .wait_for_persistent_volume(&volume, PATIENCE, "the volume to go", |pv| {
            Progress::of(pv.is_none(), || {
                format!("it is held by {:?}", pv.map(ResourceExt::finalizers))
            })
        })
        .await
}
