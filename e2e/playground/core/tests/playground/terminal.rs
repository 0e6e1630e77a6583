//! The terminal view, in a pseudoterminal.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitStatus;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::program;

/// Timeout, with the build of driver and attacher; only reached on failure.
const DEADLINE: Duration = Duration::from_secs(600);
/// Escape sequence that leaves the alternate screen.
const LEAVE: &str = "\x1b[?1049l";

/// Output of a program on its terminal.
struct Output {
    chunks: Receiver<Vec<u8>>,
    text: String,
}

// === impl Output ===

impl Output {
    fn of(mut terminal: File) -> Self {
        let (chunks_tx, chunks) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = terminal.read(&mut buffer) {
                if chunks_tx.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            chunks,
            text: String::new(),
        }
    }

    /// Waits for a text in the output after the previous match.
    fn until(&mut self, text: &str) -> Result<(), Failed> {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some((_, rest)) = self.text.split_once(text) {
                self.text = rest.to_owned();
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            let chunk = self.chunks.recv_timeout(left);
            let chunk = chunk.map_err(|_| format!("no {text:?} in {:?}", self.text))?;
            self.text.push_str(&String::from_utf8_lossy(&chunk));
        }
    }
}

// === functions ===

pub(crate) fn keys_inject_a_fault_and_quit() -> Result<(), Failed> {
    let ended = in_terminal(&[], drive)?;
    if !ended.success() {
        return Err(ended.to_string().into());
    }
    Ok(())
}

/// Replicas serve no lanes, and are not said to be silent.
pub(crate) fn story_with_replicas_shows_no_lanes() -> Result<(), Failed> {
    let ended = in_terminal(&["--story", "leader-hand-over"], |terminal, output| {
        output.until("not shown with several attachers")?;
        terminal.write_all(b"q")?;
        output.until(LEAVE)?;
        output.until("interrupted before the end of the story")
    })?;
    if ended.success() {
        return Err("a story that is interrupted must fail".into());
    }
    Ok(())
}

/// Runs the playground in a terminal, and checks that it restores the terminal.
fn in_terminal(
    arguments: &[&str],
    drive: impl FnOnce(&mut File, &mut Output) -> Result<(), Failed>,
) -> Result<ExitStatus, Failed> {
    let mut terminal = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?);
    grantpt(&terminal)?;
    unlockpt(&terminal)?;
    let name = ptsname(&terminal, Vec::new())?;
    let slave = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits().cast_signed())
        .open(std::ffi::OsStr::from_bytes(name.as_bytes()))?;
    let size = Winsize {
        ws_row: 40,
        ws_col: 120,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&slave, size)?;
    let mut output = Output::of(terminal.try_clone()?);
    let mut child = program()?
        .args(arguments)
        .env("TERM", "xterm")
        .stdin(slave.try_clone()?)
        .stdout(slave.try_clone()?)
        .stderr(slave.try_clone()?)
        .spawn()?;
    let driven = drive(&mut terminal, &mut output);
    if driven.is_err() {
        child.kill()?;
    }
    let ended = child.wait()?;
    driven?;
    let modes = tcgetattr(&slave)?.local_modes;
    if !modes.contains(LocalModes::ICANON | LocalModes::ECHO) {
        return Err(format!("the terminal is still in raw mode: {modes:?}").into());
    }
    Ok(ended)
}

fn drive(terminal: &mut File, output: &mut Output) -> Result<(), Failed> {
    output.until("no faults active")?;
    terminal.write_all(b"s")?;
    output.until("slow driver")?;
    terminal.write_all(b"e")?;
    output.until("explain -A")?;
    // Of the text that is read from the cluster.
    output.until("cluster:")?;
    terminal.write_all(b"\x1b")?;
    output.until("VolumeAttachments")?;
    terminal.write_all(b"q")?;
    output.until(LEAVE)?;
    output.until("Stopped; processes and files are removed.")
}
