//! The flags of klog, which Go programs have. They are accepted, so that command lines need not change; those without effect
//! are logged.

use clap::Args;

use super::value::switch;

/// Flags of klog other than `-v`, and `--automaxprocs`, which Go programs have, too. The log goes to stderr, whole and always.
#[derive(Args, Clone, Debug)]
pub(crate) struct KlogArgs {
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    logtostderr: Option<bool>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    alsologtostderr: Option<bool>,
    #[arg(long = "log_dir", hide = true)]
    log_dir: Option<String>,
    #[arg(long = "log_file", hide = true)]
    log_file: Option<String>,
    #[arg(long = "log_file_max_size", hide = true)]
    log_file_max_size: Option<u64>,
    #[arg(long, hide = true)]
    stderrthreshold: Option<String>,
    #[arg(long, hide = true)]
    alsologtostderrthreshold: Option<String>,
    #[arg(long = "legacy_stderr_threshold_behavior", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    legacy_stderr_threshold_behavior: Option<bool>,
    #[arg(long = "one_output", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    one_output: Option<bool>,
    #[arg(long = "add_dir_header", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    add_dir_header: Option<bool>,
    #[arg(long = "skip_headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    skip_headers: Option<bool>,
    #[arg(long = "skip_log_headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    skip_log_headers: Option<bool>,
    #[arg(long, hide = true)]
    vmodule: Option<String>,
    #[arg(long = "log_backtrace_at", hide = true)]
    log_backtrace_at: Option<String>,

    /// The number of threads always follows the number of cores, including the container's CPU limit.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    automaxprocs: Option<bool>,
}

// === impl KlogArgs ===

impl KlogArgs {
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let on = |flag: Option<bool>| flag == Some(true);
        let set = |flag: &Option<String>| flag.as_ref().is_some_and(|text| !text.is_empty());
        [
            ("logtostderr", self.logtostderr == Some(false)),
            ("log_dir", set(&self.log_dir)),
            ("log_file", set(&self.log_file)),
            ("log_file_max_size", self.log_file_max_size.is_some()),
            ("stderrthreshold", set(&self.stderrthreshold)),
            ("alsologtostderrthreshold", set(&self.alsologtostderrthreshold)),
            (
                "legacy_stderr_threshold_behavior",
                self.legacy_stderr_threshold_behavior == Some(false),
            ),
            ("one_output", on(self.one_output)),
            ("add_dir_header", on(self.add_dir_header)),
            ("skip_headers", on(self.skip_headers)),
            ("skip_log_headers", on(self.skip_log_headers)),
            ("vmodule", set(&self.vmodule)),
            ("log_backtrace_at", set(&self.log_backtrace_at)),
        ]
        .into_iter()
        .filter(|(_, is_asked)| *is_asked)
        .map(|(name, _)| {
            format!("--{name}: has no effect, the log goes to stderr as it is; -v says how much")
        })
    }
}
