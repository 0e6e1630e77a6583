//! Scenarios: one way through the attach/detach path each, written once and played on any cluster with any
//! attacher as the subject.
//!
//! A [`Scenario`] sets up a [`Stage`] of its own, does its part, and is then judged by the invariants twice:
//! as the scenario left things, and again when everything was taken back. Where the Go attacher is known to
//! fail, the scenario says so ([`Verdict`]).

pub mod site;
pub mod stage;

mod attach_fails;
mod attach_times_out;
mod attacher_killed;
mod burst;
mod driver_changes;
mod driver_restarts;
mod explained;
mod failures_told;
mod flaky;
mod foreign_volume;
mod handover;
mod leader;
mod long_errors;
mod lost_attachment;
mod migrated_volume;
mod node_lost;
mod node_registered_anew;
mod pod_attaches;
mod pod_moves;
mod secret_namespace_gone;
mod slow_detaches;
mod trivial_driver;
mod two_pods_one_volume;
mod volume_deleted;
mod volume_forced_away;
mod volume_shapes;

use std::fmt;
use std::panic::AssertUnwindSafe;

use anyhow::{Context, Result, anyhow};
use futures::FutureExt;
use futures::future::BoxFuture;

pub use site::{Chance, Site};
pub use stage::{Setting, Stage};

use crate::subject::Kind;
use crate::{dump, invariant};

/// One way through the attach/detach path.
pub struct Scenario {
    /// Name, as it stands in test names; at most 24 characters of lower case, digits and hyphens.
    pub name: &'static str,
    /// What it shows, in a sentence.
    pub about: &'static str,
    /// What it wants to find set up.
    pub setting: Setting,
    /// How the Go attacher fares.
    pub go: Verdict,
    /// Its part. The invariants are checked after it.
    pub play: for<'a> fn(&'a mut Stage<'_>) -> BoxFuture<'a, Result<()>>,
}

/// How an attacher is known to fare in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Passes,
    /// It fails, always or by a race.
    Fails {
        /// What it stumbles over.
        oddity: Oddity,
        /// What the failure's text must contain, so that no other failure hides behind this one.
        sign: &'static str,
        /// Whether it fails every time; if not, a pass is no news.
        always: bool,
    },
}

/// Something odd about the Go attacher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// Number in the list of its behaviour.
    Listed(u8),
    /// On no list: its scenario found it, and tells of it.
    FoundHere,
}

/// All scenarios.
pub const ALL: &[Scenario] = &[
    pod_attaches::SCENARIO,
    pod_moves::SCENARIO,
    two_pods_one_volume::SCENARIO,
    attach_fails::CODED,
    attach_fails::UNCODED,
    attach_times_out::SCENARIO,
    failures_told::SCENARIO,
    long_errors::SCENARIO,
    driver_restarts::SCENARIO,
    attacher_killed::AFTER_PUBLISH,
    attacher_killed::BEFORE_FINALIZER_REMOVAL,
    volume_deleted::SCENARIO,
    volume_forced_away::SCENARIO,
    volume_shapes::ALL,
    volume_shapes::PLAIN,
    foreign_volume::SCENARIO,
    node_lost::SCENARIO,
    node_registered_anew::ATTACHED,
    node_registered_anew::HALF_ATTACHED,
    secret_namespace_gone::SCENARIO,
    migrated_volume::SCENARIO,
    lost_attachment::SCENARIO,
    trivial_driver::SCENARIO,
    driver_changes::SCENARIO,
    burst::SCENARIO,
    slow_detaches::SCENARIO,
    explained::SCENARIO,
    explained::LOSSES,
    leader::STOPS,
    leader::CUT_OFF,
    leader::KILLED,
    leader::LOSES_DRIVER,
    leader::SUSPENDED,
    leader::CHANGES_KIND,
];

/// Scenarios that chance writes ([`Site::chance`]), for our attacher only: what they show of the driver and of the
/// harness they would not show again with another one.
pub const BY_CHANCE: &[Scenario] = &[flaky::SCENARIO];

// === impl Scenario ===

impl Scenario {
    /// The scenario of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().chain(BY_CHANCE).find(|scenario| scenario.name == name)
    }

    /// How `kind` is known to fare.
    pub fn verdict(&self, kind: Kind) -> Verdict {
        match kind {
            Kind::Ours => Verdict::Passes,
            Kind::Go => self.go,
        }
    }

    /// Plays the scenario on a stage of its own whose names begin with `prefix`.
    ///
    /// # Errors
    /// The scenario failed or an invariant was violated. What is known of it was written to a dump, which the
    /// error names, and nothing of the stage is left in the cluster.
    pub async fn perform(&self, site: &Site, prefix: &str, kind: Kind) -> Result<()> {
        dump::discard(prefix)?;
        let performed = site.cluster().while_alive(async {
            let mut stage = Stage::set(site, prefix, kind, self.setting)
                .await
                .context("the stage could not be set")?;
            tracing::info!(prefix, "stage set");
            let played = AssertUnwindSafe(self.play_and_judge(&mut stage))
                .catch_unwind()
                .await;
            let played =
                played.unwrap_or_else(|panic| Err(anyhow!("the scenario panicked: {}", panic_text(&*panic))));
            if let Err(failure) = played {
                return Err(dumped(&stage, failure).await);
            }
            tracing::info!(prefix, "cleared");
            stage.strike().await.context("the stage could not be struck")
        });
        let performed = performed.await;
        if performed.is_err()
            && let Err(error) = stage::sweep(site, prefix).await
        {
            tracing::warn!(prefix, error = %format!("{error:#}"), "a failed scenario left something behind");
        }
        performed
    }

    async fn play_and_judge(&self, stage: &mut Stage<'_>) -> Result<()> {
        let within = self.setting.within;
        tokio::time::timeout(within, (self.play)(stage))
            .await
            .map_err(|_| anyhow!("the scenario took more than {within:?}"))??;
        tracing::info!(prefix = stage.prefix(), "played");
        stage.settle().await?;
        invariant::enforce(&invariant::check_running(&stage.evidence().await?))?;
        tracing::info!(prefix = stage.prefix(), "judged");
        stage
            .clear()
            .await
            .context("after the scenario, when everything was taken back")
    }
}

// === impl Oddity ===

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(number) => write!(f, "oddity {number}"),
            Self::FoundHere => f.write_str("an oddity that was found here"),
        }
    }
}

// === functions ===

async fn dumped(stage: &Stage<'_>, failure: anyhow::Error) -> anyhow::Error {
    match dump::write(stage, &failure).await {
        Ok(summary) => anyhow!("{summary}"),
        Err(error) => failure.context(format!("(no dump: {error:#})")),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no text")
}
