//! Cases about the PersistentVolume and its Secret.

use anyhow::Result;
use attacher_contract::Contract;

use super::super::env::{CaseEnv, QUIET};

pub(super) async fn deleted_early(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.delete_volume().await?;
    let loses = |contract: &Contract| {
        let mut volumes = contract.world().volumes.values();
        volumes.any(|volume| volume.finalizers == 0)
    };
    env.observer.wait(QUIET, loses).await;
    env.detach_and_wait("a").await
}

pub(super) async fn secret_late(env: &mut CaseEnv) -> Result<()> {
    env.set_secret(false).await?;
    env.start_attacher().await?;
    env.attach("a").await?;
    env.wait_error("a").await;
    env.settled().await;
    env.set_secret(true).await?;
    env.wait_attached("a").await;
    env.settled().await;
    Ok(())
}

pub(super) async fn foreign(env: &mut CaseEnv) -> Result<()> {
    env.attach("a").await?;
    env.wait("a", QUIET, |version| {
        version.is_some_and(|version| version.attach_error.is_some() || version.attached)
    })
    .await;
    Ok(())
}
