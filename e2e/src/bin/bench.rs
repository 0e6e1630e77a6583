//! Our attacher and the Go one side by side: `cargo run --release -p csi-e2e --bin bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use csi_e2e::bench::{self, Contender, Plan, table};
use csi_e2e::process::{Run, warden_main_if_asked};
use csi_e2e::toolchain::{Settings, Toolchain};
use tracing_subscriber::EnvFilter;

/// Measures attachers side by side on a real control plane of their own.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Args {
    /// VolumeAttachments in the burst.
    #[arg(long, default_value_t = 2000)]
    volumes: usize,
    /// VolumeAttachments created one by one for the latencies.
    #[arg(long, default_value_t = 200)]
    samples: usize,
    /// How many of those a second.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: u32,
    /// How often everything is measured; the table shows medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Who is measured, in this order: limit-N, ours-N, go-N, N being volumes, attaches or workers at once.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "limit-16,limit-64,ours-10,ours-100,go-10,go-100"
    )]
    contenders: Vec<Contender>,
    /// Socket of a driver that runs already, to be used instead of the mock driver.
    #[arg(long)]
    csi_address: Option<PathBuf>,
    /// Write the table's figures here too, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    warden_main_if_asked();
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("warn,kube_client=off,csi_e2e=info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let measured = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(measure(args)));
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "the table is what the program is for")]
async fn measure(args: Args) -> Result<()> {
    let Args {
        volumes,
        samples,
        rate,
        rounds,
        contenders,
        csi_address,
        json,
    } = args;
    let plan = Plan {
        volumes,
        samples,
        rate,
        rounds,
        contenders,
        csi_address,
    };
    let run = Run::start()?;
    let toolchain = Toolchain::new(&run, Settings::from_env());
    let rows = bench::run(&run, &toolchain, &plan).await;
    run.finish().await?;
    let rows = rows?;
    println!("{}", table::markdown(&rows));
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&rows).context("write the figures as JSON")?;
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}
