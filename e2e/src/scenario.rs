//! Scenarios: each runs one path through attach/detach on any backend and with any attacher under test.
//!
//! A [`Scenario`] sets up its own [`TestEnv`] and performs its steps. The invariants are checked afterwards, and again after the
//! teardown. [`ExpectedOutcome`] marks scenarios in which the Go sidecar is known to fail.

pub mod backends;
pub mod dump;
pub mod test_context;
pub mod test_env;

mod attach_fails;
mod attach_limit;
mod attach_required;
mod attach_times_out;
mod attach_wait_times_out;
mod attacher_killed;
mod attachment_deleted;
mod binding;
mod burst;
mod completed_pods;
mod controllers_restart;
mod driver_cache_cold;
mod driver_changes;
mod driver_not_installed;
pub(crate) mod driver_restarts;
mod driver_without_attach;
mod etcd_restored;
mod explain;
mod failure_events;
mod flaky;
mod force_detach;
mod foreign_volume;
pub mod leader;
mod long_errors;
mod lost_attachment;
mod migrated_volume;
pub mod move_order;
mod no_execute_taint;
mod node_lost;
mod node_recreated;
mod node_reregistered;
mod node_unmanaged;
mod outage;
mod pod_attaches;
mod pod_moves;
mod pods_and_volume;
mod provisioning;
mod rolling_update;
mod secret_namespace_gone;
mod slow_detaches;
mod stray_not_found;
mod two_pods_one_volume;
mod volume_deleted;
mod volume_force_deleted;
mod volume_shapes;
mod volumes_attached;

use std::fmt;
use std::panic::AssertUnwindSafe;

use anyhow::{Context, Result, anyhow};
use futures::FutureExt;
use futures::future::BoxFuture;
use verdict::Missing;

pub use test_context::{Randomness, TestContext};
pub use test_env::{ScenarioConfig, TestEnv};

use crate::attacher::Kind;
use crate::cluster::Cluster;
use crate::invariant;

/// One path through attach/detach.
pub struct Scenario {
    /// Name in test names; at most 24 characters: lower case letters, digits and hyphens.
    pub name: &'static str,
    /// Summary in one sentence.
    pub about: &'static str,
    /// Setup.
    pub config: ScenarioConfig,
    /// Expected outcome with the Go sidecar.
    pub go: ExpectedOutcome,
    /// The steps. The invariants are checked afterwards.
    pub run: Steps,
}

/// The steps of a scenario.
pub type Steps = for<'a> fn(&'a mut TestEnv<'_>) -> BoxFuture<'a, Result<()>>;

/// Expected outcome of a scenario with an attacher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedOutcome {
    /// It passes.
    Passes,
    /// It fails, always or by a race.
    Fails {
        /// Known issue that makes it fail.
        issue: KnownIssue,
        /// Text that the error must contain, so that no other failure is accepted.
        expected_error: &'static str,
        /// Whether it fails every time; otherwise a pass is also accepted.
        always: bool,
    },
}

/// A known issue of the Go sidecar, by its number in `docs/go-sidecar.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownIssue(pub u8);

/// All scenarios.
pub const ALL: &[Scenario] = &[
    pod_attaches::SCENARIO,
    pod_moves::SCENARIO,
    two_pods_one_volume::SCENARIO,
    attach_fails::CODED,
    attach_fails::UNCODED,
    attach_times_out::SCENARIO,
    attach_limit::SCENARIO,
    failure_events::SCENARIO,
    long_errors::SCENARIO,
    driver_restarts::SCENARIO,
    attacher_killed::AFTER_PUBLISH,
    attacher_killed::BEFORE_FINALIZER_REMOVAL,
    volume_deleted::SCENARIO,
    volume_force_deleted::SCENARIO,
    volume_shapes::ALL,
    volume_shapes::PLAIN,
    foreign_volume::SCENARIO,
    node_lost::SCENARIO,
    no_execute_taint::SCENARIO,
    node_reregistered::ATTACHED,
    node_reregistered::HALF_ATTACHED,
    secret_namespace_gone::SCENARIO,
    migrated_volume::SCENARIO,
    lost_attachment::SCENARIO,
    driver_without_attach::SCENARIO,
    driver_changes::SCENARIO,
    driver_cache_cold::SCENARIO,
    stray_not_found::SCENARIO,
    driver_not_installed::SCENARIO,
    driver_not_installed::PREVENTS_SCHEDULING,
    burst::SCENARIO,
    slow_detaches::SCENARIO,
    explain::SCENARIO,
    explain::LOSSES,
    explain::SHARED_NODE_ID,
    explain::UNATTACHED,
    leader::STOPS,
    leader::CUT_OFF,
    leader::KILLED,
    leader::LOSES_DRIVER,
    leader::SUSPENDED,
    rolling_update::KIND,
    pods_and_volume::SHARE,
    pods_and_volume::RETURNS,
    pods_and_volume::RETURNS_MOUNTED,
    pods_and_volume::DELETED_EARLY,
    pods_and_volume::MANY_NODES,
    pods_and_volume::READERS,
    pods_and_volume::ONE_POD,
    attach_limit::RAISED,
    attachment_deleted::SCENARIO,
    node_recreated::SCENARIO,
    node_unmanaged::SCENARIO,
    node_unmanaged::MANAGED_LATER,
    volumes_attached::SCENARIO,
    volumes_attached::PATCH_FAILS,
    controllers_restart::RESTART,
    controllers_restart::FAIL_OVER,
    controllers_restart::DURING_CALLS,
    controllers_restart::FAIL_OVER_DURING_CALLS,
    force_detach::ENABLED,
    force_detach::DISABLED,
    force_detach::NODE_DELETED,
    outage::API_SERVER,
    outage::ETCD,
    etcd_restored::SCENARIO,
    completed_pods::SCENARIO,
    attach_required::SCENARIO,
    attach_wait_times_out::SCENARIO,
    binding::CLAIM_BOUND_LATE,
    binding::VOLUME_UNBOUND,
    provisioning::PROVISIONED,
    provisioning::EXPANDED,
    provisioning::RESTORED,
];

