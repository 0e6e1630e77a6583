//! Logs: one line an event, in klog's text form or as klog's JSON, so that whatever reads the Go
//! sidecar's log reads ours.
//!
//! | at `-v` | what is logged |
//! |---|---|
//! | 0 | changes of state, failures, panics |
//! | 2 | every attach and detach, every repeated request |
//! | 5 | every driver call with its request and answer |
//! | 8 | what other crates say of their connections |
//!
//! Invariants: a line is written as a whole; a stream that is blocked stops nothing but the log (see
//! [`dropped_lines`]); credentials are in no line at any level. The latter is the work of the types that are
//! logged; what this module adds is that crates which may print the body of an answer (kube's client does, and
//! an answer may be a Secret) are silent.

mod klog;
mod levels;
mod writer;

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
use klog::{Format, Klog, KlogFields};
use levels::Levels;
pub use writer::{LogGuard, dropped_lines};

/// Where Kubernetes looks for a container's last words (`terminationMessagePath`, by default).
const TERMINATION_LOG: &str = "/dev/termination-log";

/// Kubernetes shows no more of them.
const LAST_WORDS_BYTES: usize = 4096;

/// Starts to log, and to record spans if there are `traces`. From here on a panic is a line of the log, too.
/// The log ends when the guard is dropped.
pub fn init(logging: &Logging, traces: Option<TraceLayer>) -> LogGuard {
    let (format, split) = match logging.format {
        LogFormat::Text => (Format::Text, logging.text_split_stream),
        LogFormat::Json => (Format::Json, logging.json_split_stream),
    };
    let (writer, guard) = writer::new(split);
    let klog = Klog {
        format,
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

/// Tells why the process ends, in the log and where `kubectl describe pod` shows it.
pub fn last_words(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    let words = report::chain(error);
    tracing::error!(error = words, "exiting");
    leave(Path::new(TERMINATION_LOG), &words);
    ExitCode::FAILURE
}

/// Tells what is wrong with the command line, also where `kubectl describe pod` shows it: who meets a pod that
/// ends at once looks there first. Or answers `--help`.
pub fn unreadable(error: &clap::Error) -> ExitCode {
    // Nothing can read the error either.
    error.print().ok();
    refuse(Path::new(TERMINATION_LOG), error)
}

fn refuse(path: &Path, error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        leave(path, error.render().to_string().trim_end());
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Writes to the file, if there is one: in a container it exists, and nowhere else is it to be made.
fn leave(path: &Path, words: &str) {
    let cut = &words[..words.floor_char_boundary(LAST_WORDS_BYTES)];
    let file = std::fs::OpenOptions::new().write(true).truncate(true).open(path);
    match file.and_then(|mut file| file.write_all(cut.as_bytes())) {
        Ok(()) => {}
        Err(error) => tracing::debug!(%error, "there is no termination log to be written"),
    }
}

/// Prints what `--version` asks for, as the Go sidecar does: name and version on standard output.
#[expect(clippy::print_stdout, reason = "this is what was asked for")]
pub fn version() -> ExitCode {
    println!("csi-attacher v{}", env!("CARGO_PKG_VERSION"));
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_go_only_where_a_container_expects_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("termination-log");
        leave(&path, "nobody listens");
        assert!(!path.exists());
        std::fs::write(&path, "older words that were longer").unwrap();
        leave(&path, "the driver is gone");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "the driver is gone");
        leave(&path, &"é".repeat(4096));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "é".repeat(2048));
    }

    #[test]
    fn bad_flags_leave_last_words_too_and_help_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("termination-log");
        std::fs::write(&path, "").unwrap();
        let line = |flag: &str| ["csi-attacher", flag].map(std::ffi::OsString::from);
        let read = |flag| crate::args::Args::read(line(flag)).unwrap_err();
        let help = refuse(&path, &read("--help"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        let bad = refuse(&path, &read("--worker-threads=0"));
        let words = std::fs::read_to_string(&path).unwrap();
        assert!(
            words.starts_with("error: invalid value '0'") && words.contains("--worker-threads"),
            "{words}"
        );
        let codes = [help, bad].map(|code| format!("{code:?}"));
        assert_eq!(
            codes,
            [ExitCode::SUCCESS, ExitCode::from(2)].map(|code| format!("{code:?}"))
        );
    }
}
