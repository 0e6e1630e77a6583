//! A Kubernetes cluster as scenarios see it, whatever it is made of.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use kube::Client;
use kube::api::DynamicObject;

use crate::control_plane::{self, ControlPlane};
use crate::process::Run;
use crate::toolchain::Toolchain;

pub use metrics::Metrics;

mod metrics {
    /// Counters of the API server, by request.
    #[derive(Clone, Debug, Default)]
    pub struct Metrics {}

    impl Metrics {
        /// Requests answered so far, of any code.
        pub fn requests(&self, _verb: &str, _resource: &str, _subresource: &str) -> u64 {
            0
        }

        /// What was counted between `earlier` and `self`.
        #[must_use]
        pub fn since(&self, _earlier: &Self) -> Self {
            Self {}
        }
    }
}

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub enum Backend {
    /// The real control plane, started and stopped by the harness; nodes are stand-ins.
    ControlPlane(control_plane::Options),
    /// A cluster that is there already.
    Kubeconfig {
        /// The file; the usual places if not given.
        path: Option<PathBuf>,
        /// The context; the file's current one if not given.
        context: Option<String>,
    },
}

/// A cluster that is up, with `deploy/`'s roles and service account in it.
pub struct Cluster {
    client: Client,
}

impl Cluster {
    /// Starts or finds the cluster and applies the manifests of `deploy/`.
    pub async fn start(_run: &Arc<Run>, _toolchain: &Toolchain, _backend: Backend) -> Result<Self> {
        bail!("being written")
    }

    /// A client with a cluster admin's rights, for the harness; subjects never get it.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Kubeconfig with a cluster admin's rights.
    pub fn admin_kubeconfig(&self) -> &Path {
        Path::new("")
    }

    /// The control plane, if the harness started it.
    pub fn control_plane(&self) -> Option<&ControlPlane> {
        None
    }

    /// Runs `work` and gives it up with last log lines if the cluster dies meanwhile.
    pub async fn while_alive<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        work.await
    }

    /// Applies the objects of a YAML stream by server-side apply.
    pub async fn apply(&self, _manifests: &str) -> Result<Vec<DynamicObject>> {
        bail!("being written")
    }

    /// Makes a namespace and waits for its default service account.
    pub async fn create_namespace(&self, _name: &str) -> Result<()> {
        bail!("being written")
    }

    /// Makes a service account for an attacher in `namespace` and gives it exactly what `deploy/` gives its
    /// own; with `publish_secrets`, what its opt-in component adds too.
    pub async fn create_attacher_account(
        &self,
        _namespace: &str,
        _name: &str,
        _publish_secrets: bool,
    ) -> Result<()> {
        bail!("being written")
    }

    /// Removes what [`Cluster::create_attacher_account`] made outside the namespace.
    pub async fn delete_attacher_account(&self, _namespace: &str, _name: &str) -> Result<()> {
        bail!("being written")
    }

    /// Writes a kubeconfig file into `dir` with which a program acts as the service account.
    pub async fn service_account_kubeconfig(
        &self,
        _namespace: &str,
        _service_account: &str,
        _dir: &Path,
    ) -> Result<PathBuf> {
        bail!("being written")
    }

    /// What the API server has counted so far.
    pub async fn metrics(&self) -> Result<Metrics> {
        bail!("being written")
    }

    /// The objects on the attach path and the events, as YAML, for a failure dump: those in `namespace` and
    /// the cluster-scoped ones for which `keep` says so. Secrets are never listed.
    pub async fn dump(
        &self,
        _namespace: &str,
        _keep: &(dyn Fn(&DynamicObject) -> bool + Sync),
    ) -> Result<String> {
        bail!("being written")
    }

    /// Stops what [`Cluster::start`] started.
    pub async fn stop(self) -> Result<()> {
        Ok(())
    }
}
