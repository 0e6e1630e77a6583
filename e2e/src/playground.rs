//! The playground's scripts, which narrate their steps and check the results.

pub mod action;
mod observer;
mod pod_mover;
pub mod snapshot;
pub mod story;
pub mod terminal;
mod tour;
mod view;
pub mod web;

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::BoxFuture;

use crate::invariant;
use crate::narrate::Narrator;
use crate::scenario::{ScenarioConfig, TestEnv};

pub use tour::TOUR;

/// Latency of each publish and unpublish at the driver: slow enough to watch.
const LATENCY: Duration = Duration::from_millis(300);

/// A script. Every step waits for the result that its heading announces, and fails the script otherwise.
pub struct Script {
    /// Name, the argument of `--story`.
    pub name: &'static str,
    /// Summary in one sentence.
    pub about: &'static str,
    /// Setup.
    pub config: ScenarioConfig,
    /// Whether it runs replicas of the attacher.
    has_replicas: bool,
    run: for<'a> fn(&'a mut TestEnv<'_>, &'a Narrator) -> BoxFuture<'a, Result<()>>,
}

// === impl Script ===

impl Script {
    /// Plays the script, then deletes all objects, and checks the invariants before and after the deletion.
    ///
    /// # Errors
    /// The expected end state was not observed, or an invariant was violated.
    pub async fn play(&self, env: &mut TestEnv<'_>, narrator: &Narrator) -> Result<()> {
        narrator.heading(self.about).await?;
        let within = self.config.within;
        tokio::time::timeout(within, (self.run)(env, narrator))
            .await
            .with_context(|| format!("{} took more than {within:?}", self.name))??;
        env.settle().await?;
        invariant::enforce(&invariant::check_running(&env.observations().await?))?;
        narrator
            .heading("The end. Everything is deleted: volumes are unmounted, detached and released.")
            .await?;
        narrator.you("delete all pods, then all claims and volumes");
        env.clear().await?;
        narrator
            .heading(
                "Checked: all steps succeeded. Nothing is attached, published or held by a finalizer any more, \
                 and no secret was written anywhere.",
            )
            .await
    }
}
