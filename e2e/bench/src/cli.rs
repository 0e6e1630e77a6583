//! The command line of the benchmark.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use csi_e2e::process::Run;
use csi_e2e::toolchain::{Settings, Toolchain};
use tracing_subscriber::EnvFilter;

use crate::embedded::{self, Scale};
use crate::{Implementation, Plan, Report, Row, Sizes, baseline, goal};

/// Measures attachers side by side on a real control plane.
///
/// Prints a table for each row and whether the goals are met.
#[derive(Debug, Parser)]
#[command(name = "csi-bench")]
struct Args {
    /// Rows to measure.
    #[arg(long, value_delimiter = ',', default_values_t = Row::value_variants(), hide_default_value = true)]
    rows: Vec<Row>,
    /// Number of rounds. The tables show medians.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Smoke test: small sizes and one round, in a few minutes.
    #[arg(long)]
    quick: bool,
    /// Measure the embedded cluster instead: its API server, and the whole path of --volumes pods (default 100000, 1000
    /// with --quick) on nodes with 20 each.
    #[arg(long, conflicts_with_all = ["rows", "rounds", "samples", "rate", "implementations", "earlier", "csi_address", "json", "baseline"])]
    embedded: bool,
    /// Number of VolumeAttachments in the burst.
    #[arg(long)]
    volumes: Option<usize>,
    /// Number of VolumeAttachments created one by one for the latencies.
    #[arg(long)]
    samples: Option<usize>,
    /// Rate of these per second.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rate: Option<u32>,
    /// Seconds of an outage of the driver.
    #[arg(long)]
    outage: Option<u64>,
    /// Implementations to measure, in this order and in all rows: limit-N, ours-N, earlier-N or go-N with N
    /// concurrent volumes or workers, ours-default, earlier-default, go-default.
    #[arg(long, value_delimiter = ',')]
    implementations: Option<Vec<Implementation>>,
    /// Executable of an earlier build of csi-attacher, measured beside the current one.
    #[arg(long)]
    earlier: Option<PathBuf>,
    /// Socket of a running driver to use instead of the mock driver.
    #[arg(long)]
    csi_address: Option<PathBuf>,
    /// Write all figures to this JSON file, which can be a later run's baseline.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Compare the ratios to the Go attacher with those in this file, which --json wrote, and fail if one is worse by more than half.
    #[arg(long)]
    baseline: Option<PathBuf>,
}

/// Parses the arguments, measures, and prints the tables.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("warn,kube_client=off,csi_e2e=info,csi_bench=info"));
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

#[expect(clippy::print_stdout, reason = "the tables are what the program is for")]
async fn measure(args: Args) -> Result<()> {
    if args.embedded {
        let default = if args.quick { 1_000 } else { 100_000 };
        let scale = Scale::of(args.volumes.unwrap_or(default));
        let measured = embedded::measure(scale).await?;
        print!("{measured}\n{}", goal::markdown(&measured.goals()));
        return Ok(());
    }
    // Fails before the measurement, which takes hours.
    let earlier = args.baseline.as_deref().map(read).transpose()?;
    let plan = plan(&args);
    let run = Run::start()?;
    let toolchain = Toolchain::new(&run, Settings::from_env());
    let report = crate::run(&run, &toolchain, &plan).await;
    run.finish().await?;
    let report = report?;
    print!("{}{}", report.markdown(), goal::markdown(&goal::goals(&report)));
    let changes = earlier.map(|earlier| baseline::compare(&report, &earlier));
    if let Some(changes) = &changes {
        print!("{}", baseline::markdown(changes));
    }
    if let Some(path) = args.json {
        let text = serde_json::to_string_pretty(&report).context("write the figures as JSON")?;
        std::fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))?;
    }
    if !report.is_complete() {
        bail!("not everything could be measured");
    }
    changes.map_or(Ok(()), |changes| baseline::verify(&changes))
}

fn plan(args: &Args) -> Plan {
    let sizes = if args.quick { Sizes::quick() } else { Sizes::full() };
    let sizes = Sizes {
        burst: args.volumes.unwrap_or(sizes.burst),
        samples: args.samples.unwrap_or(sizes.samples),
        rate: args.rate.unwrap_or(sizes.rate),
        outage: args.outage.map_or(sizes.outage, Duration::from_secs),
        ..sizes
    };
    Plan {
        rows: args.rows.clone(),
        sizes,
        rounds: if args.quick { 1 } else { args.rounds as usize },
        implementations: args.implementations.clone(),
        earlier: args.earlier.clone(),
        csi_address: args.csi_address.clone(),
    }
}

fn read(path: &Path) -> Result<Report> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("read the baseline {} (--baseline)", path.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is no report of this bench (--baseline)", path.display()))
}
