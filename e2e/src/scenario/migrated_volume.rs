//! In-tree volumes with CSI migration: PersistentVolumes with `awsElasticBlockStore`.

use anyhow::{Result, ensure};
use kube::ResourceExt;

use super::Scenario;
use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use crate::driver::journal::PUBLISH;
use crate::fixture::{Access, EBS_DRIVER, EBS_PLUGIN, PROVISIONED_BY};
use crate::wait::Progress;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "migrated-volume",
    "Volumes of a removed in-tree plugin are attached by the CSI driver that replaced it; our finalizer stays only on the volume with the annotation migrated-to.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    driver: Some(EBS_DRIVER),
    ..ScenarioConfig::ONE_NODE
});

/// The PersistentVolume controller annotates only volumes that the plugin has provisioned, according to their annotation.
async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let made = env.ebs_volume("made", Access::OneNode, None).await?;
    let provisioned = (PROVISIONED_BY, EBS_PLUGIN);
    let provisioned = env
        .ebs_volume("provisioned", Access::OneNode, Some(provisioned))
        .await?;
    env.wait_for_persistent_volume(&provisioned, STEP_TIMEOUT, "the volume to be handed over", |pv| {
        let to = pv.and_then(|pv| pv.annotations().get("pv.kubernetes.io/migrated-to"));
        Progress::of(to.is_some_and(|to| to == EBS_DRIVER), || {
            format!("it is migrated to {to:?}")
        })
    })
    .await?;

    env.pod("web", A, &[&made, &provisioned]).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    for volume in [&made, &provisioned] {
        ensure!(is_held(env, volume).await?, "{} is not held", volume.pv);
        let node_id = env.node(A).node_id();
        ensure!(
            env.driver.calls()?.iter().any(|call| {
                call.method == PUBLISH && call.volume == volume.handle && call.node == node_id
            }),
            "{} was not published as {} to {node_id}",
            volume.pv,
            volume.handle
        );
    }

    env.delete_pod("web").await?;
    env.wait_until_pod_gone("web", STEP_TIMEOUT).await?;
    for volume in [&made, &provisioned] {
        env.wait_until_detached(volume, A, STEP_TIMEOUT).await?;
    }
    let finalizer = env.finalizer();
    env.wait_for_persistent_volume(
        &made,
        STEP_TIMEOUT,
        "the attacher's finalizer to be removed",
        |pv| {
            let held = pv.is_some_and(|pv| pv.finalizers().contains(&finalizer));
            Progress::of(!held, || "it still has our finalizer".to_owned())
        },
    )
    .await?;
    ensure!(
        is_held(env, &provisioned).await?,
        "the finalizer of {} was removed though it lives and was handed over",
        provisioned.pv
    );

    // The finalizer is added again.
    env.pod("again", A, &[&made]).await?;
    env.wait_until_running("again", STEP_TIMEOUT).await?;
    ensure!(is_held(env, &made).await?, "{} is not held again", made.pv);
    env.delete_pod("again").await?;
    env.wait_until_pod_gone("again", STEP_TIMEOUT).await?;
    env.wait_until_detached(&made, A, STEP_TIMEOUT).await
}

async fn is_held(env: &TestEnv<'_>, volume: &TestVolume) -> Result<bool> {
    let pv = env.persistent_volume(volume).await?;
    Ok(pv.finalizers().contains(&env.finalizer()))
}
