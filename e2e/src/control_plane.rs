//! A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager and, if asked
//! for, kube-scheduler.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};

use crate::process::{Run, Usage};
use crate::toolchain::Toolchain;

/// What to start besides etcd, kube-apiserver and kube-controller-manager.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Start kube-scheduler too.
    pub scheduler: bool,
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    kubeconfig: PathBuf,
}

/// A program of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The store.
    Etcd,
    /// The API server.
    ApiServer,
    /// The controllers, the attach/detach controller among them.
    ControllerManager,
    /// The scheduler.
    Scheduler,
}

impl ControlPlane {
    /// Starts everything and waits until it is ready.
    pub async fn start(_run: &Arc<Run>, _toolchain: &Toolchain, _options: &Options) -> Result<Self> {
        bail!("being written")
    }

    /// Kubeconfig of a cluster admin.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// An error with the last log lines if a program has died.
    pub fn ensure_alive(&self) -> Result<()> {
        Ok(())
    }

    /// Runs `work` and gives it up if a program dies meanwhile (a restart through this type does not count).
    pub async fn while_alive<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        work.await
    }

    /// Kills a program (-9) and leaves it dead until [`ControlPlane::revive`].
    pub async fn kill(&self, _component: Component) -> Result<()> {
        bail!("being written")
    }

    /// Starts a program that was killed, on its old port, and waits until it is ready.
    pub async fn revive(&self, _component: Component) -> Result<()> {
        bail!("being written")
    }

    /// Stops a program gracefully and starts it again.
    pub async fn restart(&self, _component: Component) -> Result<()> {
        bail!("being written")
    }

    /// Processor time and memory of a program.
    pub fn usage(&self, _component: Component) -> Option<Usage> {
        None
    }

    /// The last lines of a program's log.
    pub fn log_tail(&self, _component: Component, _lines: usize) -> String {
        String::new()
    }

    /// Stops everything, in the order in which nothing hangs.
    pub async fn stop(self) -> Result<()> {
        Ok(())
    }
}
