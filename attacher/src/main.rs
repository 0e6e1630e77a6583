//! The `csi-attacher` binary.

use std::process::ExitCode;

use csi_attacher::{args::Args, logging, manager, report, trace};

// musl's own allocator costs a third of the processor time: docs/adr/0006-release-profile.md.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

// One thread is enough: the API server allows some thousand writes a second, a write costs us a tenth
// of a millisecond, and a second thread would cost memory and wake-ups in every pod.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = match Args::read(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => return logging::unreadable(&error),
    };
    if args.version {
        return logging::version(std::env::args_os().next());
    }
    #[cfg(feature = "fips")]
    rustls::crypto::default_fips_provider()
        .install_default()
        .expect("nothing has used TLS yet");
    let traces = args
        .collector()
        .map(|collector| trace::to(&collector))
        .transpose();
    let (traces, untraced) = traces.map_or_else(|error| (None, Some(error)), |traces| (traces, None));
    let (traces, exporter) = traces.unzip();
    let _log = logging::init(&args.log, traces);
    if let Some(error) = untraced {
        tracing::warn!(error = report::chain(&error), "no traces are exported");
    }
    #[cfg(feature = "fips")]
    tracing::info!(
        fips = rustls::crypto::CryptoProvider::get_default().is_some_and(|provider| provider.fips()),
        "TLS uses AWS-LC-FIPS"
    );
    for warning in args.warnings() {
        tracing::warn!("{warning}");
    }
    match manager::run(args, exporter).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => logging::exit_with_error(&error),
    }
}