/// Randomized scenarios ([`TestContext::randomness`]), with our attacher only.
pub const RANDOMIZED: &[Scenario] = &[flaky::SCENARIO];

/// Scenarios with an earlier build of our attacher, which [`Settings::previous_attacher`] names.
///
/// [`Settings::previous_attacher`]: crate::toolchain::Settings::previous_attacher
pub const UPGRADES: &[Scenario] = &[rolling_update::VERSION];

// === impl Scenario ===

impl Scenario {
    /// A scenario with the default setup that both attachers pass.
    const fn new(name: &'static str, about: &'static str, run: Steps) -> Self {
        Self {
            name,
            about,
            config: ScenarioConfig::DEFAULT,
            go: ExpectedOutcome::Passes,
            run,
        }
    }

    const fn with_config(self, config: ScenarioConfig) -> Self {
        Self { config, ..self }
    }

    const fn with_go(self, go: ExpectedOutcome) -> Self {
        Self { go, ..self }
    }

    /// The scenario of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter()
            .chain(RANDOMIZED)
            .chain(UPGRADES)
            .find(|scenario| scenario.name == name)
    }

    /// Expected outcome with this attacher.
    pub fn expected_outcome(&self, kind: Kind) -> ExpectedOutcome {
        match kind {
            Kind::Ours => ExpectedOutcome::Passes,
            Kind::Go => self.go,
        }
    }

    /// # Errors
    /// [`Missing`] if the cluster's Kubernetes version is too old for the scenario.
    pub async fn require_version(&self, cluster: &Cluster) -> Result<()> {
        let Some(since) = self.config.since else {
            return Ok(());
        };
        Ok(since.require(cluster.git_version().await?.parse()?)?)
    }

    /// Runs the scenario in its own test environment, whose names begin with `prefix`.
    ///
    /// # Errors
    /// The scenario failed or an invariant was violated. The error names a dump with details, and nothing of the test
    /// environment is left in the cluster.
    pub async fn execute(&self, ctx: &TestContext, prefix: &str, kind: Kind) -> Result<()> {
        dump::discard(prefix)?;
        let executed = ctx.cluster().while_alive(async {
            let mut env = TestEnv::set_up(ctx, prefix, kind, self.config)
                .await
                .context("set up the test environment")?;
            tracing::info!(prefix, "environment set up");
            let ran = AssertUnwindSafe(self.run_and_verify(&mut env))
                .catch_unwind()
                .await;
            let ran =
                ran.unwrap_or_else(|panic| Err(anyhow!("the scenario panicked: {}", panic_text(&*panic))));
            if let Err(failure) = ran {
                return Err(dumped(&env, failure).await);
            }
            tracing::info!(prefix, "objects deleted");
            env.teardown().await.context("tear down the test environment")
        });
        let executed = executed.await;
        if executed.is_err()
            && let Err(error) = test_env::force_cleanup(ctx, prefix).await
        {
            tracing::warn!(prefix, error = %format!("{error:#}"), "a failed scenario left something behind");
        }
        executed
    }

    /// Runs the scenario in an environment that was set up for it, and checks the invariants before and after its
    /// objects are deleted.
    ///
    /// # Errors
    /// The scenario failed, or an invariant was violated.
    async fn run_and_verify(&self, env: &mut TestEnv<'_>) -> Result<()> {
        let within = self.config.within;
        tokio::time::timeout(within, (self.run)(env))
            .await
            .map_err(|_| anyhow!("the scenario took more than {within:?}"))??;
        tracing::info!(prefix = env.prefix(), "scenario ran");
        env.settle().await?;
        invariant::enforce(&invariant::check_running(&env.observations().await?))?;
        tracing::info!(prefix = env.prefix(), "invariants hold");
        env.clear().await.context("delete all objects after the scenario")
    }
}

// === impl ExpectedOutcome ===

impl ExpectedOutcome {
    /// The Go attacher publishes a second time from a cache that does not show its own success yet.
    const MAY_PUBLISH_TWICE: Self = Self::may_fail(KnownIssue(2), "ControllerPublishVolume was called");
    /// The retry of a failed attach succeeds from a cache that does not show the error yet.
    const MAY_KEEP_ATTACH_ERROR: Self =
        Self::may_fail(KnownIssue(21), "it is attached and still has an attachError");

    /// Fails every time.
    const fn fails(issue: KnownIssue, expected_error: &'static str) -> Self {
        Self::Fails {
            issue,
            expected_error,
            always: true,
        }
    }

    /// Fails by a race.
    const fn may_fail(issue: KnownIssue, expected_error: &'static str) -> Self {
        Self::Fails {
            issue,
            expected_error,
            always: false,
        }
    }
}

// === impl KnownIssue ===

impl fmt::Display for KnownIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "known issue {number} (docs/go-sidecar.md#issue-{number})",
            number = self.0
        )
    }
}

// === functions ===

async fn dumped(env: &TestEnv<'_>, failure: anyhow::Error) -> anyhow::Error {
    if failure.is::<Missing>() {
        return failure;
    }
    match dump::write(env, &failure).await {
        Ok(summary) => anyhow!("{summary}"),
        Err(error) => failure.context(format!("(no dump: {error:#})")),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}
