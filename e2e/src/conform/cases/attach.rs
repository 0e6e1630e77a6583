//! Cases of attaches.

use std::time::Duration;

use anyhow::Result;
use attacher_contract::Contract;
use attacher_contract::observation::Method;
use serde_json::json;
use tonic::Code;

use super::super::driver::{Reply, Script, answers};
use super::super::env::{CaseEnv, QUIET, SOON};

pub(super) async fn attach_detach(env: &mut CaseEnv) -> Result<()> {
    env.attach_and_wait("a").await?;
    env.settled().await;
    env.detach_and_wait("a").await?;
    env.settled().await;
    Ok(())
}

pub(super) async fn two_nodes(env: &mut CaseEnv) -> Result<()> {
    env.attach("a").await?;
    env.attach("b").await?;
    env.wait_attached("a").await;
    env.wait_attached("b").await;
    env.settled().await;
    Ok(())
}

pub(super) async fn moves(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.detach_and_wait("a").await?;
    env.attach_and_wait("b").await?;
    env.settled().await;
    Ok(())
}

pub(super) async fn moves_early(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.attach("b").await?;
    env.wait_error("b").await;
    env.detach_and_wait("a").await?;
    env.wait_attached("b").await;
    env.settled().await;
    Ok(())
}

pub(super) async fn again(env: &mut CaseEnv) -> Result<()> {
    for _ in 0..3 {
        env.attach_and_wait("a").await?;
        env.detach_and_wait("a").await?;
    }
    env.attach_and_wait("a").await?;
    env.settled().await;
    Ok(())
}

pub(super) async fn delete_at_once(env: &mut CaseEnv) -> Result<()> {
    env.attach("a").await?;
    env.detach_and_wait("a").await
}

pub(super) async fn delete_during_call(env: &mut CaseEnv) -> Result<()> {
    env.driver
        .script(Script::of(Method::Publish, Reply::Slow(Duration::from_millis(500))).times(1));
    env.attach("a").await?;
    env.wait_call(Method::Publish).await;
    env.detach_and_wait("a").await
}

/// Publish answers with a code until the error is reported.
pub(super) async fn fails<const CODE: i32>(env: &mut CaseEnv) -> Result<()> {
    env.driver
        .script(Script::of(Method::Publish, Reply::Fail(Code::from_i32(CODE))));
    env.attach("a").await?;
    env.wait_error("a").await;
    env.settled().await;
    env.driver.behave();
    env.wait_attached("a").await;
    env.settled().await;
    Ok(())
}

pub(super) async fn hangs<const EFFECT: bool>(env: &mut CaseEnv) -> Result<()> {
    env.driver
        .script(Script::of(Method::Publish, Reply::Hang { effect: EFFECT }).times(1));
    env.attach_and_wait("a").await?;
    env.settled().await;
    Ok(())
}

/// The array has published the volume, and the attacher got an error.
pub(super) async fn fails_after_effect<const CODE: i32>(env: &mut CaseEnv) -> Result<()> {
    env.driver.script(Script::of(
        Method::Publish,
        Reply::FailAfterEffect(Code::from_i32(CODE)),
    ));
    env.attach("a").await?;
    env.wait_error("a").await;
    env.detach_and_wait("a").await
}

pub(super) async fn hangs_and_deleted(env: &mut CaseEnv) -> Result<()> {
    env.driver
        .script(Script::of(Method::Publish, Reply::Hang { effect: true }));
    env.attach("a").await?;
    let cancelled = |contract: &Contract| answers(contract, Method::Publish, "CANCELLED") > 0;
    env.observer.wait(SOON, cancelled).await;
    env.detach_and_wait("a").await
}

pub(super) async fn no_entry(env: &mut CaseEnv) -> Result<()> {
    env.register("a", None).await?;
    env.start_attacher().await?;
    env.attach("a").await?;
    env.wait_error("a").await;
    env.settled().await;
    env.register("a", Some(&env.node_id("a"))).await?;
    env.wait_attached("a").await;
    env.settled().await;
    Ok(())
}

pub(super) async fn changed_by_others(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.patch_attachment("a", json!({"metadata": {"labels": {"example.com/other": "yes"}}}))
        .await?;
    // Any call that follows is judged by the contract.
    let unpublishes = |contract: &Contract| answers(contract, Method::Unpublish, "OK") > 0;
    env.observer.wait(QUIET, unpublishes).await;
    env.settled().await;
    Ok(())
}

/// The API server accepts 1,024 bytes (kubernetes, validation of VolumeError).
pub(super) async fn message_too_long(env: &mut CaseEnv) -> Result<()> {
    env.driver
        .script(Script::of(Method::Publish, Reply::FailAtLength(2_000)));
    env.attach("a").await?;
    env.wait_error("a").await;
    env.settled().await;
    Ok(())
}
