//! What the playground plays: scripts that narrate what they do and check what they announce.

pub mod action;
mod observer;
pub mod snapshot;
pub mod story;
pub mod terminal;
mod tour;
mod view;
pub mod web;
mod world;

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::BoxFuture;

use crate::invariant;
use crate::narrate::Narrator;
use crate::scenario::{ScenarioConfig, TestEnv};

pub use tour::TOUR;

/// Time each publish and unpublish takes at the driver: slow enough to be watched.
const LATENCY: Duration = Duration::from_millis(300);

/// A script. Every step waits for what its heading announces, so a step that does not come about fails the script.
pub struct Script {
    /// Name, as `--story` takes it.
    pub name: &'static str,
    /// What it shows, in a sentence.
    pub about: &'static str,
    /// What it wants to find set up.
    pub config: ScenarioConfig,
    /// Whether it runs replicas of the attacher.
    has_replicas: bool,
    run: for<'a> fn(&'a mut TestEnv<'_>, &'a Narrator) -> BoxFuture<'a, Result<()>>,
}

// === impl Script ===

impl Script {
    /// Plays the script, then deletes everything and checks the invariants before and after.
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
                "Checked: it happened as described. Nothing is attached, published or held by a finalizer any more, \
                 and no secret was written anywhere.",
            )
            .await
    }
}
