//! What runs a cluster. Nothing outside this folder asks which backend it is: to add one, add a variant of [`Backend`]
//! and of [`Running`], and answer its methods.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tokio::time::{Instant, sleep};

use super::{Cluster, copy_kubeconfig};
use crate::control_plane::{self, Component, ControlPlane, Request};
use crate::process::Run;
use crate::toolchain::Toolchain;

/// Pause between two looks at a log.
const LOG_POLL: Duration = Duration::from_millis(100);

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub enum Backend {
    /// The real control plane, started and stopped by the harness; nodes are simulated.
    ControlPlane(control_plane::Options),
    /// A cluster that runs already.
    Kubeconfig {
        /// The file; the usual places if not given.
        path: Option<PathBuf>,
        /// The context; the file's current one if not given.
        context: Option<String>,
    },
}

/// A backend that was started or found.
#[derive(Debug)]
pub(super) enum Running {
    ControlPlane(Box<ControlPlane>),
    Kubeconfig,
}

// === impl Running ===

impl Running {
    /// Starts or finds the cluster; returns the kubeconfig of its admin, too.
    pub(super) async fn start(
        run: &Arc<Run>,
        toolchain: &Toolchain,
        backend: Backend,
    ) -> Result<(Self, PathBuf)> {
        match backend {
            Backend::ControlPlane(options) => {
                let plane = ControlPlane::start(run, toolchain, &options).await?;
                let kubeconfig = plane.kubeconfig().to_owned();
                Ok((Self::ControlPlane(Box::new(plane)), kubeconfig))
            }
            Backend::Kubeconfig { path, context } => Ok((
                Self::Kubeconfig,
                copy_kubeconfig(path.as_deref(), context, run.dir())?,
            )),
        }
    }

    /// The components, if this process runs them.
    fn components(&self) -> Result<&ControlPlane> {
        match self {
            Self::ControlPlane(plane) => Ok(plane),
            Self::Kubeconfig => {
                bail!("the components of a cluster that the harness did not start are out of its reach")
            }
        }
    }
}

// === impl Cluster ===

impl Cluster {
    /// Kubeconfig with a cluster admin's rights.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.admin
    }

    /// Runs `work`; fails with last log lines if a component of the cluster exits meanwhile.
    pub async fn while_alive<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match &self.running {
            Running::ControlPlane(plane) => plane.while_alive(work).await,
            Running::Kubeconfig => work.await,
        }
    }

    /// Stops what [`Cluster::start`] started.
    pub async fn stop(&self) -> Result<()> {
        match &self.running {
            Running::ControlPlane(plane) => plane.stop().await,
            Running::Kubeconfig => Ok(()),
        }
    }

    /// Kills a component (SIGKILL), until [`Cluster::start_component`].
    ///
    /// # Errors
    /// It does not run, or the harness did not start it.
    pub async fn kill_component(&self, component: Component) -> Result<()> {
        self.running.components()?.kill(component).await
    }

    /// Starts a killed component again, on its port and with its data, and waits until it is ready.
    pub async fn start_component(&self, component: Component) -> Result<()> {
        self.running.components()?.start_component(component).await
    }

    /// Stops a component gracefully and starts it again.
    pub async fn restart_component(&self, component: Component) -> Result<()> {
        self.running.components()?.restart(component).await
    }

    /// Process id of a component that runs.
    pub fn component_pid(&self, component: Component) -> Result<Option<u32>> {
        Ok(self.running.components()?.pid(component))
    }

    /// The last `lines` of the log of each component that may log a scenario's objects, by the component's name.
    pub fn component_logs(&self, lines: usize) -> Vec<(&'static str, String)> {
        match &self.running {
            Running::ControlPlane(plane) => {
                let components = [Component::ControllerManager, Component::StandbyControllerManager];
                let log = |component: Component| (component.name(), plane.log_tail(component, lines));
                components.map(log).into()
            }
            Running::Kubeconfig => Vec::new(),
        }
    }

    /// The metrics of a component, in Prometheus' text format.
    pub async fn component_metrics(&self, component: Component) -> Result<String> {
        self.running.components()?.metrics(component).await
    }

    /// Waits until the log of a component has a line with all of `words`.
    pub async fn wait_for_component_log(
        &self,
        component: Component,
        words: &[&str],
        within: Duration,
    ) -> Result<()> {
        let plane = self.running.components()?;
        let deadline = Instant::now() + within;
        loop {
            let log = plane.log_tail(component, usize::MAX);
            if log
                .lines()
                .any(|line| words.iter().all(|word| line.contains(word)))
            {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "waited {within:?} for {} to log {words:?}",
                component.name()
            );
            // There is no event for a line in a file that another process writes.
            sleep(LOG_POLL).await;
        }
    }

    /// What service accounts requested of the API server so far; `None` without an audit log.
    pub fn audited_requests(&self) -> Result<Option<BTreeSet<Request>>> {
        match &self.running {
            Running::ControlPlane(plane) => plane.audited(),
            Running::Kubeconfig => Ok(None),
        }
    }
}
