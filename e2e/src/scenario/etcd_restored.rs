//! An administrator restores etcd from a snapshot. Kubernetes forgets attaches and detaches since then; the array does not.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use super::Scenario;
use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use crate::cluster::ClusterSettings;
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::Access;
use crate::invariant::observations::WatchEvent;
use crate::wait::{self, Progress};

pub(super) const SCENARIO: Scenario = Scenario::new(
    "etcd-restored",
    "After a restore of etcd, a volume detached since the snapshot is attached again, one attached since is detached with its next pod, and the attacher leaves other volumes alone.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    reconcile_sync: Duration::from_secs(1),
    own_cluster: Some(ClusterSettings::DEFAULT),
    ..ScenarioConfig::DEFAULT
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let kept = env.volume("kept", Access::OneNode).await?;
    let detached = env.volume("detached", Access::OneNode).await?;
    let attached = env.volume("attached", Access::OneNode).await?;
    env.pod("kept", A, &[&kept]).await?;
    env.pod("detached", A, &[&detached]).await?;
    env.wait_until_all_running(2, STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[&kept, &detached]).await?;

    let publishes = env.driver.calls_to(PUBLISH, &kept.handle)?;
    let pods: Api<Pod> = Api::namespaced(env.client(), env.prefix());
    let started_at = |pod: &Pod| {
        let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
        let running = containers.first()?.state.as_ref()?.running.as_ref()?;
        running.started_at.clone()
    };
    let started = started_at(&pods.get("detached").await.context("read a pod")?);
    let snapshot = env.ctx().cluster().save_snapshot().await?;
    env.delete_pod("detached").await?;
    // Otherwise kubelet could repeat the pod's deletion after the restore.
    env.wait_until_pod_gone("detached", STEP_TIMEOUT).await?;
    env.wait_until_detached(&detached, A, STEP_TIMEOUT).await?;
    env.pod("attached", B, &[&attached]).await?;
    env.wait_until_running("attached", STEP_TIMEOUT).await?;
    let lost = env
        .wait_until_attached(&env.attachment_name(&attached, B))
        .await?;
    let lost = lost.metadata.uid.context("an object has a UID")?;
    env.expect_lost_object(&lost);
    // The VolumeAttachment is restored with attached=true.
    env.exempt_from_attached(&detached, A);

    env.ctx().cluster().restore_snapshot(&snapshot).await?;
    env.wait_until_published(&detached, A, true).await?;
    // The restored status is the old one, Running.
    wait::for_object(
        &pods,
        "detached",
        STEP_TIMEOUT,
        "the restored pod to start again",
        |pod| {
            let again = pod.and_then(started_at);
            Progress::of(again.is_some() && again != started, || {
                format!("started at {again:?}")
            })
        },
    )
    .await?;
    env.pod("next", B, &[&attached]).await?;
    env.wait_until_running("next", STEP_TIMEOUT).await?;
    let again = env
        .wait_until_attached(&env.attachment_name(&attached, B))
        .await?;
    ensure!(
        again.metadata.uid.as_ref() != Some(&lost),
        "the snapshot has a VolumeAttachment that is younger than it"
    );
    // The restore also ended the recorder's watch. It records nothing before its relist.
    let mut recorded = env.recorder().follow();
    let has_again = |events: &Vec<WatchEvent>| {
        let mut uids = events.iter().map(|event| &event.object.metadata.uid);
        uids.any(|uid| *uid == again.metadata.uid)
    };
    tokio::time::timeout(STEP_TIMEOUT, recorded.wait_for(has_again))
        .await
        .context("the recorder did not list the VolumeAttachments again")?
        .context("the recorder ended")?;

    env.ensure_calls(PUBLISH, &kept, publishes)?;
    env.ensure_calls(UNPUBLISH, &kept, 0)?;
    for (pod, volume, node) in [("detached", &detached, A), ("next", &attached, B)] {
        env.delete_pod(pod).await?;
        env.wait_until_detached(volume, node, STEP_TIMEOUT).await?;
    }
    Ok(())
}
