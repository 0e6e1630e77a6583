//! The `kubectl-csi_attach` binary.

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    kubectl_csi_attach::run(std::env::args_os()).await
}
