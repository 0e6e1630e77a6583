//! Progress messages of builds.

use std::io::{IsTerminal, Write};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::process::Child;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Period of redrawing the line on a terminal.
const REDRAW: Duration = Duration::from_secs(1);
/// Period of new lines if stderr is not a terminal.
const REPEAT: Duration = Duration::from_secs(15);

/// Writes one line of progress to stderr. A closed stderr is no error.
pub(super) fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "csi-e2e: {line}"));
}

/// Waits for a build, and prints its elapsed time and `progress` meanwhile.
pub(super) async fn watch(
    child: &mut Child,
    what: &str,
    since: Instant,
    progress: impl Fn() -> String,
) -> Result<ExitStatus> {
    let drawn_over = std::io::stderr().is_terminal();
    let mut ticks = interval(if drawn_over { REDRAW } else { REPEAT });
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        tokio::select! {
            biased;
            status = child.wait() => {
                if drawn_over {
                    drop(write!(std::io::stderr(), "\r\x1b[K"));
                }
                return status.with_context(|| format!("wait for the build of {what}"));
            }
            _ = ticks.tick() => {
                let line = format!("building {what}: {}, {} so far", progress(), elapsed(since.elapsed()));
                if drawn_over {
                    drop(write!(std::io::stderr(), "\r\x1b[Kcsi-e2e: {line}"));
                } else {
                    say(&line);
                }
            }
        }
    }
}

/// A duration as human-readable text.
pub(super) fn elapsed(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds / 60 {
        0 => format!("{seconds} s"),
        minutes => format!("{minutes} min {:02} s", seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        assert_eq!(elapsed(Duration::from_millis(900)), "0 s");
        assert_eq!(elapsed(Duration::from_secs(59)), "59 s");
        assert_eq!(elapsed(Duration::from_secs(125)), "2 min 05 s");
    }
}
