//! Waits for lines of logs.

use std::time::Duration;

use anyhow::Result;

use crate::wait::{self, Progress};

/// Waits until the log of `program`, which `read` returns, has `count` lines with all of `words`.
pub(crate) async fn wait_for_lines(
    program: &str,
    words: &[&str],
    count: usize,
    within: Duration,
    read: impl Fn() -> Result<String>,
) -> Result<()> {
    let what = format!("{program} to log {words:?}");
    wait::poll(within, &what, || async {
        let found = lines_with(&read()?, words);
        Ok(Progress::of(found >= count, || {
            format!("{found} of {count} lines")
        }))
    })
    .await
}

/// Number of lines with all of `words`.
pub(crate) fn lines_with(log: &str, words: &[&str]) -> usize {
    let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
    log.lines().filter(has_all).count()
}
