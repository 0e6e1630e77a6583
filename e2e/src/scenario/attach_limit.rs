//! The driver reports a maximum number of volumes per node, CSINode has it as `allocatable.count`, and the scheduler
//! enforces it.

use anyhow::{Result, ensure};
use k8s_openapi::api::storage::v1::{CSINode, VolumeNodeResources};
use kube::Api;

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, Scenario};
use crate::driver::journal::PUBLISH;
use crate::fixture::Access;
use crate::objects;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "attach-limit",
    "A pod whose volume exceeds its node's attach limit is scheduled when another volume is detached.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    driver_flags: &["--attach-limit=1"],
    ..ScenarioConfig::ONE_NODE
})
// The second attach may be refused until the first volume is detached.
.with_go(ExpectedOutcome::MAY_KEEP_ATTACH_ERROR);

/// MutableCSINodeAllocatableCount (KEP-4876).
pub(super) const RAISED: Scenario = Scenario::new(
    "attach-limit-raised",
    "A pod beyond its node's attach limit is scheduled when CSINode's allocatable count is raised.",
    |env| Box::pin(raised(env)),
)
.with_config(ScenarioConfig::ONE_NODE);

/// The scheduler's message about a node at its limit.
const FULL: &str = "node(s) exceed max volume count";

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let first = env.volume("first", Access::OneNode).await?;
    let second = env.volume("second", Access::OneNode).await?;
    env.pod("first", A, &[&first]).await?;
    env.wait_until_running("first", STEP_TIMEOUT).await?;

    env.pod("second", A, &[&second]).await?;
    env.wait_until_unschedulable("second", FULL).await?;
    let calls = env.driver.calls()?;
    ensure!(
        calls
            .iter()
            .all(|call| call.method != PUBLISH || call.volume != second.handle),
        "the driver got a call for a volume beyond its limit"
    );

    env.delete_pod("first").await?;
    env.wait_until_running("second", STEP_TIMEOUT).await?;
    env.wait_until_detached(&first, A, STEP_TIMEOUT).await
}

async fn raised(env: &mut TestEnv<'_>) -> Result<()> {
    let volumes = env.many_volumes(2).await?;
    set_limit(env, 1).await?;
    env.pod("first", A, &[&volumes[0]]).await?;
    env.wait_until_running("first", STEP_TIMEOUT).await?;
    env.pod("second", A, &[&volumes[1]]).await?;
    env.wait_until_unschedulable("second", FULL).await?;
    env.ensure_not_running("second").await?;
    set_limit(env, 2).await?;
    env.wait_until_all_running(2, STEP_TIMEOUT).await
}

async fn set_limit(env: &TestEnv<'_>, count: i32) -> Result<()> {
    let name = env.node(A).name();
    let csi_nodes = Api::<CSINode>::all(env.client());
    let mut csi_node = csi_nodes.get(name).await?;
    for driver in &mut csi_node.spec.drivers {
        driver.allocatable = Some(VolumeNodeResources { count: Some(count) });
    }
    objects::replace(&csi_nodes, &csi_node).await.map(drop)
}
