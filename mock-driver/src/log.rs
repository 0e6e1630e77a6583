use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::prelude::*;

use crate::line_writer::{LineWriter, Sink, count};

/// Maximum time to write the queued lines before the process ends.
const LAST_LINES: Duration = Duration::from_secs(2);

static WRITER: OnceLock<LineWriter> = OnceLock::new();

struct Stderr;

#[derive(Clone, Copy, Debug)]
struct Line(&'static LineWriter);

/// Starts the log, once in a process.
///
/// # Errors
/// Its thread cannot be started.
pub fn start(level: Level) -> io::Result<()> {
    let started = LineWriter::start("log", Stderr)?;
    let writer = Line(WRITER.get_or_init(|| started));
    let targets = Targets::new()
        .with_target("csi_mock_driver", level)
        .with_default(LevelFilter::WARN);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(false);
    tracing_subscriber::registry().with(lines).with(targets).init();
    Ok(())
}

/// Writes the queued lines, unless standard error is stalled.
pub fn flush() {
    if let Some(writer) = WRITER.get() {
        writer.flush(LAST_LINES);
    }
}

/// Number of lines that the log lacks because standard error was stalled.
pub(crate) fn lost_lines() -> u64 {
    WRITER.get().map_or(0, LineWriter::lost_lines)
}

// === impl Line ===

impl MakeWriter<'_> for Line {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

impl Write for Line {
    /// The log writes one line at a time.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Stderr ===

impl Sink for Stderr {
    fn write(&mut self, lines: &[u8]) -> u64 {
        match io::stderr().write_all(lines) {
            Ok(()) => 0,
            Err(_) => count(lines),
        }
    }

    fn lost(&self, lines: u64) -> Vec<u8> {
        format!("csi-mock-driver: {lines} lines of the log are lost: standard error was stalled\n")
            .into_bytes()
    }
}
