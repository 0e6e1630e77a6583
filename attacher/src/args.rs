//! The command line: the Go sidecar's names and defaults, and its way of writing flags.

mod duration;
mod go_style;

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::csi::Socket;

/// Attaches CSI volumes to nodes: watches VolumeAttachments and calls ControllerPublishVolume and
/// ControllerUnpublishVolume of the CSI driver beside it.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "csi-attacher", args_override_self = true, disable_version_flag = true)]
pub struct Args {
    /// Socket of the CSI driver: an absolute path, or unix:// and an absolute path.
    #[arg(long, default_value = "/run/csi/socket", value_name = "ADDRESS")]
    pub csi_address: Socket,

    /// Kubeconfig file to use outside of a cluster. Empty: the service account of the pod.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path, value_name = "FILE")]
    pub kubeconfig: MaybePath,

    /// Deadline of each call to the CSI driver.
    #[arg(long, default_value = "15s", value_parser = duration::positive, value_name = "DURATION")]
    pub timeout: Duration,

    /// First pause before a failed attach or detach is tried again; it doubles with each failure.
    #[arg(long, default_value = "1s", value_parser = duration::positive, value_name = "DURATION")]
    pub retry_interval_start: Duration,

    /// Longest pause before a failed attach or detach is tried again.
    #[arg(long, default_value = "5m", value_parser = duration::positive, value_name = "DURATION")]
    pub retry_interval_max: Duration,

    /// How many attaches, and how many detaches, may run at once.
    #[arg(long, default_value = "10", value_name = "N")]
    pub worker_threads: NonZeroUsize,

    /// How many attaches may run at once, if not as many as --worker-threads.
    #[arg(long, value_name = "N")]
    pub attach_concurrency: Option<NonZeroUsize>,

    /// How many detaches may run at once, if not as many as --worker-threads.
    #[arg(long, value_name = "N")]
    pub detach_concurrency: Option<NonZeroUsize>,

    /// Filesystem type of volumes that name none. Empty: the driver chooses.
    #[arg(
        long = "default-fstype",
        default_value = "",
        hide_default_value = true,
        value_name = "TYPE"
    )]
    pub default_fs_type: String,

    /// How long attaches and detaches under way may go on after SIGTERM.
    #[arg(long, default_value = "20s", value_parser = duration::not_negative, value_name = "DURATION")]
    pub shutdown_grace: Duration,

    /// How much to log: 0 tells what changes and what fails, 2 every attach and detach, 5 every call.
    #[arg(short = None, long = "v", default_value = "0", value_name = "LEVEL")]
    pub verbosity: u8,

    /// Print the version and exit.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", hide_default_value = true, value_parser = go_style::boolean,
          action = clap::ArgAction::Set, value_name = "BOOL", hide_possible_values = true)]
    pub version: bool,
}

/// A path that may be empty, which means none.
pub type MaybePath = Option<PathBuf>;

// === impl Args ===

impl Args {
    /// Reads a command line, the program's name first.
    ///
    /// # Errors
    ///
    /// What clap has to say, `--help` included: print it and exit with its code (0 or 2), as Go does.
    pub fn read(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let line = go_style::rewritten(line, &command);
        let args = Self::from_arg_matches(&command.try_get_matches_from_mut(line)?)?;
        if args.retry_interval_max < args.retry_interval_start {
            return Err(command.error(
                ErrorKind::ValueValidation,
                format!(
                    "--retry-interval-max ({:?}) is shorter than --retry-interval-start ({:?}): make it at least as long",
                    args.retry_interval_max, args.retry_interval_start
                ),
            ));
        }
        Ok(args)
    }
}

/// Never fails; the type is what clap asks of a parser.
fn path(value: &str) -> Result<MaybePath, std::convert::Infallible> {
    Ok((!value.is_empty()).then(|| value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[&str]) -> Result<Args, clap::Error> {
        Args::read(std::iter::once(&"csi-attacher").chain(line).map(OsString::from))
    }

    #[test]
    fn defaults_are_those_of_the_go_sidecar() {
        let args = read(&[]).unwrap();
        assert_eq!(args.csi_address, "/run/csi/socket".parse().unwrap());
        assert_eq!(args.kubeconfig, None);
        assert_eq!(args.timeout, Duration::from_secs(15));
        assert_eq!(args.retry_interval_start, Duration::from_secs(1));
        assert_eq!(args.retry_interval_max, Duration::from_secs(300));
        assert_eq!(args.worker_threads.get(), 10);
        assert_eq!(args.default_fs_type, "");
        assert_eq!(args.verbosity, 0);
    }

    #[test]
    fn flags_are_written_as_in_go() {
        let expected = read(&["--timeout=1m30s", "--v=5", "--kubeconfig=/k"]).unwrap();
        for line in [
            &["-timeout=1m30s", "-v=5", "-kubeconfig=/k"][..],
            &["-timeout", "1m30s", "-v", "5", "-kubeconfig", "/k"],
            &[
                "--timeout",
                "1s",
                "--timeout",
                "90s",
                "--v",
                "5",
                "--kubeconfig",
                "/k",
            ],
        ] {
            assert_eq!(read(line).unwrap(), expected, "{line:?}");
        }
        assert!(read(&["-version"]).unwrap().version);
        assert!(read(&["--version=T"]).unwrap().version);
        assert!(!read(&["--version=false"]).unwrap().version);
    }

    #[test]
    fn bad_values_name_the_flag_and_end_with_code_2() {
        for (line, part) in [
            (&["--no-such-flag"][..], "--no-such-flag"),
            (&["--timeout=fast"], "--timeout"),
            (&["--timeout=0s"], "--timeout"),
            (&["--worker-threads=0"], "--worker-threads"),
            (&["--csi-address=tcp://127.0.0.1:1"], "--csi-address"),
            (
                &["--retry-interval-start=10s", "--retry-interval-max=1s"],
                "--retry-interval-max",
            ),
            (&["--version=perhaps"], "--version"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.to_string().contains(part), "{line:?}: {error}");
            assert_eq!(error.exit_code(), 2, "{line:?}");
        }
        for line in [&["--help"][..], &["-help"], &["-h"]] {
            assert_eq!(read(line).unwrap_err().exit_code(), 0, "{line:?}");
        }
    }
}
