//! The commands for another terminal: those that the playground prints, and the README's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use csi_e2e::document;
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
    let built = without_run(async |toolchain| {
        let mut built = vec![toolchain.explain_plugin().await?];
        if Program("kubectl").missing().is_some() {
            built.push(toolchain.kubectl().await?);
        }
        Ok(built)
    });
    let built = built.map_err(|error| format!("{error:#}"))?;
    let mut path: Vec<PathBuf> = built
        .iter()
        .filter_map(|program| program.parent())
        .map(Path::to_owned)
        .collect();
    path.extend(std::env::split_paths(&std::env::var("PATH")?));
    let path = std::env::join_paths(path)?
        .into_string()
        .map_err(|_| "PATH must be UTF-8")?;
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
    let page = loop {
        let line = printed.recv_timeout(Duration::from_secs(600))?;
        if line.starts_with("  kubectl ") {
            commands.push(line);
        } else if let Some(page) = line.strip_prefix("Web page: http://") {
            break page.trim_end_matches('/').to_owned();
        }
    };
    if commands.len() != LISTED.len() {
        return Err(format!("{commands:?}").into());
    }
    pause(&page)?;
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
    let kubeconfig = commands[0]
        .split_whitespace()
        .skip_while(|word| *word != "--kubeconfig")
        .nth(1);
    explain(kubeconfig.ok_or("the command must name a kubeconfig")?, path)
}

/// Keeps the pods where they are.
fn pause(page: &str) -> Result<(), Failed> {
    let mut stream = TcpStream::connect(page)?;
    let request = format!(
        "POST /api/v1/pace/step HTTP/1.1\r\nHost: {page}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    if !response.starts_with("HTTP/1.1 202") {
        return Err(response.into());
    }
    Ok(())
}

/// The README's block, with the kubeconfig of this run and a pod that exists.
fn explain(kubeconfig: &str, path: &str) -> Result<(), Failed> {
    let block = document::block("README.md", "export KUBECONFIG=").map_err(|error| format!("{error:#}"))?;
    let (export, command) = block.split_once('\n').ok_or("the block must have two lines")?;
    let command = command.replace("pod/web-2", "pod/db-1");
    let output = Command::new("sh")
        .args(["-euc", &format!("export KUBECONFIG={kubeconfig}\n{command}")])
        .env("PATH", path)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !export.ends_with("/embedded-cluster/admin.kubeconfig")
        || !kubeconfig.ends_with("/embedded-cluster/admin.kubeconfig")
        || !text.starts_with("pod/db-1 in namespace playground: fine")
    {
        return Err(format!("{export}\n{command}\n{output:?}").into());
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
