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
use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::{Harness, trial};

/// Timeout; only reached on failure.
const DEADLINE: Duration = Duration::from_secs(20);
/// Argument that turns this executable into a harness to be killed.
const VICTIM: &str = "--be-the-victim";

/// A script whose child leaves the process group, and then prints its id.
const RUNAWAY: &str = "setsid sh -c 'echo $$; exec sleep 1000' & wait";

pub(crate) fn trials(harness: &Arc<Harness>) -> Vec<Trial> {
    vec![
        trial(
            harness,
            "process::stop_lets_a_process_end_by_itself",
            stop_lets_a_process_end_by_itself,
        ),
        trial(
            harness,
            "process::stop_kills_a_process_that_does_not_listen",
            stop_kills_a_process_that_does_not_listen,
        ),
        trial(
            harness,
            "process::kill_ends_the_whole_group",
            kill_ends_the_whole_group,
        ),
        trial(
            harness,
            "process::a_group_ends_with_its_leader",
            a_group_ends_with_its_leader,
        ),
        trial(
            harness,
            "process::a_dropped_process_is_killed",
            a_dropped_process_is_killed,
        ),
        trial(
            harness,
            "process::a_death_is_described_with_the_last_words",
            a_death_is_described_with_the_last_words,
        ),
        trial(harness, "process::usage_is_measured", usage_is_measured),
        trial(
            harness,
            "process::finish_names_and_kills_what_leaked",
            finish_names_and_kills_what_leaked,
        ),
        trial(
            harness,
            "process::files_are_kept_when_asked",
            files_are_kept_when_asked,
        ),
        trial(
            harness,
            "process::nothing_survives_a_killed_harness",
            nothing_survives_a_killed_harness,
        ),
    ]
}

/// Runs a harness with children, one of which has left its process group, until the harness is killed.
pub(crate) fn victim_main_if_asked() -> Result<()> {
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

async fn stop_lets_a_process_end_by_itself(harness: Arc<Harness>) -> Result<()> {
    let script = "trap 'exit 3' TERM; echo up; while :; do sleep 1000 & wait $!; done";
    let process = Process::spawn(&harness.run, sh("polite", script))?;
    words(process.stdout(), 1).await?;
    let exit = process.stop(DEADLINE).await?;
    ensure!(exit.status.code() == Some(3), "it ended with {}", exit.status);
    ensure!(process.try_exit().is_some(), "the exit must be remembered");
    process
        .signal(Signal::KILL)
        .context("a signal to an ended process must do nothing")
}

async fn stop_kills_a_process_that_does_not_listen(harness: Arc<Harness>) -> Result<()> {
    let script = "trap '' TERM; echo up; while :; do sleep 1000; done";
    let process = Process::spawn(&harness.run, sh("deaf", script))?;
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

async fn a_group_ends_with_its_leader(harness: Arc<Harness>) -> Result<()> {
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

async fn a_dropped_process_is_killed(harness: Arc<Harness>) -> Result<()> {
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

async fn a_death_is_described_with_the_last_words(harness: Arc<Harness>) -> Result<()> {
    let process = Process::spawn(
        &harness.run,
        sh("doomed", "echo first >&2; echo the reason >&2; exit 7"),
    )?;
    let given_up = process.while_alive(std::future::pending::<Result<()>>());
    let error = tokio::time::timeout(DEADLINE, given_up)
        .await
        .context("the death must be noticed")?;
    for error in [error, process.ensure_alive()] {
        let told = format!("{:#}", error.err().context("the death must be an error")?);
        for part in ["doomed", "exit status: 7", "the reason"] {
            ensure!(told.contains(part), "no {part:?} in: {told}");
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

async fn finish_names_and_kills_what_leaked(_: Arc<Harness>) -> Result<()> {
    let run = Run::start()?;
    let process = Process::spawn(&run, sh("parent", RUNAWAY))?;
    let runaway = words(process.stdout(), 1).await?[0].clone();
    let watched = open(&runaway)?;
    process.kill().await?;
    let error = run.finish().await.err().context("a leak must be an error")?;
    let told = format!("{error:#}");
    ensure!(
        told.contains(&format!("{runaway} sleep 1000")),
        "the leak is not named: {told}"
    );
    ends(&watched).context("the leaked process")?;
    ensure!(!run.dir().exists(), "{} is still there", run.dir().display());
    Ok(())
}

async fn files_are_kept_when_asked(_: Arc<Harness>) -> Result<()> {
    let run = Run::start()?;
    let settings = Settings {
        keep_files: true,
        ..Settings::default()
    };
    drop(Toolchain::new(&run, settings));
    run.finish().await?;
    ensure!(run.dir().is_dir(), "{} is gone", run.dir().display());
    std::fs::remove_dir_all(run.dir()).context("remove what was kept")
}

async fn nothing_survives_a_killed_harness(harness: Arc<Harness>) -> Result<()> {
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
    until("the killed harness's files are removed", || {
        (!dir.exists()).then_some(())
    })
    .await
}

// === looking at processes ===

fn sh(name: &str, script: &str) -> Spec {
    Spec::new(name, "sh").arg("-c").arg(script)
}

/// The words that a process has written to a file, when it has the expected number, each followed by white
/// space.
async fn words(file: &Path, expected: usize) -> Result<Vec<String>> {
    let read = || {
        let text = std::fs::read_to_string(file).ok()?;
        let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        (words.len() >= expected && !text.is_empty()).then_some(words)
    };
    until(&format!("{expected} words in {}", file.display()), read).await
}

/// Polls, because a file has no event to await.
async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let looking = async {
        loop {
            match look() {
                Some(found) => return found,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    tokio::time::timeout(DEADLINE, looking)
        .await
        .with_context(|| format!("waiting until {what}"))
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
    ensure!(ready == 1, "the process is still there");
    Ok(())
}
