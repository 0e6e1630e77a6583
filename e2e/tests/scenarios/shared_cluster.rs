//! The shared clusters of trials: each is started by the first trial that needs it and stopped after the last.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, anyhow, bail};
use csi_e2e::attacher::Kind;
use csi_e2e::cluster::{Backend, ClusterSettings};
use csi_e2e::control_plane::Options;
use csi_e2e::mutex::lock;
use csi_e2e::process::Run;
use csi_e2e::scenario::{self, ExpectedOutcome, Scenario, TestContext, dump};
use csi_e2e::toolchain::{Settings, Toolchain};
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, Semaphore};
use verdict::Missing;

use crate::permissions;

/// Number of scenarios with a control plane of their own at a time: each takes half a gigabyte.
const OWN_CONTROL_PLANES: usize = 2;

/// The cluster of a trial, and how the trial accesses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The embedded cluster.
    Embedded,
    /// The real control plane that the harness starts.
    ControlPlane,
    /// A kubeconfig: of the cluster in the settings, or else of the control plane.
    Kubeconfig,
}

/// Shared state of the trials. A failed start fails every trial with the same error and is not retried.
pub(crate) struct SharedCluster {
    runtime: Runtime,
    tools: OnceCell<Shared<(Arc<Run>, Toolchain)>>,
    embedded: OnceCell<Shared<TestContext>>,
    control_plane: OnceCell<Shared<TestContext>>,
    kubeconfig: OnceCell<Shared<TestContext>>,
    /// Permits for scenarios with a control plane of their own.
    own_control_planes: Semaphore,
    /// Scenarios that our attacher has passed on the control plane.
    passed: Mutex<BTreeSet<&'static str>>,
}

type Shared<T> = Result<T, String>;

// === impl SharedCluster ===

impl SharedCluster {
    /// Starts nothing yet, so that listing the trials is cheap.
    pub(crate) fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self {
            runtime,
            tools: OnceCell::new(),
            embedded: OnceCell::new(),
            control_plane: OnceCell::new(),
            kubeconfig: OnceCell::new(),
            own_control_planes: Semaphore::new(OWN_CONTROL_PLANES),
            passed: Mutex::default(),
        })
    }

    /// Runs a scenario and compares the outcome with the expected one of the attacher.
    pub(crate) fn run(&self, scenario: &'static Scenario, kind: Kind, access: Access) -> Result<()> {
        self.runtime.block_on(self.require_version(scenario, access))?;
        let prefix = match access {
            Access::Embedded => format!("em-{kind}-{}", scenario.name),
            Access::ControlPlane => format!("{kind}-{}", scenario.name),
            Access::Kubeconfig => format!("kc-{kind}-{}", scenario.name),
        };
        let outcome = match access.own_cluster(scenario) {
            Some(backend) => self.run_on_own_cluster(scenario, kind, backend, &prefix),
            None => self.runtime.block_on(async {
                let ctx = self.context(access).await?;
                let executed = scenario.execute(ctx, &prefix, kind).await;
                if scenario::RANDOMIZED
                    .iter()
                    .any(|randomized| randomized.name == scenario.name)
                {
                    executed.with_context(|| format!("repeat it with CSI_E2E_SEED={}", ctx.randomness().seed))
                } else {
                    executed
                }
            }),
        };
        let passed = outcome.is_ok() && kind == Kind::Ours && access == Access::ControlPlane;
        verify(outcome, scenario.expected_outcome(kind), &prefix)?;
        if passed {
            let mut passed = lock(&self.passed);
            passed.insert(scenario.name);
        }
        Ok(())
    }

    /// A scenario's own cluster has the Kubernetes version of the shared one.
    async fn require_version(&self, scenario: &Scenario, access: Access) -> Result<()> {
        if scenario.config.since.is_none() {
            return Ok(());
        }
        let ctx = self.context(access).await?;
        scenario.require_version(ctx.cluster()).await
    }

    fn run_on_own_cluster(
        &self,
        scenario: &'static Scenario,
        kind: Kind,
        backend: Backend,
        prefix: &str,
    ) -> Result<()> {
        self.runtime.block_on(async {
            let _permit = match backend.starts_processes() {
                true => Some(self.own_control_planes.acquire().await?),
                false => None,
            };
            let (run, toolchain) = self.tools().await?;
            let ctx = TestContext::open(run, toolchain, backend).await?;
            let executed = scenario.execute(&ctx, prefix, kind).await;
            let closed = ctx.close().await;
            executed.and(closed)
        })
    }

    /// Runs a trial that needs no cluster.
    pub(crate) fn block_on(&self, trial: impl Future<Output = Result<()>>) -> Result<()> {
        self.runtime.block_on(trial)
    }

    /// Verifies the used permissions, stops everything in order and checks that nothing is left.
    pub(crate) fn close(self) -> Result<()> {
        let permissions = self.verify_permissions();
        self.runtime.block_on(async {
            for ctx in [self.kubeconfig, self.control_plane, self.embedded] {
                if let Some(Ok(ctx)) = ctx.into_inner() {
                    ctx.close().await?;
                }
            }
            match self.tools.into_inner() {
                Some(Ok((run, _))) => run.finish().await,
                Some(Err(_)) | None => Ok(()),
            }
        })?;
        permissions
    }

    fn verify_permissions(&self) -> Result<()> {
        let Some(Ok(ctx)) = self.control_plane.get() else {
            return Ok(());
        };
        let passed = lock(&self.passed);
        let everything = scenario::ALL
            .iter()
            .all(|scenario| passed.contains(scenario.name));
        permissions::verify(ctx.cluster(), everything)
    }

    /// The run of all processes of the trials, and the toolchain of their programs.
    pub(crate) async fn tools(&self) -> Result<(&Arc<Run>, &Toolchain)> {
        let tools = self
            .tools
            .get_or_init(|| async {
                let run = Run::start().map_err(|error| format!("{error:#}"))?;
                let toolchain = Toolchain::new(&run, Settings::of_test());
                Ok((run, toolchain))
            })
            .await;
        let (run, toolchain) = tools.as_ref().map_err(|error| anyhow!("{error}"))?;
        Ok((run, toolchain))
    }

    /// The cluster that trials share.
    pub(crate) async fn context(&self, access: Access) -> Result<&TestContext> {
        let (run, toolchain) = self.tools().await?;
        let (cell, backend) = match access {
            Access::Embedded => (&self.embedded, access.backend()),
            Access::ControlPlane => (&self.control_plane, access.backend()),
            Access::Kubeconfig => {
                let path = match &toolchain.settings().kubeconfig {
                    Some(path) => path.clone(),
                    None => {
                        let started = Box::pin(self.context(Access::ControlPlane)).await?;
                        started.cluster().admin_kubeconfig().to_owned()
                    }
                };
                let path = Some(path);
                let backend = Backend::Kubeconfig { path, context: None };
                (&self.kubeconfig, Some(backend))
            }
        };
        let opened = cell
            .get_or_init(|| async {
                let backend = backend.expect("the harness must start the cluster or know its kubeconfig");
                let ctx = TestContext::open(run, toolchain, backend).await;
                ctx.map_err(|error| format!("there is no cluster to run on: {error:#}"))
            })
            .await;
        opened.as_ref().map_err(|error| anyhow!("{error}"))
    }
}

