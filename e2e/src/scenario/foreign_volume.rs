//! Somebody asks for a volume of one driver to be attached by another.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::stage::{A, Setting, Stage};
use super::{Oddity, Scenario, Verdict};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "foreign-volume",
    about: "A volume of another driver is refused without a call, although this driver has one of the same handle.",
    setting: Setting {
        nodes: 1,
        ..Setting::DEFAULT
    },
    go: Verdict::Fails {
        oddity: Oddity::Listed(9),
        sign: "the driver was asked for a volume of another",
        always: true,
    },
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    // Handles are unique within a driver only.
    let handle = stage.loose_volume("data").await?;
    let pv = format!("{}-data", stage.prefix());
    let other = format!("other.{}", stage.driver.name());
    let spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": other, "volumeHandle": handle},
    });
    stage.loose_persistent_volume(&pv, spec).await?;
    stage.ask_to_attach(&pv, A).await?;

    let attachment = stage.wait_until_answered(&pv).await?;
    never_asked(stage, &handle)?;
    let status = attachment.status.clone().unwrap_or_default();
    let Some(error) = status.attach_error.filter(|_| !status.attached) else {
        bail!("attached without a call");
    };
    let error = error.message.context("an attachError must have a message")?;
    ensure!(
        error.contains(&other) && error.contains(stage.driver.name()),
        "the error names the two drivers not: {error}"
    );
    ensure!(
        attachment.finalizers().is_empty(),
        "nothing was published, but it is held by {:?}",
        attachment.finalizers()
    );
    let volume = Api::<PersistentVolume>::all(stage.client()).get(&pv).await?;
    ensure!(
        !volume.finalizers().contains(&stage.finalizer()),
        "a volume of another driver is held by {:?}",
        volume.finalizers()
    );

    stage.ask_to_detach(&pv).await?;
    stage.wait_until_let_go(&pv).await?;
    never_asked(stage, &handle)
}

fn never_asked(stage: &Stage<'_>, handle: &str) -> Result<()> {
    let calls = stage.driver.calls()?;
    let call = calls.iter().find(|call| {
        call.volume == handle
            && ["ControllerPublishVolume", "ControllerUnpublishVolume"].contains(&&*call.method)
    });
    if let Some(call) = call {
        bail!("the driver was asked for a volume of another: {}", call.method);
    }
    Ok(())
}
