//! The control plane all trials share: started by the first trial that needs it, stopped after the last.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use csi_e2e::attacher::Kind;
use csi_e2e::cluster::Backend;
use csi_e2e::control_plane::{Component, Options};
use csi_e2e::dump;
use csi_e2e::process::Run;
use csi_e2e::scenario::{self, ExpectedOutcome, OwnCluster, Scenario, TestContext};
use csi_e2e::toolchain::{Settings, Toolchain};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use crate::rights;

/// The way a trial reaches the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// As the one who started the control plane, or with the kubeconfig the settings name.
    Own,
    /// As an unprivileged user to whom only the kubeconfig of the same cluster is known.
    Kubeconfig,
}

/// What trials share. A start that failed fails every trial with the same text and is not tried again.
pub(crate) struct SharedCluster {
    runtime: Runtime,
    tools: OnceCell<Shared<(Arc<Run>, Toolchain)>>,
    own: OnceCell<Shared<TestContext>>,
    kubeconfig: OnceCell<Shared<TestContext>>,
    /// Held by the one scenario that has a control plane of its own.
    own_cluster: Mutex<()>,
    /// Scenarios that our attacher has passed.
    passed: Mutex<BTreeSet<&'static str>>,
}

type Shared<T> = Result<T, String>;

// === impl SharedCluster ===

impl SharedCluster {
    /// Nothing is started yet: listing the trials should cost nothing.
    pub(crate) fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self {
            runtime,
            tools: OnceCell::new(),
            own: OnceCell::new(),
            kubeconfig: OnceCell::new(),
            own_cluster: Mutex::default(),
            passed: Mutex::default(),
        })
    }

    /// Runs a scenario and compares the outcome with what is known of the attacher.
    pub(crate) fn run(&self, scenario: &'static Scenario, kind: Kind, access: Access) -> Result<()> {
        let name = format!("{kind}-{}", scenario.name);
        let prefix = match access {
            Access::Own => name,
            Access::Kubeconfig => format!("kc-{name}"),
        };
        let outcome = match scenario.config.own_cluster {
            Some(own) => self.run_on_own_cluster(scenario, kind, own, &prefix),
            None => self.runtime.block_on(async {
                let ctx = self.ctx(access).await?;
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
        let ours_passed = kind == Kind::Ours && outcome.is_ok();
        verify(outcome, scenario.expected_outcome(kind), &prefix)?;
        if ours_passed {
            let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
            passed.insert(scenario.name);
        }
        Ok(())
    }

    fn run_on_own_cluster(
        &self,
        scenario: &'static Scenario,
        kind: Kind,
        own: OwnCluster,
        prefix: &str,
    ) -> Result<()> {
        // One at a time: a control plane takes half a gigabyte.
        let _guard = self.own_cluster.lock().unwrap_or_else(PoisonError::into_inner);
        self.runtime.block_on(async {
            let (run, toolchain) = self.tools().await?;
            let flags = own
                .controller_manager_flags
                .iter()
                .map(|&flag| flag.to_owned())
                .collect();
            let backend = Backend::ControlPlane(Options {
                scheduler: true,
                max_wait_for_unmount: own.max_wait_for_unmount,
                standby_controller_manager: own.standby_controller_manager,
                extra_flags: [(Component::ControllerManager, flags)].into(),
                ..Options::default()
            });
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

    /// Verifies the rights that were used, stops everything in order and makes sure that nothing is left.
    pub(crate) fn close(self) -> Result<()> {
        let rights = self.verify_rights();
        self.runtime.block_on(async {
            for ctx in [self.kubeconfig, self.own] {
                if let Some(Ok(ctx)) = ctx.into_inner() {
                    ctx.close().await?;
                }
            }
            match self.tools.into_inner() {
                Some(Ok((run, _))) => run.finish().await,
                Some(Err(_)) | None => Ok(()),
            }
        })?;
        rights
    }

    fn verify_rights(&self) -> Result<()> {
        let Some(Ok(ctx)) = self.own.get() else {
            return Ok(());
        };
        let passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let everything = scenario::ALL
            .iter()
            .all(|scenario| passed.contains(scenario.name));
        rights::verify(ctx.cluster(), everything)
    }

    /// The run all processes of the trials belong to, and the programs they are made of.
    pub(crate) async fn tools(&self) -> Result<(&Arc<Run>, &Toolchain)> {
        let tools = self
            .tools
            .get_or_init(|| async {
                let run = Run::start().map_err(|error| format!("{error:#}"))?;
                let toolchain = Toolchain::new(&run, Settings::from_env());
                Ok((run, toolchain))
            })
            .await;
        let (run, toolchain) = tools.as_ref().map_err(|error| anyhow!("{error}"))?;
        Ok((run, toolchain))
    }

    /// The cluster of all trials, for one that is no scenario.
    pub(crate) async fn own_context(&self) -> Result<&TestContext> {
        self.ctx(Access::Own).await
    }

    async fn ctx(&self, access: Access) -> Result<&TestContext> {
        let (run, toolchain) = self.tools().await?;
        let started = self
            .own
            .get_or_init(|| async {
                let ctx = TestContext::open(run, toolchain, backend(toolchain.settings())).await;
                ctx.map_err(|error| format!("there is no cluster to run on: {error:#}"))
            })
            .await;
        let started = started.as_ref().map_err(|error| anyhow!("{error}"))?;
        if access == Access::Own {
            return Ok(started);
        }
        let found = self
            .kubeconfig
            .get_or_init(|| async {
                let path = Some(started.cluster().admin_kubeconfig().to_owned());
                let ctx =
                    TestContext::open(run, toolchain, Backend::Kubeconfig { path, context: None }).await;
                ctx.map_err(|error| format!("the cluster was not found: {error:#}"))
            })
            .await;
        found.as_ref().map_err(|error| anyhow!("{error}"))
    }
}

/// The cluster the settings name, or else a control plane of our own.
fn backend(settings: &Settings) -> Backend {
    match &settings.kubeconfig {
        Some(path) => Backend::Kubeconfig {
            path: Some(path.clone()),
            context: None,
        },
        None => Backend::ControlPlane(Options {
            scheduler: true,
            audit: true,
            ..Options::default()
        }),
    }
}

/// A failure that is known is a pass, a pass where failure is certain is a failure: the list would be wrong.
fn verify(outcome: Result<()>, expected_outcome: ExpectedOutcome, prefix: &str) -> Result<()> {
    match (expected_outcome, outcome) {
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
                return Err(error.context(format!(
                    "it failed, but not because of {issue} (\"{expected_error}\")"
                )));
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

/// A line for the person who waits; one who has gone away is no reason to fail.
fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// The exit code of a run that failed outside its trials.
pub(crate) fn fail(line: &str) -> ExitCode {
    say(line);
    ExitCode::FAILURE
}
