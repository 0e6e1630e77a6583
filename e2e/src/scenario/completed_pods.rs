//! The volumes of completed pods are detached although the Pod objects remain.

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::Patch;
use serde_json::json;

use super::test_env::{A, B, STEP_TIMEOUT, TestEnv};
use super::{Scenario, move_order};
use crate::driver::journal::UNPUBLISH;
use crate::fixture::Access;
use crate::objects;

/// Annotation by which a kubelet with `--keep-terminated-pod-volumes` kept the volumes of such pods attached. Kubernetes
/// removed the flag, and the attach/detach controller ignores the annotation (1.34 at the latest).
const KEEP_TERMINATED_POD_VOLUMES: &str = "volumes.kubernetes.io/keep-terminated-pod-volumes";

pub(super) const SCENARIO: Scenario = Scenario::new(
    "completed-pods",
    "Volumes of pods that succeeded or failed are detached while the pods exist, except those that another pod uses.",
    |env| Box::pin(run(env)),
);

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let annotations = json!({"metadata": {"annotations": {KEEP_TERMINATED_POD_VOLUMES: "true"}}});
    objects::patch(
        &Api::<Node>::all(env.client()),
        env.node(A).name(),
        &Patch::Merge(annotations),
    )
    .await?;
    let shared = env.volume("shared", Access::OneNode).await?;
    let first = env.volume("first", Access::OneNode).await?;
    let second = env.volume("second", Access::OneNode).await?;
    env.pod("stays", A, &[&shared]).await?;
    env.pod("succeeds", A, &[&shared, &first]).await?;
    env.pod("fails", A, &[&second]).await?;
    env.wait_until_all_running(3, STEP_TIMEOUT).await?;

    env.complete_pod("succeeds", A, 0).await?;
    env.complete_pod("fails", A, 1).await?;
    for volume in [&first, &second] {
        env.wait_until_detached(volume, A, STEP_TIMEOUT).await?;
    }
    env.wait_for_volumes_attached(A, &[&shared]).await?;

    // The completed pod does not keep its volume attached.
    env.pod("next", B, &[&first]).await?;
    env.wait_until_running("next", STEP_TIMEOUT).await?;
    move_order::ensure_moved_in_order(env, &first, A, B)?;
    env.ensure_calls(UNPUBLISH, &shared, 0)?;
    env.complete_pod("stays", A, 0).await?;
    env.wait_until_detached(&shared, A, STEP_TIMEOUT).await
}
