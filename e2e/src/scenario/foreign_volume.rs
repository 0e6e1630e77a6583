//! A VolumeAttachment names the attacher of one driver and a volume of another.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::test_env::{A, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::driver::journal::{PUBLISH, UNPUBLISH};

pub(super) const SCENARIO: Scenario = Scenario::new(
    "foreign-volume",
    "A volume of another driver is rejected without a driver call, even if this driver has the same volume handle.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    node_drivers: false,
    ..ScenarioConfig::ONE_NODE
})
.with_go(ExpectedOutcome::fails(KnownIssue(9), "the driver was called for a volume of another driver"));

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    // Handles are unique within a driver only.
    let handle = env.unbound_volume("data").await?;
    let pv = format!("{}-data", env.prefix());
    let other = format!("other.{}", env.driver.name());
    let spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": other, "volumeHandle": handle},
    });
    env.unbound_persistent_volume(&pv, spec).await?;
    env.create_attachment(&pv, A).await?;

    let attachment = env.wait_until_attached_or_failed(&pv).await?;
    never_asked(env, &handle)?;
    let status = attachment.status.clone().unwrap_or_default();
    let Some(error) = status.attach_error.filter(|_| !status.attached) else {
        bail!("attached without a call");
    };
    let error = error.message.context("an attachError must have a message")?;
    ensure!(
        error.contains(&other) && error.contains(env.driver.name()),
        "the error names the two drivers not: {error}"
    );
    ensure!(
        attachment.finalizers().is_empty(),
        "nothing was published, but it is held by {:?}",
        attachment.finalizers()
    );
    let volume = Api::<PersistentVolume>::all(env.client()).get(&pv).await?;
    ensure!(
        !volume.finalizers().contains(&env.finalizer()),
        "a volume of another driver is held by {:?}",
        volume.finalizers()
    );

    env.delete_attachment(&pv).await?;
    env.wait_until_attachment_gone(&pv).await?;
    never_asked(env, &handle)
}

fn never_asked(env: &TestEnv<'_>, handle: &str) -> Result<()> {
    let calls = env.driver.calls()?;
    let call = calls
        .iter()
        .find(|call| call.volume == handle && [PUBLISH, UNPUBLISH].contains(&&*call.method));
    if let Some(call) = call {
        bail!(
            "the driver was called for a volume of another driver: {}",
            call.method
        );
    }
    Ok(())
}
