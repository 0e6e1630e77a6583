//! Cases in which a write of the attacher fails, or its answer is lost.

use anyhow::Result;
use http::Method;

use super::super::api::{ApiFault, ApiScript};
use super::super::env::CaseEnv;

fn fault<const CODE: u16, const IS_STATUS: bool>() -> ApiFault {
    match IS_STATUS {
        true => ApiFault::Status(CODE),
        false => ApiFault::Foreign(CODE),
    }
}

/// A fault of one write to the VolumeAttachment whose body has this text. `path`: `/status` for status writes.
fn inject(env: &CaseEnv, path: &'static str, body: &'static str, fault: ApiFault) {
    env.cluster.script(ApiScript {
        path,
        body,
        method: Method::PATCH,
        fault,
        times: 1,
    });
}

const ATTACHMENT: &str = "/volumeattachments/";
const STATUS: &str = "-va-a/status";

async fn attach(env: &mut CaseEnv, path: &'static str, body: &'static str, fault: ApiFault) -> Result<()> {
    inject(env, path, body, fault);
    env.attach_and_wait("a").await?;
    env.settled().await;
    Ok(())
}

async fn remove(env: &mut CaseEnv, fault: ApiFault) -> Result<()> {
    env.attached().await?;
    inject(env, ATTACHMENT, "finalizers", fault);
    env.detach_and_wait("a").await?;
    env.settled().await;
    Ok(())
}

pub(super) async fn at_finalizer<const CODE: u16, const IS_STATUS: bool>(env: &mut CaseEnv) -> Result<()> {
    attach(env, ATTACHMENT, "finalizers", fault::<CODE, IS_STATUS>()).await
}

pub(super) async fn finalizer_answer_lost(env: &mut CaseEnv) -> Result<()> {
    attach(env, ATTACHMENT, "finalizers", ApiFault::LostAnswer).await
}

pub(super) async fn finalizer_not_sent(env: &mut CaseEnv) -> Result<()> {
    attach(env, ATTACHMENT, "finalizers", ApiFault::LostRequest).await
}

pub(super) async fn at_status<const CODE: u16, const IS_STATUS: bool>(env: &mut CaseEnv) -> Result<()> {
    attach(env, STATUS, "\"attached\":true", fault::<CODE, IS_STATUS>()).await
}

pub(super) async fn status_answer_lost(env: &mut CaseEnv) -> Result<()> {
    attach(env, STATUS, "\"attached\":true", ApiFault::LostAnswer).await
}

pub(super) async fn at_removal<const CODE: u16, const IS_STATUS: bool>(env: &mut CaseEnv) -> Result<()> {
    remove(env, fault::<CODE, IS_STATUS>()).await
}

/// A fault of all watches that ask for initial events (WatchList).
async fn watch_list(env: &mut CaseEnv, fault: ApiFault) -> Result<()> {
    env.cluster.script(ApiScript {
        path: "sendInitialEvents=true",
        body: "",
        method: Method::GET,
        fault,
        times: usize::MAX,
    });
    env.start_attacher().await?;
    env.attached().await?;
    env.detach_and_wait("a").await?;
    env.settled().await;
    Ok(())
}

pub(super) async fn watch_list_refused(env: &mut CaseEnv) -> Result<()> {
    watch_list(env, ApiFault::Status(422)).await
}

pub(super) async fn watch_list_unended(env: &mut CaseEnv) -> Result<()> {
    watch_list(env, ApiFault::NoBookmarks).await
}

pub(super) async fn removal_answer_lost(env: &mut CaseEnv) -> Result<()> {
    remove(env, ApiFault::LostAnswer).await
}
