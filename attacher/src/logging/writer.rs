//! Writes lines in separate threads, so that a blocked log pipe delays neither the renewal of the Lease nor `/healthz`. Lines
//! beyond the queue are dropped and counted.

use std::io::{self, Write};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use tracing::Level;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt as _};

/// Maximum queued lines of a stream: about 2 MB.
const QUEUED_LINES: usize = 8192;

/// Timeout of the flush at exit.
const FLUSH: Duration = Duration::from_secs(2);

static DROPPED: OnceLock<Vec<ErrorCounter>> = OnceLock::new();

/// Flushes the queued lines when it is dropped.
#[derive(Debug)]
pub struct LogGuard(Vec<WorkerGuard>);

/// Number of lines dropped because a stream was blocked.
pub(crate) fn dropped_lines() -> u64 {
    let counters = DROPPED.get().map(Vec::as_slice).unwrap_or_default();
    let dropped: usize = counters.iter().map(ErrorCounter::dropped_lines).sum();
    u64::try_from(dropped).unwrap_or(u64::MAX)
}

/// Errors to standard error and the rest to standard output if `split`; else all to standard error.
pub(super) fn new(split: bool) -> (BoxMakeWriter, LogGuard) {
    let (stderr, stderr_guard) = queue(io::stderr());
    let mut counters = vec![stderr.error_counter()];
    let mut guards = vec![stderr_guard];
    let writer = if split {
        let (stdout, stdout_guard) = queue(io::stdout());
        counters.push(stdout.error_counter());
        guards.push(stdout_guard);
        BoxMakeWriter::new(stderr.with_max_level(Level::ERROR).or_else(stdout))
    } else {
        BoxMakeWriter::new(stderr)
    };
    // Only the first call counts; a process has one log.
    DROPPED.get_or_init(|| counters);
    (writer, LogGuard(guards))
}

fn queue(stream: impl Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(QUEUED_LINES)
        .thread_name("log")
        .finish(stream)
}

// === impl LogGuard ===

impl Drop for LogGuard {
    fn drop(&mut self) {
        let guards = std::mem::take(&mut self.0);
        let (flushed_tx, flushed) = mpsc::channel();
        // A guard with a full queue reports it on standard output, which may be blocked, too.
        thread::spawn(move || {
            drop(guards);
            flushed_tx.send(()).ok();
        });
        flushed.recv_timeout(FLUSH).ok();
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::fmt::MakeWriter as _;

    use super::*;

    /// A pipe without reader.
    struct Blocked(mpsc::Receiver<()>);

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().ok();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn drops_and_counts_lines_while_the_stream_is_blocked() {
        let (unblock, blocked) = mpsc::channel();
        let (queue, guard) = queue(Blocked(blocked));
        for _ in 0..QUEUED_LINES + 100 {
            queue.make_writer().write_all(b"line\n").unwrap();
        }
        // One line may have left the queue for the stream.
        let dropped = queue.error_counter().dropped_lines();
        assert!((99..=100).contains(&dropped), "{dropped}");
        drop(unblock);
        drop(guard);
    }
}
