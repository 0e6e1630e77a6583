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

/// Text of an error: each cause once. `{error:#}` repeats the causes that a cause's own text contains, and has the Debug text
/// of Kubernetes' `Status`.
pub fn error_text(error: &anyhow::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in error.chain() {
        if let Some(kube::Error::Api(status)) = cause.downcast_ref() {
            let text = match status.message.as_str() {
                "" => &status.reason,
                message => message,
            };
            texts.push(text.to_owned());
            // Its cause is the same status.
            break;
        }
        let text = cause.to_string();
        if !texts.iter().any(|earlier| earlier.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_text_has_each_cause_once() {
        let status = kube::core::Status::failure("namespaces \"round-1\" already exists", "AlreadyExists");
        let error = anyhow::Error::from(kube::Error::Api(status.boxed()))
            .context("create namespace round-1")
            .context("make the scenario's namespace");
        assert_eq!(
            error_text(&error),
            "make the scenario's namespace: create namespace round-1: namespaces \"round-1\" already exists"
        );
        let refused = std::io::Error::other("connection refused");
        let error = anyhow::Error::from(kube::Error::ReadEvents(refused)).context("read the pod");
        assert_eq!(
            error_text(&error),
            "read the pod: Error reading events stream: connection refused"
        );
    }
}
