//! Conformance of external-attachers: runs any attacher's program against the contract.
//!
//! Each case has a driver, an attacher process, a volume and two nodes of its own. The attacher reaches the API server and the
//! driver through this process, which observes its writes and calls in the order in which they are executed. The cases only act
//! and wait; then all faults end, and the attacher has a bounded time to recover. The [contract](attacher_contract) judges.

mod api;
mod cases;
mod driver;
mod env;
mod observer;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use attacher_contract::Violation;
use futures::StreamExt as _;
use futures::stream;
use tokio::time::{Instant, timeout};

pub use cases::{CASES, Case};
use env::CaseEnv;
pub use table::{junit, markdown};

use crate::cluster::Cluster;
use crate::process::Run;

/// Cases at a time.
const AT_ONCE: usize = 6;
/// Timeout of one case.
const CASE_TIMEOUT: Duration = Duration::from_secs(90);

/// The attacher under test.
#[derive(Debug)]
pub struct Program {
    /// Its executable.
    pub path: PathBuf,
    /// Further flags.
    pub flags: &'static [&'static str],
    /// Whether it makes csi-attacher's promises.
    pub promises: bool,
}

/// The PersistentVolume of a case.
#[derive(Clone, Debug)]
pub struct VolumeShape {
    access_modes: &'static [&'static str],
    block: bool,
    read_only: bool,
    fs_type: &'static str,
    mount_options: &'static [&'static str],
    has_attributes: bool,
    secret: bool,
    foreign: bool,
}

/// The outcome of a case.
#[derive(Debug)]
pub struct Outcome {
    /// The case.
    pub case: &'static Case,
    /// The violations, or why the case could not be run.
    pub result: Result<Vec<Violation>>,
    /// How long it took.
    pub took: Duration,
}

// === impl VolumeShape ===

impl Default for VolumeShape {
    fn default() -> Self {
        Self {
            access_modes: &["ReadWriteOnce"],
            block: false,
            read_only: false,
            fs_type: "",
            mount_options: &[],
            has_attributes: false,
            secret: false,
            foreign: false,
        }
    }
}

impl VolumeShape {
    fn attributes(&self) -> BTreeMap<String, String> {
        let own = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        match self.has_attributes {
            true => [("pool", "fast"), ("tier", "1")].map(own).into(),
            false => BTreeMap::new(),
        }
    }
}

// === functions ===

/// Checks that the attacher can be run.
///
/// # Errors
/// It cannot be started, or does not connect to its driver.
pub async fn probe(run: &Arc<Run>, cluster: &Cluster, program: &Arc<Program>) -> Result<()> {
    let mut env = CaseEnv::new(run, cluster.client(), program, &CASES[0], CASES.len()).await?;
    let started = env.start_attacher().await;
    env.end().await?;
    started.with_context(|| format!("run {}", program.path.display()))
}

/// Runs the cases whose name contains `filter`, in the order of the table.
pub async fn run(run: &Arc<Run>, cluster: &Cluster, program: &Arc<Program>, filter: &str) -> Vec<Outcome> {
    let chosen = CASES
        .iter()
        .enumerate()
        .filter(|(_, case)| case.name.contains(filter));
    let outcomes = chosen.map(|(number, case)| async move {
        let began = Instant::now();
        let played = timeout(CASE_TIMEOUT, play(run, cluster, program, case, number)).await;
        let result = played.unwrap_or_else(|_| Err(anyhow::anyhow!("it took longer than {CASE_TIMEOUT:?}")));
        Outcome {
            case,
            result: result.with_context(|| format!("case {}", case.name)),
            took: began.elapsed(),
        }
    });
    stream::iter(outcomes).buffered(AT_ONCE).collect().await
}

async fn play(
    run: &Arc<Run>,
    cluster: &Cluster,
    program: &Arc<Program>,
    case: &'static Case,
    number: usize,
) -> Result<Vec<Violation>> {
    let mut env = CaseEnv::new(run, cluster.client(), program, case, number).await?;
    if case.runs {
        env.start_attacher().await?;
    }
    (case.run)(&mut env).await?;
    env.recover().await;
    env.clean_up().await?;
    let observer = env.end().await?;
    let violations = observer.contract().violations().to_vec();
    Ok(violations)
}
