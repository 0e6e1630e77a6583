//! The flags of klog, which Go programs have. They are accepted, so that command lines need not change; those without effect
//! are logged.

use clap::Args;

use super::value::switch;

/// Flags of klog other than `-v`. The log goes to stderr, whole and always.
#[derive(Args, Clone, Debug)]
pub struct KlogArgs {
    /// Whether the log goes to stderr only.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    logtostderr: Option<bool>,

    /// Whether the log goes to stderr, too.
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    alsologtostderr: Option<bool>,

    /// The directory of files with the log.
    #[arg(long = "log_dir", hide = true)]
    log_dir: Option<String>,

    /// The file with the log.
    #[arg(long = "log_file", hide = true)]
    log_file: Option<String>,

    /// How long that may get.
    #[arg(long = "log_file_max_size", hide = true)]
    log_file_max_size: Option<u64>,

    /// Which lines in files go to stderr, too.
    #[arg(long, hide = true)]
    stderrthreshold: Option<String>,

    /// Which lines in files go to stderr, too.
    #[arg(long, hide = true)]
    alsologtostderrthreshold: Option<String>,

    /// Whether that holds without files.
    #[arg(long = "legacy_stderr_threshold_behavior", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    legacy_stderr_threshold_behavior: Option<bool>,

    /// Whether lines go to the file of their severity only.
    #[arg(long = "one_output", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    one_output: Option<bool>,

    /// Whether lines name the directory of their source.
    #[arg(long = "add_dir_header", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    add_dir_header: Option<bool>,

    /// Whether lines are without time and source.
    #[arg(long = "skip_headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    skip_headers: Option<bool>,

    /// Whether files begin without a header.
    #[arg(long = "skip_log_headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = switch)]
    skip_log_headers: Option<bool>,

    /// How much single files log.
    #[arg(long, hide = true)]
    vmodule: Option<String>,

    /// At which line to log a backtrace.
    #[arg(long = "log_backtrace_at", hide = true)]
    log_backtrace_at: Option<String>,
}

// === impl KlogArgs ===

impl KlogArgs {
    /// Requested behaviour that is not implemented.
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
