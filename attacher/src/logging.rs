//! Logs in klog's text or JSON format, one line per event.
//!
//! | `-v` | logged |
//! |---|---|
//! | 0 | state changes, every attach and detach, failures, panics |
//! | 2 | every unpublish call and every retried request |
//! | 5 | every driver call with request and response |
//! | 8 | connections, as logged by other crates |
//!
//! Invariants: a line is written as a whole; a blocked stream stops only the log (see `dropped_lines`); no line contains
//! credentials at any level. The logged types ensure the latter; this module suppresses crates that may print the body of a
//! response, as kube's client does, which may be a Secret.

mod klog;
mod levels;
mod writer;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use jiff::Timestamp;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt};

use crate::args::{LogFormat, Logging};
use crate::report;
use crate::trace::TraceLayer;
use klog::{Klog, KlogFields};
use levels::Levels;
pub use writer::LogGuard;
pub(crate) use writer::dropped_lines;

/// The default of `terminationMessagePath`.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// kubelet's limit of a termination message.
const TERMINATION_MESSAGE_BYTES: usize = 4096;

/// Starts logging, also of panics, and recording of spans if there are `traces`. Dropping the guard flushes the log.
pub fn init(logging: &Logging, traces: Option<TraceLayer>) -> LogGuard {
    let split = match logging.format {
        LogFormat::Text => logging.text_split_stream,
        LogFormat::Json => logging.json_split_stream,
    };
    let (writer, guard) = writer::new(split);
    let klog = Klog {
        format: logging.format,
        clock: Timestamp::now,
    };
    let log = fmt::layer()
        .fmt_fields(KlogFields)
        .event_format(klog)
        .with_writer(writer)
        .with_filter(Levels::new(logging.verbosity, &logging.vmodule.0));
    Registry::default().with(traces).with(log).init();
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("no text");
        tracing::error!(place, panic = text, "panicked");
    }));
    if logging.text_info_buffer_size.0 > 0 || logging.json_info_buffer_size.0 > 0 {
        tracing::warn!(
            "--log-text-info-buffer-size and --log-json-info-buffer-size have no effect: lines are written at once"
        );
    }
    guard
}

/// Writes the error that ends the process to the log and the termination message.
pub fn exit_with_error(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    let words = report::chain(error);
    tracing::error!(error = words, "exiting");
    leave(Path::new(TERMINATION_LOG), &words);
    ExitCode::FAILURE
}

/// Prints an error of the command line, also as termination message, or the output of `--help`.
pub fn unreadable(error: &clap::Error) -> ExitCode {
    // A failure to print cannot be reported.
    error.print().ok();
    refuse(Path::new(TERMINATION_LOG), error)
}

fn refuse(path: &Path, error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        leave(path, error.render().to_string().trim_end());
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Writes the termination message. The file exists only in a container.
fn leave(path: &Path, words: &str) {
    let cut = &words[..words.floor_char_boundary(TERMINATION_MESSAGE_BYTES)];
    let file = std::fs::OpenOptions::new().write(true).truncate(true).open(path);
    match file.and_then(|mut file| file.write_all(cut.as_bytes())) {
        Ok(()) => {}
        Err(error) => tracing::debug!(%error, "cannot write the termination message"),
    }
}

/// Prints the name of the command and the version like the Go sidecar.
#[expect(clippy::print_stdout, reason = "the answer to --version")]
pub fn version(command: Option<OsString>) -> ExitCode {
    println!(
        "{} v{}",
        command.unwrap_or_default().display(),
        env!("CARGO_PKG_VERSION")
    );
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_a_termination_message_only_to_an_existing_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("termination-log");
        leave(&path, "no file");
        assert!(!path.exists());
        std::fs::write(&path, "older words that were longer").unwrap();
        leave(&path, "the driver is gone");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "the driver is gone");
        leave(&path, &"é".repeat(4096));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "é".repeat(2048));
    }

    #[test]
    fn bad_flags_write_a_termination_message_and_help_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("termination-log");
        std::fs::write(&path, "").unwrap();
        let line = |flag: &str| ["csi-attacher", flag].map(std::ffi::OsString::from);
        let read = |flag| crate::args::Args::read(line(flag)).unwrap_err();
        let help = refuse(&path, &read("--help"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        let bad = refuse(&path, &read("--worker-threads=0"));
        let message = std::fs::read_to_string(&path).unwrap();
        assert!(
            message.starts_with("error: invalid value '0'") && message.contains("--worker-threads"),
            "{message}"
        );
        let codes = [help, bad].map(|code| format!("{code:?}"));
        assert_eq!(
            codes,
            [ExitCode::SUCCESS, ExitCode::from(2)].map(|code| format!("{code:?}"))
        );
    }
}
