//! The restart policy subjects are run under, with shell scripts in the place of an attacher.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::process::write_script;
use csi_e2e::subject::{Kind, Subject, SubjectSpec};
use libtest_mimic::{Failed, Trial};

use crate::house::House;

/// Far more than a script needs to be started a few times.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn trials(house: &Arc<House>) -> Vec<Trial> {
    let restarted = Arc::clone(house);
    let crashed = Arc::clone(house);
    let report = |result: Result<()>| result.map_err(|error| Failed::from(format!("{error:#}")));
    vec![
        Trial::test("subject::started_again_when_it_ends_by_itself", move || {
            report(restarted.block_on(started_again_when_it_ends_by_itself(&restarted)))
        }),
        Trial::test("subject::stays_down_after_a_crash_until_revived", move || {
            report(crashed.block_on(stays_down_after_a_crash_until_revived(&crashed)))
        }),
    ]
}

async fn started_again_when_it_ends_by_itself(house: &House) -> Result<()> {
    let (run, _) = house.tools().await?;
    let dir = run.subdir("subject-ends")?;
    let mut subject = Subject::start(Arc::clone(run), script(&dir, Kind::Ours, "exit 3")?).await?;
    subject.wait_for_surprise_ends(2, PATIENCE).await?;
    ensure!(starts(&dir)? >= 2, "it was started {} times", starts(&dir)?);
    ensure!(
        subject.ensure_steady().is_err(),
        "our attacher must not end by itself unnoticed"
    );
    subject.stop().await
}

async fn stays_down_after_a_crash_until_revived(house: &House) -> Result<()> {
    let (run, _) = house.tools().await?;
    let dir = run.subdir("subject-crashes")?;
    let mut subject = Subject::start(Arc::clone(run), script(&dir, Kind::Go, "exec sleep 600")?).await?;
    subject.crash().await?;
    ensure!(
        subject.crash().await.is_err(),
        "it was up again without being revived"
    );
    subject.revive().await?;
    subject.crash().await.context("it must be up after its revival")?;
    ensure!(
        subject.surprise_ends() == 0,
        "a crash that was asked for is no surprise"
    );
    ensure!(starts(&dir)? <= 2, "it was started {} times", starts(&dir)?);
    subject.stop().await
}

/// A subject that notes each start and then does as told.
fn script(dir: &Path, kind: Kind, then: &str) -> Result<SubjectSpec> {
    let binary = dir.join("attacher.sh");
    let text = format!(
        "#!/bin/sh\necho started >> {}\n{then}\n",
        dir.join(STARTS).display()
    );
    write_script(&binary, &text)?;
    Ok(SubjectSpec {
        kind,
        binary,
        dir: dir.to_owned(),
        kubeconfig: PathBuf::from("/dev/null"),
        socket: PathBuf::from("/dev/null"),
        timeout: PATIENCE,
        reconcile_sync: PATIENCE,
        flags: &[],
        own_flags: &[],
        replica: None,
    })
}

/// How often the script came to note that it was started; it may be killed before it does.
fn starts(dir: &Path) -> Result<usize> {
    match std::fs::read_to_string(dir.join(STARTS)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        text => Ok(text.context("read how often it was started")?.lines().count()),
    }
}

const STARTS: &str = "starts";
