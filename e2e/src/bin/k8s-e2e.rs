//! Kubernetes' External.Storage suite against the mock driver and csi-attacher on two real kubelets.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use csi_e2e::nodes::{RealNodes, SUITE_OVERLAY, init_main_if_requested, missing_requirement};
use csi_e2e::process::{Run, reaper_main_if_requested};
use csi_e2e::toolchain::{Settings, Toolchain, workspace_root};

/// Runs Kubernetes' External.Storage suite on two real kubelets.
#[derive(Debug, Parser)]
struct Args {
    /// A regular expression: only tests whose names match it after External.Storage.
    #[arg(default_value = "")]
    focus: String,
    /// Tests at a time.
    #[arg(long, default_value_t = 4)]
    processes: u16,
    /// Write the table to docs/conformance.md.
    #[arg(long)]
    write: bool,
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
    let mut programs = toolchain.build_node_programs().await?;
    let suite = toolchain.build_suite_programs().await?;
    programs.add_suite(&suite);
    let nodes = RealNodes::start(&run, &toolchain, programs, SUITE_OVERLAY).await?;
    let controller = nodes.deploy_for_suite(&toolchain, &suite).await?;
    say("the driver is ready; the suite begins");
    let (results, log) = nodes.run_suite(&suite, &args.focus, args.processes).await?;
    if !results.failures.is_empty() {
        run.keep_files()?;
    }
    say(&format!("{}\nlog: {}", results.table(), log.display()));
    if args.write {
        write_table(
            &workspace_root().join("docs/conformance.md"),
            args,
            &results.table(),
        )?;
    }
    drop(controller);
    nodes.stop().await?;
    drop(nodes);
    run.finish().await?;
    match results.failures.len() {
        0 => Ok(()),
        failed => bail!("{failed} tests failed"),
    }
}

fn write_table(file: &Path, args: &Args, table: &str) -> Result<()> {
    let focus = match args.focus.as_str() {
        "" => "all tests".to_owned(),
        focus => format!("the tests that match `{focus}`"),
    };
    let today = jiff::Zoned::now().date();
    let text = format!(
        "# Results of Kubernetes' storage suite\n\n\
         External.Storage of Kubernetes 1.36.3 with `deploy/e2e-suite/testdriver.yaml` on two real kubelets, {focus}, {today}. \
         Written by\n`cargo run -p csi-e2e --bin k8s-e2e -- --write`.\n\n{table}"
    );
    std::fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

/// A closed stderr is no error.
fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "csi-e2e: {line}"));
}
