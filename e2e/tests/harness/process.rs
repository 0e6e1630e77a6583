//! Processes end when they are stopped, when their parent ends, and when the harness is killed.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::process::{Process, Run, Spec, Usage};
use csi_e2e::toolchain::{Settings, Toolchain};
use csi_e2e::wait::{self, Progress};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use verdict::Requirement;

use crate::Harness;

/// Timeout; only reached on failure.
const DEADLINE: Duration = Duration::from_secs(20);
/// Argument that makes this executable the harness that a test kills.
const VICTIM: &str = "--be-the-victim";

/// A script whose child leaves the process group, and then prints its id.
const RUNAWAY: &str = "setsid sh -c 'echo $$; exec sleep 1000' & wait";

trials! { "process":
    stop_waits_for_a_process_that_handles_sigterm,
    stop_kills_a_process_that_ignores_sigterm,
    kill_ends_the_whole_group,
    group_is_killed_when_its_leader_exits,
    dropped_process_is_killed,
    unexpected_exit_is_reported_with_the_last_log_lines,
    usage_is_measured,
    finish_names_and_kills_leaked_processes,
    files_are_kept_if_keep_files_is_set,
    no_process_or_file_survives_a_killed_harness,
}

/// Runs a harness with children, one of which has left its process group, until the harness is killed.
pub(crate) fn victim_main_if_requested() -> Result<()> {
    if std::env::args().nth(1).as_deref() != Some(VICTIM) {
        return Ok(());
    }
    let run = Run::start()?;
    let child = Process::spawn(&run, sh("child", &format!("sleep 1000 & echo $!; {RUNAWAY}")))?;
    std::fs::write(run.dir().join("child.pid"), child.pid().to_string())?;
    // The parent test reads these ids, and kills this process when the children are running.
    writeln!(std::io::stdout(), "{}", run.dir().display())?;
    loop {
        std::thread::park();
    }
}

async fn stop_waits_for_a_process_that_handles_sigterm(harness: Arc<Harness>) -> Result<()> {
    let script = "trap 'exit 3' TERM; echo up; while :; do sleep 1000 & wait $!; done";
    let process = Process::spawn(&harness.run, sh("handles-term", script))?;
    words(process.stdout(), 1).await?;
    let exit = process.stop(DEADLINE).await?;
    ensure!(exit.status.code() == Some(3), "it ended with {}", exit.status);
    ensure!(process.try_exit().is_some(), "the exit status must be kept");
    process
        .signal(Signal::KILL)
        .context("a signal to an ended process must do nothing")
}

async fn stop_kills_a_process_that_ignores_sigterm(harness: Arc<Harness>) -> Result<()> {
    let script = "trap '' TERM; echo up; while :; do sleep 1000; done";
    let process = Process::spawn(&harness.run, sh("ignores-term", script))?;
    words(process.stdout(), 1).await?;
    let exit = process.stop(Duration::from_millis(200)).await?;
    ensure!(exit.status.signal() == Some(9), "it ended with {}", exit.status);
    Ok(())
}

async fn kill_ends_the_whole_group(harness: Arc<Harness>) -> Result<()> {
    let process = Process::spawn(&harness.run, sh("family", "sleep 1000 & echo $!; wait"))?;
    let child = open(&words(process.stdout(), 1).await?[0])?;
    let exit = process.kill().await?;
    ensure!(exit.status.signal() == Some(9), "it ended with {}", exit.status);
    ends(&child).context("the child of the killed process")
}

async fn group_is_killed_when_its_leader_exits(harness: Arc<Harness>) -> Result<()> {
    // The leader waits for a file, so that its child can be looked up before.
    let script = "sleep 1000 & echo $!; until [ -e go-on ]; do sleep 0.05; done; exit 5";
    let dir = harness.run.subdir("orphans")?;
    let process = Process::spawn(&harness.run, sh("leader", script).dir(&dir))?;
    let child = open(&words(process.stdout(), 1).await?[0])?;
    std::fs::write(dir.join("go-on"), "")?;
    let exit = process.exited_within(DEADLINE).await?;
    ensure!(exit.status.code() == Some(5), "it ended with {}", exit.status);
    ends(&child).context("the child of the process that ended")
}

async fn dropped_process_is_killed(harness: Arc<Harness>) -> Result<()> {
    let process = Process::spawn(&harness.run, sh("dropped", "sleep 1000 & echo $!; wait"))?;
    let pids = [
        words(process.stdout(), 1).await?[0].clone(),
        process.pid().to_string(),
    ];
    let [child, leader] = [open(&pids[0])?, open(&pids[1])?];
    drop(process);
    ends(&leader).context("the dropped process")?;
    ends(&child).context("the child of the dropped process")
}

