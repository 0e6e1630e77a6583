//! Logging: to standard error, as text.

use tracing_subscriber::EnvFilter;

/// Starts logging at the verbosity of `--v`. What others' crates have to say about their insides is
/// left out below 8, and what kube's client says of answers that it cannot parse at every level: such
/// an answer may be a Secret.
pub fn init(verbosity: u8) {
    let filter = match verbosity {
        0 | 1 => "warn,kube_client=error,csi_attacher=info",
        2..=4 => "warn,kube_client=error,csi_attacher=debug",
        5..=7 => "warn,kube_client=error,csi_attacher=trace",
        8.. => "debug,kube_client::client=error,csi_attacher=trace",
    };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
}

/// Prints what `--version` asks for, as the Go sidecar does: name and version on standard output.
#[expect(clippy::print_stdout, reason = "this is what was asked for")]
pub fn version() -> std::process::ExitCode {
    println!("csi-attacher v{}", env!("CARGO_PKG_VERSION"));
    std::process::ExitCode::SUCCESS
}
