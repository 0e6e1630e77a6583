//! The contract finds an attacher that acts without the Lease.

use std::sync::Arc;

use anyhow::{Result, ensure};
use attacher_contract::Clause;
use csi_e2e::attacher::Kind;
use csi_e2e::invariant::{Observations, check_running};
use csi_e2e::scenario::leader::History;
use csi_e2e::scenario::test_env::{A, STEP_TIMEOUT, force_cleanup};
use csi_e2e::scenario::{ScenarioConfig, TestContext, TestEnv};
use libtest_mimic::Trial;

use crate::shared_cluster::{Access, SharedCluster};
use crate::unless;

const PREFIX: &str = "ours-lease";

pub(crate) fn trial(shared: &Arc<SharedCluster>) -> Trial {
    let shared = Arc::clone(shared);
    let name = "embedded::lease::acting_without_it_breaks_the_contract";
    unless(None, name.to_owned(), move || {
        shared.block_on(async {
            let ctx = shared.context(Access::Embedded).await?;
            let found = acting_without_it_breaks_the_contract(ctx).await;
            force_cleanup(ctx, PREFIX).await?;
            found
        })
    })
}

async fn acting_without_it_breaks_the_contract(ctx: &TestContext) -> Result<()> {
    let mut env = TestEnv::set_up(ctx, PREFIX, Kind::Ours, ScenarioConfig::ONE_NODE).await?;
    let mut lease = History::begin(&mut env).await?;
    let leader = env.replica(Kind::Ours, "one").await?;
    lease.wait_for_holder("one").await?;
    let volume = env.running_pod("led", A, "data").await?;
    let observations = env.observations().await?;
    ensure!(
        culprits(&observations).is_empty(),
        "{:?}",
        check_running(&observations)
    );

    leader.suspend()?;
    // The embedded API server lets it create a Lease in any namespace.
    let _rival = env.replica_in("default", Kind::Ours, "two").await?;
    env.delete_pod("led").await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    let observations = env.observations().await?;
    let calls = Observations {
        writes: Vec::new(),
        ..observations.clone()
    };
    let writes = Observations {
        calls: Vec::new(),
        ..observations
    };
    for (what, observations) in [("calls", calls), ("writes", writes)] {
        let culprits = culprits(&observations);
        ensure!(
            culprits == ["two"],
            "by their {what}, {culprits:?} acted without the Lease"
        );
    }
    Ok(())
}

/// The attachers that acted without the Lease.
fn culprits(observations: &Observations) -> Vec<String> {
    let violations = check_running(observations).into_iter();
    let violations = violations.filter(|violation| violation.clause == Clause::OnlyTheLeader);
    violations.map(|violation| violation.subject).collect()
}
