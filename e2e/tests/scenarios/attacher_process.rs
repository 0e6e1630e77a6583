//! The restart policy of attachers, tested with shell scripts in place of an attacher.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::attacher::{AttacherProcess, AttacherSpec, Kind};
use csi_e2e::process::write_script;
use libtest_mimic::Trial;

use crate::shared_cluster::SharedCluster;

/// Far more than a script needs for a few starts.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn trials(shared: &Arc<SharedCluster>) -> Vec<Trial> {
    let (restarted, crashed) = (Arc::clone(shared), Arc::clone(shared));
    vec![
        verdict::trial(
            "attacher_process::started_again_when_it_ends_by_itself",
            &[],
            move || restarted.block_on(started_again_when_it_ends_by_itself(&restarted)),
        ),
        verdict::trial(
            "attacher_process::stays_down_after_a_crash_until_revived",
            &[],
            move || crashed.block_on(stays_down_after_a_crash_until_revived(&crashed)),
        ),
    ]
}

async fn started_again_when_it_ends_by_itself(shared: &SharedCluster) -> Result<()> {
    let (run, _) = shared.tools().await?;
    let dir = run.subdir("attacher-ends")?;
    let mut attacher = AttacherProcess::start(Arc::clone(run), script(&dir, Kind::Ours, "exit 3")?).await?;
    attacher.wait_for_unexpected_exits(2, STEP_TIMEOUT).await?;
    ensure!(starts(&dir)? >= 2, "it was started {} times", starts(&dir)?);
    ensure!(
        attacher.ensure_no_unexpected_exits().is_err(),
        "an unexpected exit of our attacher must be an error"
    );
    attacher.stop().await
}

async fn stays_down_after_a_crash_until_revived(shared: &SharedCluster) -> Result<()> {
    let (run, _) = shared.tools().await?;
    let dir = run.subdir("attacher-crashes")?;
    let mut attacher =
        AttacherProcess::start(Arc::clone(run), script(&dir, Kind::Go, "exec sleep 600")?).await?;
    attacher.crash().await?;
    ensure!(
        attacher.crash().await.is_err(),
        "it restarted although nothing revived it"
    );
    attacher.revive().await?;
    attacher
        .crash()
        .await
        .context("it must be up after its revival")?;
    ensure!(
        attacher.unexpected_exit_count() == 0,
        "an injected crash is not an unexpected exit"
    );
    ensure!(starts(&dir)? <= 2, "it was started {} times", starts(&dir)?);
    attacher.stop().await
}

/// An attacher that records each start and then runs `script`.
fn script(dir: &Path, kind: Kind, then: &str) -> Result<AttacherSpec> {
    let binary = dir.join("attacher.sh");
    let text = format!(
        "#!/bin/sh\necho started >> {}\n{then}\n",
        dir.join(STARTS).display()
    );
    write_script(&binary, &text)?;
    Ok(AttacherSpec {
        kind,
        binary,
        dir: dir.to_owned(),
        kubeconfig: PathBuf::from("/dev/null"),
        socket: PathBuf::from("/dev/null"),
        timeout: STEP_TIMEOUT,
        reconcile_sync: STEP_TIMEOUT,
        flags: &[],
        own_flags: &[],
        replica: None,
    })
}

/// Number of starts that the script recorded; it may be killed before it records one.
fn starts(dir: &Path) -> Result<usize> {
    match std::fs::read_to_string(dir.join(STARTS)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        text => Ok(text.context("read how often it was started")?.lines().count()),
    }
}

const STARTS: &str = "starts";
