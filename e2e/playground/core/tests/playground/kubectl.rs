//! The commands that the playground prints for another terminal, run as printed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use csi_e2e::toolchain::without_run;
use libtest_mimic::Failed;
use rustix::process::{Pid, Signal, kill_process};
use verdict::Requirement;
use verdict::Requirement::{Program, RealComponents};

use super::program;

/// What each command lists after a while, in this order.
const LISTED: [(&str, &[&str]); 2] = [
    ("get pods -A", &["playground", "db-", "Running"]),
    (
        "get volumeattachments",
        &["playground.csi.local", "playground-data", "true"],
    ),
];
const DEADLINE: Duration = Duration::from_secs(120);

/// kubectl on the `PATH`, or what builds it.
pub(crate) fn requirements() -> &'static [Requirement] {
    match Program("kubectl").missing() {
        None => &[Program("kubectl")],
        Some(_) => &[RealComponents],
    }
}

pub(crate) fn printed_commands_work() -> Result<(), Failed> {
    let path = std::env::var("PATH")?;
    let path = match Program("kubectl").missing() {
        None => path,
        Some(_) => {
            let built = without_run(async |toolchain| toolchain.kubectl().await);
            let built = built.map_err(|error| format!("{error:#}"))?;
            format!("{}:{path}", built.parent().unwrap_or(Path::new("/")).display())
        }
    };
    let mut playground = program()?
        .args(["--plain", "--web"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let listed = run_printed(&mut playground, &path);
    interrupt(&playground)?;
    let ended = playground.wait()?;
    listed?;
    if !ended.success() {
        return Err(format!("{ended}").into());
    }
    Ok(())
}

fn run_printed(playground: &mut Child, path: &str) -> Result<(), Failed> {
    let printed = lines(playground)?;
    let mut commands = Vec::new();
    while commands.len() < LISTED.len() {
        let line = printed.recv_timeout(Duration::from_secs(600))?;
        if line.starts_with("  kubectl ") {
            commands.push(line);
        }
    }
    for (command, (part, words)) in commands.iter().zip(LISTED) {
        if !command.contains(part) {
            return Err(format!("{command:?} is not {part}").into());
        }
        let mut kubectl = Command::new("sh")
            .args(["-c", &format!("exec {}", command.trim_start())])
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let listed = until(&lines(&mut kubectl)?, words);
        kubectl.kill()?;
        kubectl.wait()?;
        listed.map_err(|output| format!("{command}: no line has {words:?}:\n{output}"))?;
    }
    Ok(())
}

/// Waits for a line with all words; fails with all lines.
fn until(lines: &mpsc::Receiver<String>, words: &[&str]) -> Result<(), String> {
    let end = Instant::now() + DEADLINE;
    let mut output = String::new();
    while let Ok(line) = lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
        if words.iter().all(|word| line.contains(word)) {
            return Ok(());
        }
        output.push_str(&line);
        output.push('\n');
    }
    Err(output)
}

/// The lines of a program's stdout, which is read to its end.
fn lines(child: &mut Child) -> Result<mpsc::Receiver<String>, Failed> {
    let stdout = child.stdout.take().ok_or("no stdout")?;
    let (lines_tx, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // The program must not block when the test no longer reads.
            drop(lines_tx.send(line));
        }
    });
    Ok(lines)
}

fn interrupt(child: &Child) -> Result<(), Failed> {
    let pid = Pid::from_raw(child.id().cast_signed()).ok_or("no pid")?;
    Ok(kill_process(pid, Signal::INT)?)
}
