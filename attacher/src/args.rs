//! The command line: the Go sidecar's flags, with their defaults and syntax.

pub(crate) mod duration;
mod election;
mod features;
mod go_style;
pub(crate) mod http;
mod kube_api;
mod kube_name;
mod logging;
mod number;
mod otlp;

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};

use crate::csi::Socket;
use crate::trace::Endpoint;
pub(crate) use election::Election;
pub(crate) use http::Http;
pub(crate) use kube_api::KubeApi;
pub(crate) use logging::LogFormat;
pub use logging::Logging;

/// Attaches CSI volumes to nodes: watches VolumeAttachments and calls ControllerPublishVolume and
/// ControllerUnpublishVolume of the CSI driver beside it.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(
    name = "csi-attacher",
    args_override_self = true,
    disable_version_flag = true,
    after_help = "The --attacher-* flags of the all-in-one sidecar (KEP-4958) are accepted, as in --attacher-timeout=30s.\n\n\
                  The kubectl plugin csi-attach explains where a volume is stuck: kubectl csi-attach explain --help"
)]
pub struct Args {
    /// Address of the CSI driver's socket: an absolute path, or unix:// and an absolute path.
    #[arg(long, default_value = "/run/csi/socket", value_name = "ADDRESS")]
    pub csi_address: Socket,

    /// Path to the kubeconfig file. Empty: the pod's service account.
    #[arg(long, default_value = "", value_parser = go_style::non_empty, value_name = "FILE")]
    pub(crate) kubeconfig: MaybeText,

    /// Resync period of the controller. 0 disables it.
    #[arg(long, default_value = "10m", value_parser = duration::not_negative, value_name = "DURATION")]
    pub(crate) resync: Duration,

    /// Timeout of each call to the CSI driver.
    #[arg(long, default_value = "15s", value_parser = duration::positive, value_name = "DURATION")]
    pub(crate) timeout: Duration,

    /// Initial retry interval of a failed attach or detach. It doubles with each failure, up to
    /// --retry-interval-max.
    #[arg(long, default_value = "1s", value_parser = duration::positive, value_name = "DURATION")]
    pub(crate) retry_interval_start: Duration,

    /// Maximum retry interval of a failed attach or detach. A tenth of it (but at least
    /// --retry-interval-start) applies after a gRPC code that leaves the result unknown, such as UNAVAILABLE.
    #[arg(long, default_value = "5m", value_parser = duration::positive, value_name = "DURATION")]
    pub(crate) retry_interval_max: Duration,

    /// Maximum number of concurrent attaches, and of concurrent detaches. Half as many repairs of lost attachments are added:
    /// N means up to 2.5 N driver calls at once, with the Go sidecar N. --max-driver-calls bounds their sum.
    #[arg(long, default_value = "10", value_parser = number::at_least_one, value_name = "N")]
    pub(crate) worker_threads: NonZeroUsize,

    /// Maximum number of concurrent attaches. Default: --worker-threads.
    #[arg(long, value_parser = number::at_least_one, value_name = "N")]
    pub(crate) attach_concurrency: Option<NonZeroUsize>,

    /// Maximum number of concurrent detaches. Default: --worker-threads.
    #[arg(long, value_parser = number::at_least_one, value_name = "N")]
    pub(crate) detach_concurrency: Option<NonZeroUsize>,

    /// Maximum number of concurrent attaches, detaches and repairs together. The value of --worker-threads allows what it
    /// allows with the Go sidecar. 0 means no limit besides those of attaches and detaches.
    #[arg(long, default_value = "0", value_name = "N")]
    pub(crate) max_driver_calls: usize,

    /// Lower the concurrency, per node and in total, while the driver refuses concurrent calls, and send one call at a time
    /// while the driver is down.
    #[arg(long, default_value = "true", action = ArgAction::Set)]
    pub(crate) adaptive_concurrency: bool,

    /// Resync period of the VolumeAttachment reconciler, which compares ListVolumes with the
    /// VolumeAttachments.
    #[arg(long, default_value = "1m", value_parser = duration::positive, value_name = "DURATION")]
    pub(crate) reconcile_sync: Duration,

    /// Assume that a volume is unpublished if for this long, and at least three times, the driver answered
    /// NOT_FOUND and either the CSINode object did not exist or ListVolumes did not show the volume; or if the
    /// driver reported no publish calls. A wrong assumption can destroy data. 0 means never.
    #[arg(long, default_value = "0s", value_parser = duration::not_negative, value_name = "DURATION")]
    pub(crate) assume_unpublished_after: Duration,

    /// Maximum number of entries per page of ListVolumes. 0 means no limit.
    #[arg(long, default_value = "0", value_parser = number::entries, value_name = "N")]
    pub(crate) max_entries: i32,

    /// Default filesystem type of volumes without one. Empty: the driver's default.
    #[arg(long = "default-fstype", default_value = "", value_name = "TYPE")]
    pub(crate) default_fs_type: String,

    /// Maximum time for running attaches and detaches to finish after SIGTERM. If one does not, the lease is
    /// not released, and the next replica waits until it expires.
    #[arg(long, default_value = "20s", value_parser = duration::not_negative, value_name = "DURATION")]
    pub(crate) shutdown_grace: Duration,

