//! Many volumes at once, over several nodes.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Scenario;
use super::test_env::{ScenarioConfig, TestEnv};

const VOLUMES: usize = 500;
const NODES: usize = 5;
/// Volumes per pod, as for a database with logs and backups.
const VOLUMES_A_POD: usize = 10;
const PODS: usize = VOLUMES / VOLUMES_A_POD;
/// The control plane does most of the work, on the remaining cores.
const LONG: Duration = Duration::from_secs(300);

pub(super) const SCENARIO: Scenario = Scenario::new(
    "burst",
    "500 volumes on 5 nodes are attached and detached concurrently; none is lost or leaked.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    nodes: NODES,
    within: Duration::from_secs(900),
    ..ScenarioConfig::DEFAULT
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volumes = env.many_volumes(VOLUMES).await?;
    tracing::info!(VOLUMES, "volumes made and bound");
    for (index, volumes) in volumes.chunks(VOLUMES_A_POD).enumerate() {
        let volumes: Vec<_> = volumes.iter().collect();
        env.pod(&format!("web-{index}"), index % NODES, &volumes).await?;
    }
    env.wait_until_all_running(PODS, LONG).await?;
    tracing::info!(PODS, "pods run");

    let published = env.driver.published().await?;
    ensure!(
        published.len() == VOLUMES,
        "{} of {VOLUMES} volumes are published",
        published.len()
    );
    for (index, volume) in volumes.iter().enumerate() {
        let node = env.node(index / VOLUMES_A_POD % NODES).node_id();
        let nodes: Vec<_> = published.get(&volume.handle).into_iter().flatten().collect();
        ensure!(
            nodes == [node],
            "{} is published to {nodes:?}, expected {node}",
            volume.pv
        );
    }

    for index in 0..PODS {
        env.delete_pod(&format!("web-{index}")).await?;
    }
    env.wait_until_all_detached(LONG).await?;
    tracing::info!(VOLUMES, "volumes detached");
    Ok(())
}
