//! The PersistentVolume of a running pod is deleted.

use anyhow::{Result, ensure};
use kube::ResourceExt;

use super::Scenario;
use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use crate::driver::fault::{FaultRule, Method};
use crate::wait::Progress;

const REASON: &str = "the array is busy";

pub(super) const SCENARIO: Scenario = Scenario::new(
    "volume-deleted",
    "The attacher's finalizer keeps a deleted PersistentVolume until its volume is detached.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig::ONE_NODE);

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("web", A, "data").await?;
    env.delete_persistent_volume(&volume).await?;

    // The detach fails until the faults are cleared, so that the finalizers can be checked meanwhile.
    let busy = FaultRule::fail("busy", Method::ControllerUnpublishVolume, "ABORTED", REASON);
    env.driver.set_faults(&[busy]).await?;
    env.delete_claim(&volume).await?;
    env.delete_pod("web").await?;
    env.wait_until_pod_gone("web", STEP_TIMEOUT).await?;
    env.wait_for_detach_error(&volume, A, REASON).await?;
    let ours = [env.finalizer()];
    env.wait_for_persistent_volume(
        &volume,
        STEP_TIMEOUT,
        "only the attacher to hold the volume",
        |pv| match pv {
            Some(pv) => Progress::of(pv.finalizers() == ours, || {
                format!("it is held by {:?}", pv.finalizers())
            }),
            None => Progress::Pending("it is deleted although its volume is attached".to_owned()),
        },
    )
    .await?;
    let published = env.driver.published().await?;
    ensure!(
        published.contains_key(&volume.handle),
        "the volume was detached too early"
    );

    env.driver.clear_faults().await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.wait_for_persistent_volume(&volume, STEP_TIMEOUT, "the volume to go", |pv| {
        Progress::of(pv.is_none(), || {
            format!("it is held by {:?}", pv.map(ResourceExt::finalizers))
        })
    })
    .await
}
