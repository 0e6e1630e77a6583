//! The `csi-attacher` binary.

use std::process::ExitCode;

use csi_attacher::{args::Args, logging, manager, trace};

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
        return logging::version();
    }
    let (traces, exporter) = match args
        .collector()
        .map(|collector| trace::to(&collector))
        .transpose()
    {
        Ok(traces) => traces.unzip(),
        Err(error) => {
            let _log = logging::init(&args.log, None);
            return logging::last_words(&error);
        }
    };
    let _log = logging::init(&args.log, traces);
    for warning in args.warnings() {
        tracing::warn!("{warning}");
    }
    match manager::run(args, exporter).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => logging::last_words(&error),
    }
}
