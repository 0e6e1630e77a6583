//! The shared nodes of scenarios, started by the first and stopped after the last one.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use csi_e2e::attacher::Kind;
use csi_e2e::nodes::{OVERLAY, REAL_KUBELETS, ROOT_DIR, RealNodes, missing_requirement};
use csi_e2e::process::Run;
use csi_e2e::scenario::{self as path, TestContext};
use csi_e2e::toolchain::{NodePrograms, Settings, Toolchain};
use futures::future::LocalBoxFuture;
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use verdict::Missing;

use crate::env::Env;
use crate::restore::restore;

/// A scenario, as an async function of its environment.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) run: for<'a> fn(&'a Env<'a>) -> LocalBoxFuture<'a, Result<()>>,
}

pub(crate) struct SharedNodes {
    runtime: Runtime,
    started: OnceCell<Result<Start, String>>,
}

/// A run, with the toolchain and the programs to start nodes.
pub(crate) struct Prepared {
    pub(crate) run: Arc<Run>,
    pub(crate) toolchain: Toolchain,
    pub(crate) programs: NodePrograms,
}

enum Start {
    Skipped(Missing),
    Up(Box<Up>),
}

struct Up {
    run: Arc<Run>,
    nodes: RealNodes,
    /// For scenarios with their own driver and attacher.
    ctx: TestContext,
}

// === impl SharedNodes ===

impl SharedNodes {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            runtime: Runtime::new().context("start a runtime")?,
            started: OnceCell::new(),
        })
    }

    pub(crate) fn run(&self, scenario: &Scenario) -> Result<()> {
        self.runtime.block_on(async {
            let Up { run, nodes, .. } = self.up().await?;
            let env = Env::set_up(nodes, scenario.name).await?;
            let ran = nodes.while_alive((scenario.run)(&env)).await;
            let ran = match ran {
                Ok(()) => env.tear_down().await.context("after the scenario"),
                failed => failed,
            };
            if ran.is_err() {
                run.keep_files()?;
                let state = env.describe().await;
                // For the next scenario; the error of this one is already known.
                let restored = restore(nodes).await.and(env.tear_down().await);
                let state = match restored {
                    Ok(()) => state,
                    Err(error) => format!("{state}\nthe nodes were not restored: {error:#}"),
                };
                let dir = run.dir().display();
                return ran.with_context(|| format!("{state}\nall files are in {dir}"));
            }
            Ok(())
        })
    }

    /// Runs a scenario with its own driver and attacher.
    pub(crate) fn run_path(&self, scenario: &path::Scenario) -> Result<()> {
        self.runtime.block_on(async {
            let Up { run, ctx, .. } = self.up().await?;
            scenario.require_version(ctx.cluster()).await?;
            let prefix = format!("nodes-{}", scenario.name);
            let executed = scenario.execute(ctx, &prefix, Kind::Ours).await;
            if executed.is_err() {
                run.keep_files()?;
            }
            executed
        })
    }

    /// The started nodes. Fails with [`Missing`] if they cannot run here.
    async fn up(&self) -> Result<&Up> {
        match self.start().await? {
            Start::Skipped(missing) => Err(missing.clone().into()),
            Start::Up(up) => Ok(up),
        }
    }

    async fn start(&self) -> Result<&Start> {
        let started = self.started.get_or_init(|| async {
            let started = Start::begin().await;
            started.map_err(|error| format!("there are no nodes to run on: {error:#}"))
        });
        started.await.as_ref().map_err(|error| anyhow!("{error}"))
    }

    /// Runs a trial on separate nodes.
    pub(crate) fn run_alone(&self, trial: impl AsyncFnOnce(Prepared) -> Result<()>) -> Result<()> {
        self.runtime.block_on(async { trial(prepare().await??).await })
    }

    /// Stops everything and checks that nothing is left.
    pub(crate) fn close(self) -> Result<()> {
        self.runtime.block_on(async {
            if let Some(Ok(Start::Up(up))) = self.started.into_inner() {
                let Up { run, nodes, ctx } = *up;
                nodes.stop().await?;
                drop((nodes, ctx));
                run.finish().await?;
            }
            Ok(())
        })
    }
}

// === impl Start ===

impl Start {
    async fn begin() -> Result<Self> {
        let Prepared {
            run,
            toolchain,
            programs,
        } = match prepare().await? {
            Ok(prepared) => prepared,
            Err(missing) => return Ok(Self::Skipped(missing)),
        };
        let since = Instant::now();
        let nodes = RealNodes::start(&run, &toolchain, programs, OVERLAY, ROOT_DIR).await?;
        let ready = since.elapsed();
        nodes.deploy().await?;
        let deployed = since.elapsed() - ready;
        let line = format!("nodes ready after {ready:.1?}, driver and attacher after {deployed:.1?} more");
        drop(writeln!(std::io::stderr(), "{line}"));
        let ctx = TestContext::on_real_nodes(&run, &toolchain, &nodes).await?;
        Ok(Self::Up(Box::new(Up { run, nodes, ctx })))
    }
}

/// Finds the programs, or what is missing.
async fn prepare() -> Result<Result<Prepared, Missing>> {
    let settings = Settings::of_test();
    if let Some(missing) = missing_requirement(&settings) {
        return Ok(Err(missing));
    }
    let run = Run::start()?;
    let toolchain = Toolchain::new(&run, settings);
    match toolchain.built_node_programs().await? {
        Some(programs) => Ok(Ok(Prepared {
            run,
            toolchain,
            programs,
        })),
        None => {
            run.finish().await?;
            let (reason, cure) = (
                "the programs of real nodes are not built",
                "cargo run -p csi-e2e --bin nodes -- --build",
            );
            Ok(Err(Missing::new(REAL_KUBELETS, reason, cure)))
        }
    }
}
