//! Cases of detaches.

use anyhow::Result;
use attacher_contract::Contract;
use attacher_contract::observation::Method;
use csi_mock_driver::array::NodeSettings;
use serde_json::json;
use tonic::Code;

use super::super::api::{ApiFault, ApiScript};
use super::super::driver::{Reply, Script, answers};
use super::super::env::{CaseEnv, QUIET, SOON};

/// Unpublish answers with a code until the error is reported.
pub(super) async fn fails<const CODE: i32>(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.driver
        .script(Script::of(Method::Unpublish, Reply::Fail(Code::from_i32(CODE))));
    env.detach("a").await?;
    env.wait_error("a").await;
    env.settled().await;
    env.driver.behave();
    env.wait_gone("a").await;
    Ok(())
}

pub(super) async fn hangs<const EFFECT: bool>(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.driver
        .script(Script::of(Method::Unpublish, Reply::Hang { effect: EFFECT }).times(1));
    env.detach_and_wait("a").await
}

/// Deletes the VolumeAttachment and waits until unpublishes were refused three times, or it is gone.
async fn refused(env: &CaseEnv) -> Result<()> {
    env.detach("a").await?;
    let name = env.va("a");
    let ends = |contract: &Contract| {
        let is_gone = !contract.world().attachments.contains_key(name.as_str());
        is_gone || answers(contract, Method::Unpublish, "NOT_FOUND") >= 3
    };
    env.observer.wait(SOON, ends).await;
    // Time for a removal that follows the last answer.
    env.wait("a", QUIET, |version| version.is_none()).await;
    env.settled().await;
    Ok(())
}

fn refuse() -> Script {
    Script::of(Method::Unpublish, Reply::Fail(Code::NotFound))
}

pub(super) async fn not_found(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.driver.script(refuse());
    refused(env).await
}

pub(super) async fn not_found_no_driver(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.register("a", None).await?;
    env.driver.script(refuse());
    refused(env).await
}

/// The driver registers another ID of the node, which the array knows.
async fn rename(env: &CaseEnv) -> Result<String> {
    let id = env.name("id-c");
    let name = id.clone();
    env.driver
        .change(move |array| Ok(array.set_node(&name, NodeSettings::default())))
        .await?;
    env.register("a", Some(&id)).await?;
    Ok(id)
}

pub(super) async fn not_found_other_id(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    rename(env).await?;
    env.driver.script(refuse());
    refused(env).await
}

pub(super) async fn not_found_no_secret(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.cluster.script(ApiScript {
        path: "/secrets/",
        body: "",
        method: http::Method::GET,
        fault: ApiFault::Status(403),
        times: usize::MAX,
    });
    env.driver.script(refuse());
    refused(env).await
}

pub(super) async fn not_found_once_other_id(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    rename(env).await?;
    env.driver.script(refuse().node(&env.node_id("a")).times(1));
    env.detach_and_wait("a").await
}

pub(super) async fn not_found_no_node(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.delete_csi_node("a").await?;
    env.driver.script(refuse());
    refused(env).await
}

/// Unpublishing the present ID alone leaves the volume on the recorded one.
pub(super) async fn other_id(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    rename(env).await?;
    env.detach_and_wait("a").await
}

/// As the Go sidecar leaves a VolumeAttachment (issue 21 of docs/go-sidecar.md).
pub(super) async fn attached_error_other_id(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    let id = rename(env).await?;
    env.driver
        .script(Script::of(Method::Publish, Reply::Fail(Code::InvalidArgument)).node(&id));
    let error = json!({"message": "an error of the past", "time": "2026-01-01T00:00:00Z"});
    env.patch_attachment_status("a", json!({"status": {"attachError": error}}))
        .await?;
    env.patch_attachment("a", json!({"metadata": {"labels": {"example.com/other": "yes"}}}))
        .await?;
    let unpublishes = |contract: &Contract| answers(contract, Method::Unpublish, "OK") > 0;
    env.observer.wait(QUIET, unpublishes).await;
    Ok(())
}

pub(super) async fn no_node(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.delete_csi_node("a").await?;
    env.detach_and_wait("a").await
}

pub(super) async fn no_driver(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    env.register("a", None).await?;
    env.detach_and_wait("a").await
}

pub(super) async fn other_finalizer(env: &mut CaseEnv) -> Result<()> {
    env.attached().await?;
    let mut finalizers = vec![env.cluster.finalizer.clone()];
    finalizers.push("example.com/hold".to_owned());
    env.patch_attachment("a", json!({"metadata": {"finalizers": finalizers}}))
        .await?;
    env.detach("a").await?;
    env.wait("a", SOON, |version| {
        version.is_some_and(|version| !version.finalizer && !version.attached)
    })
    .await;
    env.patch_attachment("a", json!({"metadata": {"finalizers": null}}))
        .await?;
    Ok(())
}
