//! A cluster of two real kubelets with the mock driver and csi-attacher from `deploy/`, until Ctrl-C; with `--build` it
//! only builds the programs.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use csi_e2e::nodes::{OVERLAY, ROOT_DIR, RealNodes, init_main_if_requested, missing_requirement};
use csi_e2e::process::{Run, reaper_main_if_requested};
use csi_e2e::toolchain::{Settings, Toolchain};

/// Runs two real kubelets with the mock driver and csi-attacher until Ctrl-C.
#[derive(Debug, Parser)]
struct Args {
    /// Only build all programs: half an hour on two cores from cold caches.
    #[arg(long)]
    build: bool,
}

fn main() -> ExitCode {
    reaper_main_if_requested();
    init_main_if_requested();
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ran = runtime
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(in_run(&args)));
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
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

/// A closed stderr is no error.
fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "csi-e2e: {line}"));
}
