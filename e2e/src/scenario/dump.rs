//! Dumps of failed scenarios, which contain enough to find the cause without running the scenario again.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::TestEnv;
use crate::driver::journal::{Call, MountEvent};
use crate::toolchain::workspace_root;

/// Number of the latest calls and mounts in the summary.
const LATEST: usize = 30;

/// Writes the objects, logs and journals of the test environment, and the end of the controllers' logs, into the directory
/// of its prefix, and returns a summary.
///
/// The error replaces a part that cannot be collected: a dump must not fail because of the failure that it documents.
pub async fn write(env: &TestEnv<'_>, failure: &anyhow::Error) -> Result<String> {
    let dir = &dir_of(env.prefix());
    discard(env.prefix())?;
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;

    save(dir, "failure.txt", &format!("{failure:?}\n"))?;
    save(dir, "objects.yaml", &or_reason(env.objects().await))?;
    match env.log_files() {
        Ok(paths) => paths.iter().try_for_each(|path| copy(dir, path))?,
        Err(error) => save(dir, "logs.txt", &or_reason(Err(error)))?,
    }
    for (component, log) in env.ctx().cluster().component_logs() {
        save(dir, &format!("{component}.log"), &log)?;
    }
    save(dir, "mounts.txt", &mounts(env, usize::MAX))?;
    save(dir, "attachments-over-time.txt", &history(env))?;

    let summary = summary(dir, env, failure).await;
    save(dir, "summary.txt", &summary)?;
    Ok(summary)
}

async fn summary(dir: &Path, env: &TestEnv<'_>, failure: &anyhow::Error) -> String {
    let mut text = format!("{} failed: {failure:#}\n", env.prefix());
    let mut section = |title: &str, body: String| {
        text.push_str(&format!("--- {title}\n{body}"));
    };
    section(
        "attachments",
        match env.attachments().await {
            Ok(attachments) => attachments.iter().map(describe).collect(),
            Err(error) => format!("not to be had: {error:#}\n"),
        },
    );
    section(
        "published by the driver",
        match env.driver.published().await {
            Ok(published) => published
                .iter()
                .map(|(volume, nodes)| format!("{volume} on {nodes:?}\n"))
                .collect(),
            Err(error) => format!("not to be had: {error:#}\n"),
        },
    );
    section(
        "latest calls of the driver",
        env.driver
            .calls()
            .map_or_else(|error| format!("{error:#}\n"), |calls| latest_calls(&calls)),
    );
    section("latest mounts of the nodes", mounts(env, LATEST));
    section("everything", format!("{}\n", dir.display()));
    text
}

fn describe(attachment: &VolumeAttachment) -> String {
    let status = attachment.status.clone().unwrap_or_default();
    let error = |error: Option<k8s_openapi::api::storage::v1::VolumeError>| {
        error
            .and_then(|error| error.message)
            .unwrap_or_else(|| "none".to_owned())
    };
    format!(
        "{} on {}: attached={} deleting={} finalizers={:?} attachError={} detachError={}\n",
        attachment.metadata.name.as_deref().unwrap_or_default(),
        attachment.spec.node_name,
        status.attached,
        attachment.metadata.deletion_timestamp.is_some(),
        attachment.metadata.finalizers.clone().unwrap_or_default(),
        error(status.attach_error),
        error(status.detach_error),
    )
}

fn latest_calls(calls: &[Call]) -> String {
    let about_volumes: Vec<_> = calls.iter().filter(|call| !call.node.is_empty()).collect();
    about_volumes[about_volumes.len().saturating_sub(LATEST)..]
        .iter()
        .fold(String::new(), |mut text, call| {
            let end = call.end.as_ref().map_or_else(
                || "no response".to_owned(),
                |end| format!("{} {} at {}", end.code, end.message, end.at),
            );
            let line = format!(
                "{} {} {} on {}: {end}",
                call.start, call.method, call.volume, call.node
            );
            text.push_str(line.trim_end());
            text.push('\n');
            text
        })
}

fn mounts(env: &TestEnv<'_>, latest: usize) -> String {
    let events = env.mount_events().unwrap_or_default();
    let mut text = String::new();
    for MountEvent {
        at,
        node,
        volume,
        mounted,
    } in &events[events.len().saturating_sub(latest)..]
    {
        let change = if *mounted { "mounted" } else { "unmounted" };
        writeln!(text, "{at} {node} {change} {volume}").expect("writing to a String must succeed");
    }
    text
}

fn history(env: &TestEnv<'_>) -> String {
    env.recorder()
        .watch_events()
        .iter()
        .map(|seen| {
            let gone = if seen.gone { "gone: " } else { "" };
            format!("{} {gone}{}", seen.at, describe(&seen.object))
        })
        .collect()
}

fn or_reason(text: Result<String>) -> String {
    text.unwrap_or_else(|error| format!("# not to be had: {error:#}\n"))
}

fn save(dir: &Path, name: &str, text: &str) -> Result<()> {
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

fn copy(dir: &Path, from: &Path) -> Result<()> {
    // Each node driver has its own directory.
    let parts: Vec<_> = from
        .iter()
        .rev()
        .take(2)
        .map(|part| part.to_string_lossy())
        .collect();
    let name = parts.into_iter().rev().collect::<Vec<_>>().join("-");
    match std::fs::copy(from, dir.join(&name)) {
        Err(error) => save(dir, &name, &format!("not to be had: {error}\n")),
        Ok(_) => Ok(()),
    }
}

/// Directory of the dump of a failed scenario.
fn dir_of(prefix: &str) -> PathBuf {
    workspace_root().join("target/e2e-failures").join(prefix)
}

/// Removes the dump of an earlier run or of an expected failure, if any.
pub fn discard(prefix: &str) -> Result<()> {
    let dir = dir_of(prefix);
    match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
