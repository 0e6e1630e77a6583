//! Conformance of an external-attacher: `cargo run -p csi-e2e --bin conform -- PATH-OF-ATTACHER [FLAGS]`.
//!
//! Exits with 0 if the attacher keeps every clause of the contract, with 1 if it violates one, and with 2 if it could not be run.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use csi_e2e::cluster::{Backend, Cluster, ClusterSettings};
use csi_e2e::conform::{self, CASES, Outcome, Program};
use csi_e2e::process::{Run, reaper_main_if_requested};
use csi_e2e::toolchain::{Settings, Toolchain};
use tracing_subscriber::EnvFilter;

/// Runs an external-attacher against the contract and prints a table of its clauses.
#[derive(Parser)]
#[command(
    after_help = "Exit code: 0 if no clause is violated, 1 if one is, 2 if the attacher could not be run."
)]
struct Args {
    /// Executable of the attacher.
    #[arg(value_name = "PATH-OF-ATTACHER", required_unless_present = "list")]
    attacher: Option<PathBuf>,
    /// Further flags of the attacher.
    #[arg(value_name = "FLAGS", allow_hyphen_values = true, trailing_var_arg = true)]
    flags: Vec<String>,
    /// Also check the promises that csi-attacher makes beyond the contract.
    #[arg(long)]
    promises: bool,
    /// Run only the cases whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Write the results as JUnit XML to this file.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Implementation of the cluster.
    #[arg(long, value_enum, default_value_t = ClusterKind::Embedded)]
    cluster: ClusterKind,
    /// Print every violation with the observations that prove it.
    #[arg(long)]
    evidence: bool,
    /// List the cases and exit.
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ClusterKind {
    /// API server and controllers in Rust, in this process.
    Embedded,
    /// etcd, kube-apiserver and kube-controller-manager. Needs Go; the first build takes 10 minutes.
    ControlPlane,
}

/// The attacher could not be run.
const NOT_RUN: u8 = 2;

fn main() -> ExitCode {
    reaper_main_if_requested();
    let args = Args::parse();
    if args.list {
        for case in CASES {
            say(&format!("{:<34} {}", case.name, case.about));
        }
        return ExitCode::SUCCESS;
    }
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error,kube_client=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let judged = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(judge(&args)));
    match judged {
        Ok(outcomes) => report(&args, &outcomes),
        Err(error) => {
            complain(&format!("conform: {error:#}"));
            ExitCode::from(NOT_RUN)
        }
    }
}

async fn judge(args: &Args) -> Result<Vec<Outcome>> {
    let path = args.attacher.clone().context("the attacher's path is missing")?;
    let path = path
        .canonicalize()
        .with_context(|| format!("find {}", path.display()))?;
    let flags: Vec<&'static str> = args.flags.iter().map(|flag| &*flag.clone().leak()).collect();
    let program = Arc::new(Program {
        path,
        flags: flags.leak(),
        promises: args.promises,
    });
    let run = Run::start()?;
    let toolchain = Toolchain::new(&run, Settings::from_env());
    let backend = match args.cluster {
        ClusterKind::Embedded => Backend::Embedded(ClusterSettings::DEFAULT),
        ClusterKind::ControlPlane => Backend::control_plane(ClusterSettings::DEFAULT),
    };
    let cluster = Cluster::start(&run, &toolchain, backend).await?;
    let judged = cluster
        .while_alive(async {
            conform::probe(&run, &cluster, &program).await?;
            Ok(conform::run(&run, &cluster, &program, &args.filter).await)
        })
        .await;
    let stopped = cluster.stop().await;
    let finished = run.finish().await;
    let outcomes = judged?;
    stopped.and(finished)?;
    Ok(outcomes)
}

fn report(args: &Args, outcomes: &[Outcome]) -> ExitCode {
    say(&conform::markdown(outcomes, args.promises));
    if args.evidence {
        for outcome in outcomes {
            for violation in outcome.result.iter().flatten() {
                say(&format!("{}: {violation}\n", outcome.case.name));
            }
        }
    }
    let failed: Vec<_> = outcomes
        .iter()
        .filter_map(|outcome| outcome.result.as_ref().err())
        .collect();
    for error in &failed {
        complain(&format!("conform: {error:#}"));
    }
    if let Some(path) = &args.junit
        && let Err(error) = std::fs::write(path, conform::junit(outcomes))
    {
        complain(&format!("conform: write {}: {error}", path.display()));
        return ExitCode::from(NOT_RUN);
    }
    let violated = outcomes
        .iter()
        .flat_map(|outcome| outcome.result.iter().flatten())
        .count();
    say(&format!(
        "{} cases, {violated} violations, {} not run",
        outcomes.len(),
        failed.len()
    ));
    match (failed.is_empty(), violated) {
        (false, _) => ExitCode::from(NOT_RUN),
        (true, 0) => ExitCode::SUCCESS,
        (true, _) => ExitCode::FAILURE,
    }
}

/// Prints; a closed output is no error.
fn say(text: &str) {
    drop(writeln!(std::io::stdout(), "{text}"));
}

fn complain(text: &str) {
    drop(writeln!(std::io::stderr(), "{text}"));
}
