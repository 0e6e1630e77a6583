//! The `csi-attacher` binary.

use std::process::ExitCode;

use csi_attacher::args::Args;
use csi_attacher::{log, report, run};

// One thread is enough: the API server allows some thousand writes a second, a write costs us a tenth
// of a millisecond, and a second thread would cost memory and wake-ups in every pod.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = match Args::read(std::env::args_os()) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    if args.version {
        return log::version();
    }
    log::init(args.log.verbosity);
    for warning in args.warnings() {
        tracing::warn!("{warning}");
    }
    match run::run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = report::chain(&error), "exiting");
            ExitCode::FAILURE
        }
    }
}
