//! A NoExecute taint: the taint eviction controller deletes the pods that do not tolerate it, and their volumes move.

use anyhow::Result;

use super::test_env::{A, B, STEP_TIMEOUT, TestEnv};
use super::{Scenario, move_order};
use crate::fixture::Access;

/// Key of the taint.
const MAINTENANCE: &str = "example.com/maintenance";
const EVICTED: &str = "Marking for deletion Pod";

pub(super) const SCENARIO: Scenario = Scenario::new(
    "no-execute-taint",
    "A NoExecute taint evicts pods at once, after tolerationSeconds, or never; the volume of an evicted pod moves.",
    |env| Box::pin(run(env)),
);

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("web", A, &[&volume]).await?;
    env.tolerating_pod("late", A, MAINTENANCE, Some(5)).await?;
    env.tolerating_pod("stays", A, MAINTENANCE, None).await?;
    for pod in ["web", "late", "stays"] {
        env.wait_until_running(pod, STEP_TIMEOUT).await?;
    }

    env.taint(A, MAINTENANCE, "NoExecute").await?;
    env.wait_for_event("web", "TaintManagerEviction", EVICTED, STEP_TIMEOUT)
        .await?;
    env.wait_until_pod_gone("web", STEP_TIMEOUT).await?;
    env.pod("web-2", B, &[&volume]).await?;
    env.wait_until_running("web-2", STEP_TIMEOUT).await?;
    move_order::ensure_moved_in_order(env, &volume, A, B)?;

    env.wait_for_event("late", "TaintManagerEviction", EVICTED, STEP_TIMEOUT)
        .await?;
    env.wait_until_pod_gone("late", STEP_TIMEOUT).await?;
    env.ensure_running("stays").await?;
    env.remove_taints(A).await
}
