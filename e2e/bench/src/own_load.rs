//! Attached volumes of one driver, with which every implementation starts in turn.

use anyhow::{Context, Result};

use super::Harness;
use super::bench_env::{BenchEnv, Needs};

/// Number of volumes beside the first that are attached one by one.
pub(super) const SAMPLES: usize = 10;

/// Volumes 0 to [`SAMPLES`] are free, those after them attached. The number only grows.
#[derive(Default)]
pub(super) struct OwnLoad {
    env: Option<BenchEnv>,
    attached: usize,
}

// === impl OwnLoad ===

impl OwnLoad {
    /// Creates attached volumes up to this number.
    pub(super) async fn grow_to(&mut self, harness: &Harness<'_>, attached: usize) -> Result<&BenchEnv> {
        if self.env.is_none() {
            let needs = Needs {
                volumes: SAMPLES + 1,
                ..Needs::default()
            };
            self.env = Some(BenchEnv::prepare(harness, "own".to_owned(), needs).await?);
        }
        let env = self.env.as_mut().context("it was prepared")?;
        // Left by an implementation that failed.
        env.wipe_attachments(harness, 0..SAMPLES + 1).await?;
        if attached > self.attached {
            tracing::info!(from = self.attached, to = attached, "creating attached volumes");
            env.add_volumes(attached - self.attached).await?;
            let first = SAMPLES + 1;
            env.create_attached(harness, first + self.attached..first + attached)
                .await?;
            self.attached = attached;
        }
        Ok(env)
    }

    /// Deletes everything.
    pub(super) async fn wipe(&mut self, harness: &Harness<'_>) -> Result<()> {
        self.attached = 0;
        match self.env.take() {
            Some(env) => env.wipe(harness).await,
            None => Ok(()),
        }
    }
}