    /// Leader election.
    #[command(flatten)]
    pub(crate) election: Election,

    /// Client-side rate limit of requests to the API server.
    #[command(flatten)]
    pub(crate) kube_api: KubeApi,

    /// Metrics and health.
    #[command(flatten)]
    pub(crate) http: Http,

    /// URL of the OTLP/gRPC collector for traces, such as http://collector:4317 or https://collector:4317.
    /// Default: the value of OTEL_EXPORTER_OTLP_ENDPOINT.
    #[arg(long, default_value = "", value_parser = go_style::non_empty, value_name = "URL")]
    pub(crate) otlp_endpoint: MaybeText,

    /// Logs.
    #[command(flatten)]
    pub log: Logging,

    /// Maximum number of characters logged of a gRPC response. 0 or less means no limit.
    #[arg(long, default_value = "-1", value_parser = number::length, value_name = "N")]
    pub(crate) max_grpc_log_length: i64,

    /// Feature gates, such as ReleaseLeaderElectionOnExit=true.
    #[arg(long, value_name = "GATE=BOOL,...", action = ArgAction::Append)]
    feature_gates: Vec<features::Gates>,

    /// Ignored, because the attacher is single-threaded. Accepted for compatibility with the Go sidecar.
    #[arg(long, default_value = "false", action = ArgAction::Set)]
    pub(crate) automaxprocs: bool,

    /// Print the version and exit.
    #[arg(long, default_value = "false", action = ArgAction::Set)]
    pub version: bool,
}

/// A string flag; empty means unset.
pub(crate) type MaybeText = Option<String>;

// === impl Args ===

impl Args {
    /// Parses a command line, the program's name first.
    ///
    /// # Errors
    ///
    /// clap's error, also for `--help`: print it and exit with its code (0 or 2), as Go does.
    pub fn read(line: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Self::command().mut_args(go_style::argument);
        let line = go_style::rewritten(line, &command);
        if let Some(problem) = go_style::stray_word(&line, &command) {
            return Err(command.error(ErrorKind::UnknownArgument, problem));
        }
        let args = Self::from_arg_matches(&command.try_get_matches_from_mut(line)?)?;
        args.check()
            .map_err(|problem| command.error(ErrorKind::ValueValidation, problem))?;
        Ok(args)
    }

    /// Checks combinations of flags.
    fn check(&self) -> Result<(), String> {
        if self.retry_interval_max < self.retry_interval_start {
            return Err(format!(
                "--retry-interval-max ({:?}) is shorter than --retry-interval-start ({:?}): make it at least as long",
                self.retry_interval_max, self.retry_interval_start
            ));
        }
        otlp::endpoint(self.otlp_endpoint.as_deref(), None)?;
        self.election.check()?;
        self.http.check()
    }

    /// Whether errors in the status have the gRPC code (MutableCSINodeAllocatableCount).
    pub(crate) fn error_codes(&self) -> bool {
        features::error_codes(&self.feature_gates)
    }

    /// The trace collector, if any: `--otlp-endpoint`, else the environment's `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn collector(&self) -> Option<Endpoint> {
        let variable = otlp::from_environment(otlp::ENDPOINT);
        let endpoint = otlp::endpoint(self.otlp_endpoint.as_deref(), variable.as_deref())
            .expect("the flag must have been checked when it was read");
        let certificate = otlp::from_environment(otlp::CERTIFICATE).map(PathBuf::from);
        endpoint.map(|endpoint| endpoint.trusting(certificate))
    }

    /// Warnings about valid flags.
    pub fn warnings(&self) -> Vec<String> {
        let Self {
            http,
            kube_api,
            automaxprocs,
            timeout,
            shutdown_grace,
            ..
        } = self;
        let rules = [
            (
                timeout > shutdown_grace,
                "--shutdown-grace is shorter than --timeout: on SIGTERM, driver calls that take longer are cut off, and the \
                 next replica waits until the lease expires (without --leader-election it does not wait, and may call the \
                 driver for the same volume while the earlier call still runs)",
            ),
            (
                http.metrics_address.is_some(),
                "--metrics-address is deprecated: use --http-endpoint",
            ),
            (
                kube_api.burst.is_some() && kube_api.qps.is_none(),
                "--kube-api-burst has no effect without --kube-api-qps",
            ),
            (
                kube_api.rate().is_some(),
                "--kube-api-qps delays attaches, which take two requests each, and detaches; without it there is no limit \
                 (metric csi_attacher_api_rate_limiter_duration_seconds)",
            ),
            (
                http.has_tls() && http.health_endpoint.is_none(),
                "--http-endpoint serves TLS: its probes need scheme HTTPS, or the port of --health-endpoint",
            ),
            (
                *automaxprocs,
                "--automaxprocs has no effect: one thread does all the work",
            ),
        ];
        let given = rules.into_iter().filter(|(given, _)| *given);
        let of_variable = otlp::warning(
            self.otlp_endpoint.as_deref(),
            otlp::from_environment(otlp::ENDPOINT).as_deref(),
        );
        given
            .map(|(_, warning)| warning.to_owned())
            .chain(of_variable)
            .collect()
    }
}

#[cfg(test)]
mod tests;
