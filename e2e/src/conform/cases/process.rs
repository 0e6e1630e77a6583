//! Cases in which a process restarts.

use std::time::Duration;

use anyhow::{Context, Result};
use attacher_contract::Contract;
use attacher_contract::observation::Method;

use super::super::driver::{Reply, Script, answers};
use super::super::env::{CaseEnv, QUIET, SOON};

/// Longer than a lease lasts, and than the next leader needs.
const HAND_OVER: Duration = Duration::from_secs(25);

/// The number of the replica that holds the lease.
async fn leader(env: &CaseEnv, within: Duration, but: Option<&str>) -> Result<(usize, String)> {
    let held = |contract: &Contract| {
        let leader = contract.world().leader.as_ref()?.1.as_deref()?;
        (Some(leader) != but).then(|| leader.to_owned())
    };
    env.observer
        .wait(within, |contract| held(contract).is_some())
        .await;
    let holder = held(&env.observer.contract());
    let holder = holder.context("no replica became the leader")?;
    Ok((usize::from(holder == env.name("two")), holder))
}

pub(super) async fn leader_killed(env: &mut CaseEnv) -> Result<()> {
    env.start_replicas().await?;
    let (number, name) = leader(env, SOON, None).await?;
    env.attached().await?;
    env.attachers[number].crash().await?;
    env.detach("a").await?;
    leader(env, HAND_OVER, Some(&name)).await?;
    env.wait_gone("a").await;
    env.attach_and_wait("b").await?;
    env.settled().await;
    Ok(())
}

pub(super) async fn leader_suspended(env: &mut CaseEnv) -> Result<()> {
    env.start_replicas().await?;
    let (number, name) = leader(env, SOON, None).await?;
    env.attachers[number].suspend()?;
    env.attach("a").await?;
    leader(env, HAND_OVER, Some(&name)).await?;
    env.wait_attached("a").await;
    env.detach("a").await?;
    env.attachers[number].resume()?;
    env.wait_gone("a").await;
    env.attach_and_wait("b").await?;
    env.settled().await;
    Ok(())
}

pub(super) async fn driver_loses_publish(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.driver.restart_with("-PUBLISH_UNPUBLISH_VOLUME")?;
    env.wait("a", QUIET * 2, |version| {
        version.is_none_or(|version| !version.finalizer)
    })
    .await;
    env.driver.restart_with("+PUBLISH_UNPUBLISH_VOLUME")?;
    env.wait_attached("a").await;
    Ok(())
}

pub(super) async fn driver_loses_publish_detach(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.driver.restart_with("-PUBLISH_UNPUBLISH_VOLUME")?;
    env.detach("a").await?;
    env.wait("a", QUIET * 2, |version| version.is_none()).await;
    env.driver.restart_with("+PUBLISH_UNPUBLISH_VOLUME")?;
    env.wait_gone("a").await;
    Ok(())
}

pub(super) async fn driver_without_publish(env: &mut CaseEnv) -> Result<()> {
    env.attach_and_wait("a").await?;
    env.settled().await;
    env.detach_and_wait("a").await
}

pub(super) async fn driver_restarts(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.driver.down();
    env.driver.up()?;
    env.detach_and_wait("a").await?;
    env.settled().await;
    Ok(())
}

pub(super) async fn driver_down_at_attach(env: &mut CaseEnv) -> Result<()> {
    env.driver.down();
    env.attach("a").await?;
    env.wait("a", QUIET, |version| {
        version.is_some_and(|version| version.attach_error.is_some())
    })
    .await;
    env.driver.up()?;
    env.wait_attached("a").await;
    env.settled().await;
    Ok(())
}

pub(super) async fn driver_down_at_detach(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.driver.down();
    env.detach("a").await?;
    env.wait("a", QUIET, |version| version.is_none()).await;
    env.driver.up()?;
    env.wait_gone("a").await;
    Ok(())
}

/// Drivers with LIST_VOLUMES_PUBLISHED_NODES report it, and the attacher publishes again.
pub(super) async fn array_loses_volume(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    let id = env.node_id("a");
    env.driver
        .change(move |array| array.unpublish("vol-0", Some(&id)))
        .await?;
    let repaired = |contract: &Contract| answers(contract, Method::Publish, "OK") >= 2;
    env.observer.wait(SOON, repaired).await;
    env.settled().await;
    Ok(())
}

pub(super) async fn attacher_restarts(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.restart_attacher().await?;
    env.attach("b").await?;
    env.wait_error("b").await;
    env.settled().await;
    Ok(())
}

pub(super) async fn killed_in_publish(env: &mut CaseEnv) -> Result<()> {
    env.driver
        .script(Script::of(Method::Publish, Reply::Hang { effect: true }).times(1));
    env.attach("a").await?;
    env.wait_call(Method::Publish).await;
    env.restart_attacher().await?;
    env.wait_attached("a").await;
    env.settled().await;
    Ok(())
}

pub(super) async fn killed_in_unpublish(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.driver
        .script(Script::of(Method::Unpublish, Reply::Hang { effect: false }).times(1));
    env.detach("a").await?;
    env.wait_call(Method::Unpublish).await;
    env.restart_attacher().await?;
    env.wait_gone("a").await;
    Ok(())
}

pub(super) async fn down_at_delete(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.crash_attacher().await?;
    env.detach("a").await?;
    env.revive_attacher().await?;
    env.wait_gone("a").await;
    Ok(())
}

pub(super) async fn killed_then_deleted(env: &mut CaseEnv) -> Result<()> {
    env.driver
        .script(Script::of(Method::Publish, Reply::Hang { effect: true }).times(1));
    env.attach("a").await?;
    env.wait_call(Method::Publish).await;
    env.crash_attacher().await?;
    env.detach("a").await?;
    env.revive_attacher().await?;
    env.wait_gone("a").await;
    Ok(())
}
