//! Waits for lines of logs.

use std::fs::File;
use std::future::ready;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::wait::{self, Progress};

/// Waits until the log of `program` has, from this offset on, `count` lines with all of `words`. Reads each line once.
pub(crate) async fn wait_for_lines(
    program: &str,
    log: &Path,
    mut offset: u64,
    words: &[&str],
    count: usize,
    within: Duration,
) -> Result<()> {
    let what = format!("{program} to log {words:?}");
    let mut found = 0;
    wait::poll(within, &what, || {
        let progress = complete_lines(log, offset).map(|lines| {
            offset += lines.len() as u64;
            found += lines_with(&String::from_utf8_lossy(&lines), words);
            Progress::of(found >= count, || format!("{found} of {count} lines"))
        });
        ready(progress)
    })
    .await
}

/// The complete lines of a file from this offset on.
fn complete_lines(path: &Path, offset: u64) -> Result<Vec<u8>> {
    let mut lines = Vec::new();
    File::open(path)
        .and_then(|mut file| {
            file.seek(SeekFrom::Start(offset))?;
            file.read_to_end(&mut lines)
        })
        .with_context(|| format!("read {}", path.display()))?;
    let end = lines.iter().rposition(|&byte| byte == b'\n');
    lines.truncate(end.map_or(0, |end| end + 1));
    Ok(lines)
}

/// Number of lines with all of `words`.
fn lines_with(log: &str, words: &[&str]) -> usize {
    let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
    log.lines().filter(has_all).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn complete_lines_after_the_offset_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        std::fs::write(
            &log,
            "volume a failed\nvolume b failed\nvolume a failed\nvolume a fai",
        )
        .unwrap();
        let wait = async |offset, count| {
            wait_for_lines(
                "it",
                &log,
                offset,
                &["volume a", "failed"],
                count,
                Duration::from_secs(1),
            )
            .await
        };
        wait(0, 2).await.unwrap();
        wait(16, 1).await.unwrap();
        let error = wait(16, 2).await.unwrap_err();
        assert!(error.to_string().ends_with(": 1 of 2 lines"), "{error}");
    }
}
