//! Commands that must succeed.

use std::io;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};

/// Runs the command without input, and returns its standard output. Dropping the future kills it.
///
/// # Errors
/// The command cannot be started, fails (the error has its standard error), or writes output that is not UTF-8.
pub async fn stdout_of(command: &mut tokio::process::Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    checked(command.as_std(), output)
}

/// As [`stdout_of`], but blocks the thread.
///
/// # Errors
/// As for [`stdout_of`].
pub fn stdout_of_blocking(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    checked(command, output)
}

fn checked(command: &Command, output: io::Result<Output>) -> Result<String> {
    let output = output.with_context(|| format!("run {}", command.get_program().display()))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).with_context(|| format!("the output of {command:?} must be UTF-8"))
}