// === impl Access ===

impl Access {
    /// The cluster that the harness starts for this scenario alone; `None` if the scenario uses a shared one.
    pub(crate) fn own_cluster(self, scenario: &Scenario) -> Option<Backend> {
        self.backend()?.own_cluster(scenario.config.own_cluster?)
    }

    /// The shared cluster that the harness starts.
    fn backend(self) -> Option<Backend> {
        match self {
            Self::Embedded => Some(Backend::Embedded(ClusterSettings::DEFAULT)),
            Self::ControlPlane => Some(Backend::ControlPlane(Options {
                scheduler: true,
                audit: true,
                ..Options::default()
            })),
            Self::Kubeconfig => None,
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedded => "embedded",
            Self::ControlPlane => "control-plane",
            Self::Kubeconfig => "kubeconfig",
        })
    }
}

/// An expected failure is a pass; a pass where failure is expected is a failure, because the list would be
/// wrong.
fn verify(outcome: Result<()>, expected_outcome: ExpectedOutcome, prefix: &str) -> Result<()> {
    match (expected_outcome, outcome) {
        (_, Err(error)) if error.is::<Missing>() => Err(error),
        (ExpectedOutcome::Passes, outcome) => outcome,
        (
            ExpectedOutcome::Fails {
                issue,
                expected_error,
                ..
            },
            Err(error),
        ) => {
            let text = format!("{error:#}");
            if !text.contains(expected_error) {
                return Err(error.context(format!("it failed, but not with {issue} (\"{expected_error}\")")));
            }
            dump::discard(prefix)?;
            say(&format!(
                "{prefix}: failed as expected, {issue}: \"{expected_error}\""
            ));
            Ok(())
        }
        (
            ExpectedOutcome::Fails {
                issue, always: true, ..
            },
            Ok(()),
        ) => {
            bail!("it passed although {issue} makes it fail every time: is the list still right?")
        }
        (
            ExpectedOutcome::Fails {
                issue, always: false, ..
            },
            Ok(()),
        ) => {
            say(&format!(
                "{prefix}: passed; {issue} is a race and did not occur this time"
            ));
            Ok(())
        }
    }
}

/// Prints a progress line; a closed output is not an error.
fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// The exit code of a run that failed outside its trials.
pub(crate) fn fail(line: &str) -> ExitCode {
    say(line);
    ExitCode::FAILURE
}
