//! A bounded queue of lines in front of a file or stream, so that a stalled disk or pipe never blocks a call. Lines beyond
//! the bound are dropped and counted, and the output says so when it accepts lines again.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Maximum number of queued bytes.
const QUEUED_BYTES: usize = 8 << 20;

/// How long a call waits until its line is written. After a timeout no call waits until the queue is empty.
const PATIENCE: Duration = Duration::from_millis(100);

/// The output of a writer, which its thread owns.
pub(crate) trait Sink: Send + 'static {
    /// Writes whole lines. Writes as many as it can, and returns the number of the others.
    fn write(&mut self, lines: &[u8]) -> u64;

    fn lost(&self, lines: u64) -> Vec<u8>;
}

/// Queues lines for a thread that writes them. The thread ends after the writer is dropped and the queue is empty.
#[derive(Debug)]
pub(crate) struct LineWriter(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    /// Lines were queued, or the writer was dropped.
    queued: Condvar,
    handled: Condvar,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    lines: Vec<u8>,
    /// Number of lines dropped since the thread last took lines.
    dropped: u64,
    /// Number of lines that were ever queued.
    queued: u64,
    /// Number of lines that were ever written or failed.
    handled: u64,
    /// A call waited in vain, and the queue has not been empty since.
    is_behind: bool,
    is_closed: bool,
}

// === impl LineWriter ===

impl LineWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(name: &str, sink: impl Sink) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let own = queue.clone();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || own.drain(sink))?;
        Ok(Self(queue))
    }

    /// Queues a line with its end.
    pub(crate) fn write(&self, line: &[u8]) {
        self.0.push(&mut self.0.lock(), line);
    }

    /// Queues a line and waits until it is written, unless the output is stalled.
    pub(crate) fn write_and_wait(&self, line: &[u8]) {
        let mut state = self.0.lock();
        if !self.0.push(&mut state, line) || state.is_behind {
            return;
        }
        let own = state.queued;
        let waited = self
            .0
            .handled
            .wait_timeout_while(state, PATIENCE, |state| state.handled < own);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_behind |= waited.timed_out();
    }

    /// Waits until all queued lines are written, at most for `limit`.
    pub(crate) fn flush(&self, limit: Duration) {
        let state = self.0.lock();
        let flushed = self
            .0
            .handled
            .wait_timeout_while(state, limit, |state| state.handled < state.queued);
        drop(flushed);
    }

    /// Number of lines that were dropped or could not be written.
    pub(crate) fn lost_lines(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.queued.notify_one();
    }
}

// === impl Queue ===

impl Queue {
    /// Returns whether there was room.
    fn push(&self, state: &mut State, line: &[u8]) -> bool {
        if !state.lines.is_empty() && state.lines.len() + line.len() > QUEUED_BYTES {
            state.dropped += 1;
            self.lost.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        state.lines.extend_from_slice(line);
        state.queued += 1;
        self.queued.notify_one();
        true
    }

    fn drain(&self, mut sink: impl Sink) {
        // Lost lines that the output does not report yet.
        let mut unreported = 0;
        let mut lines = Vec::new();
        while let Some((last, dropped)) = self.take(&mut lines) {
            let report = |sink: &mut dyn Sink, unreported: &mut u64| {
                if *unreported > 0 && sink.write(&sink.lost(*unreported)) == 0 {
                    *unreported = 0;
                }
            };
            report(&mut sink, &mut unreported);
            let failed = sink.write(&lines);
            self.lost.fetch_add(failed, Ordering::Relaxed);
            unreported += failed + dropped;
            if failed == 0 {
                report(&mut sink, &mut unreported);
            }
            let mut state = self.lock();
            state.handled = last;
            state.is_behind &= !state.lines.is_empty();
            drop(state);
            self.handled.notify_all();
        }
    }

    /// Waits for lines. Returns the number of the last one, and how many were dropped after it.
    fn take(&self, lines: &mut Vec<u8>) -> Option<(u64, u64)> {
        lines.clear();
        let state = self.lock();
        let state = self
            .queued
            .wait_while(state, |state| state.lines.is_empty() && !state.is_closed);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.lines.is_empty() {
            return None;
        }
        std::mem::swap(lines, &mut state.lines);
        Some((state.queued, std::mem::take(&mut state.dropped)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        crate::lock(&self.state)
    }
}

pub(crate) fn count(lines: &[u8]) -> u64 {
    u64::try_from(lines.iter().filter(|byte| **byte == b'\n').count()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::time::Instant;

    use super::*;

    /// A stream that accepts a text when the test allows it, and fails while `fails` is set.
    struct Gate {
        allowed: mpsc::Receiver<bool>,
        written: mpsc::Sender<String>,
    }

    impl Sink for Gate {
        fn write(&mut self, lines: &[u8]) -> u64 {
            match self.allowed.recv() {
                Ok(true) => {
                    self.written
                        .send(String::from_utf8_lossy(lines).into_owned())
                        .ok();
                    0
                }
                Ok(false) | Err(_) => count(lines),
            }
        }

        fn lost(&self, lines: u64) -> Vec<u8> {
            format!("lost {lines}\n").into_bytes()
        }
    }

    fn mk_gate() -> (LineWriter, mpsc::Sender<bool>, mpsc::Receiver<String>) {
        let ((allow, allowed), (written_tx, written)) = (mpsc::channel(), mpsc::channel());
        let gate = Gate {
            allowed,
            written: written_tx,
        };
        (LineWriter::start("test", gate).unwrap(), allow, written)
    }

    #[test]
    fn stalled_output_delays_one_call_and_drops_what_exceeds_the_queue() {
        let (writer, allow, written) = mk_gate();
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        let began = Instant::now();
        writer.write_and_wait(b"first\n");
        assert!(began.elapsed() >= PATIENCE);
        let began = Instant::now();
        let more = u64::try_from(QUEUED_BYTES / line.len()).unwrap();
        for _ in 0..more + 7 {
            writer.write_and_wait(&line);
        }
        assert!(began.elapsed() < 20 * PATIENCE, "{:?}", began.elapsed());
        assert_eq!(writer.lost_lines(), 7);
        for _ in 0..3 {
            allow.send(true).unwrap();
        }
        writer.flush(Duration::from_secs(60));
        assert_eq!(written.recv().unwrap(), "first\n");
        assert_eq!(count(written.recv().unwrap().as_bytes()), more);
        assert_eq!(written.recv().unwrap(), "lost 7\n", "after the lines before them");
    }

    #[test]
    fn lines_that_fail_are_reported_when_the_output_works_again() {
        let (writer, allow, written) = mk_gate();
        allow.send(false).unwrap();
        writer.write_and_wait(b"a\n");
        for _ in 0..2 {
            allow.send(true).unwrap();
        }
        writer.write_and_wait(b"b\n");
        assert_eq!(
            [written.recv().unwrap(), written.recv().unwrap()],
            ["lost 1\n", "b\n"]
        );
        assert_eq!(writer.lost_lines(), 1);
    }

    #[test]
    fn queued_lines_are_written_after_the_writer_is_dropped() {
        let (writer, allow, written) = mk_gate();
        writer.write(b"a\n");
        drop(writer);
        allow.send(true).unwrap();
        assert_eq!(written.recv().unwrap(), "a\n");
        assert!(written.recv().is_err(), "the thread has ended");
    }
}
