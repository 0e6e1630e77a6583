//! A cluster of two real kubelets with the mock driver and csi-attacher from `deploy/`, until Ctrl-C; with `--build` it
//! only builds the programs.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use csi_e2e::nodes::{OVERLAY, ROOT_DIR, RealNodes, missing_requirement, program_main, say};
use csi_e2e::process::Run;
use csi_e2e::toolchain::{Settings, Toolchain};

/// Runs two real kubelets with the mock driver and csi-attacher until Ctrl-C.
#[derive(Debug, Parser)]
struct Args {
    /// Only build all programs: half an hour on two cores from cold caches.
    #[arg(long)]
    build: bool,
}

fn main() -> ExitCode {
    program_main(in_run)
}

async fn in_run(args: &Args) -> Result<()> {
    let settings = Settings::from_env();
    if let Some(reason) = missing_requirement(&settings) {
        bail!("{reason}");
    }
    let run = Run::start()?;
    let toolchain = Toolchain::new(&run, settings);
    let programs = toolchain.build_node_programs().await?;
    if !args.build {
        let nodes = RealNodes::start(&run, &toolchain, programs, OVERLAY, ROOT_DIR).await?;
        nodes.deploy().await?;
        say(&format!(
            "two nodes are ready: kubectl --kubeconfig {} get pods -A; Ctrl-C ends them",
            nodes.cluster().admin_kubeconfig().display()
        ));
        let interrupted = async { tokio::signal::ctrl_c().await.context("wait for Ctrl-C") };
        nodes.while_alive(interrupted).await?;
        nodes.stop().await?;
    }
    run.finish().await
}