async fn unexpected_exit_is_reported_with_the_last_log_lines(harness: Arc<Harness>) -> Result<()> {
    let process = Process::spawn(
        &harness.run,
        sh("fails", "echo first >&2; echo the reason >&2; exit 7"),
    )?;
    let exits = process.while_alive(std::future::pending::<Result<()>>());
    let error = tokio::time::timeout(DEADLINE, exits)
        .await
        .context("the exit must be reported")?;
    for error in [error, process.ensure_alive()] {
        let text = format!("{:#}", error.err().context("the exit must be an error")?);
        for part in ["fails", "exit status: 7", "the reason"] {
            ensure!(text.contains(part), "no {part:?} in: {text}");
        }
    }
    ensure!(
        process.log_tail(1) == "the reason",
        "the last line is {:?}",
        process.log_tail(1)
    );
    Ok(())
}

async fn usage_is_measured(harness: Arc<Harness>) -> Result<()> {
    let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo done; while :; do sleep 1000; done";
    let process = Process::spawn(&harness.run, sh("busy", script))?;
    words(process.stdout(), 1).await?;
    let Usage { cpu, peak_rss } = process.usage();
    ensure!(cpu >= Duration::from_millis(20), "{cpu:?} of processor time");
    ensure!((100_000..1_000_000_000).contains(&peak_rss), "{peak_rss} bytes");
    let end = process.kill().await?.usage;
    ensure!(
        end.cpu >= cpu && end.peak_rss >= peak_rss,
        "{end:?} at the end, before it {cpu:?} and {peak_rss}"
    );
    Ok(())
}

async fn finish_names_and_kills_leaked_processes(_: Arc<Harness>) -> Result<()> {
    Requirement::Program("setsid").check()?;
    let run = Run::start()?;
    let process = Process::spawn(&run, sh("parent", RUNAWAY))?;
    let runaway = words(process.stdout(), 1).await?[0].clone();
    let watched = open(&runaway)?;
    process.kill().await?;
    let error = run.finish().await.err().context("a leak must be an error")?;
    let text = format!("{error:#}");
    ensure!(
        text.contains(&format!("{runaway} sleep 1000")),
        "the error does not name the leaked process: {text}"
    );
    ends(&watched).context("the leaked process")?;
    ensure!(!run.dir().exists(), "{} still exists", run.dir().display());
    Ok(())
}

async fn files_are_kept_if_keep_files_is_set(_: Arc<Harness>) -> Result<()> {
    let run = Run::start()?;
    let settings = Settings {
        keep_files: true,
        ..Settings::default()
    };
    drop(Toolchain::new(&run, settings));
    run.finish().await?;
    ensure!(run.dir().is_dir(), "{} is gone", run.dir().display());
    std::fs::remove_dir_all(run.dir()).context("remove the kept files")
}

async fn no_process_or_file_survives_a_killed_harness(harness: Arc<Harness>) -> Result<()> {
    Requirement::Program("setsid").check()?;
    let victim = Process::spawn(&harness.run, Spec::new("victim", "/proc/self/exe").arg(VICTIM))?;
    let dir = PathBuf::from(words(victim.stdout(), 1).await?[0].clone());
    let mut pids = words(&dir.join("child.stdout"), 2).await?;
    pids.extend(words(&dir.join("child.pid"), 1).await?);
    let children = pids.iter().map(|pid| open(pid)).collect::<Result<Vec<_>>>()?;
    ensure!(
        !victim.kill().await?.status.success(),
        "the victim must have been killed"
    );
    for (pid, child) in pids.iter().zip(&children) {
        ends(child).with_context(|| format!("child {pid} of the killed harness"))?;
    }
    wait::poll(DEADLINE, "the killed harness's files to be removed", || async {
        Ok(Progress::of(!dir.exists(), || {
            format!("{} still exists", dir.display())
        }))
    })
    .await
}

// === processes ===

fn sh(name: &str, script: &str) -> Spec {
    Spec::new(name, "sh").arg("-c").arg(script)
}

/// Waits until a process has written the expected number of words to a file; returns all words.
async fn words(file: &Path, expected: usize) -> Result<Vec<String>> {
    let what = format!("{expected} words in {}", file.display());
    wait::poll(DEADLINE, &what, || async {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        Ok(if words.len() >= expected {
            Progress::Reached(words)
        } else {
            Progress::Pending(format!("it has {words:?}"))
        })
    })
    .await
}

/// A pidfd of this process.
fn open(pid: &str) -> Result<OwnedFd> {
    let pid = pid
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{pid:?} must be a process id"))?;
    pidfd_open(pid, PidfdFlags::empty()).with_context(|| format!("find process {pid:?}"))
}

fn ends(process: &OwnedFd) -> Result<()> {
    let timeout = Timespec::try_from(DEADLINE)?;
    let ready = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout))?;
    ensure!(ready == 1, "the process still runs");
    Ok(())
}
