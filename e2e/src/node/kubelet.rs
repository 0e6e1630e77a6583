//! The kubelet of a node: simulated or real.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use embedded_cluster::apiserver::Clock;
use embedded_cluster::driver_connection::DriverConnection;
use embedded_cluster::kubelet::{
    DEFAULT_NODE_STATUS_REPORT_FREQUENCY, KubeletConfig, KubeletProcess, NodeDisk,
};
use kube::Client;
use tokio::sync::watch;

use super::NodeSpec;
use super::mountless_driver::driver_without_mounts;
use crate::fixture::SCENARIO_LABEL;
use crate::nodes::RealNode;

/// The kubelet of a node.
pub(super) enum Kubelet {
    /// The kubelet of `embedded-cluster` in this process, with its own Node object.
    Simulated {
        config: Box<KubeletConfig>,
        /// `None` after a crash.
        process: Option<KubeletProcess>,
    },
    /// kubelet with containerd, which keeps running after the scenario.
    Real(Arc<RealNode>),
}

// === impl Kubelet ===

impl Kubelet {
    /// Starts a simulated kubelet. A real one is already running.
    pub(super) fn start(client: Client, spec: &NodeSpec<'_>) -> Self {
        if let Some(node) = &spec.real {
            return Self::Real(Arc::clone(node));
        }
        let (connection, disk) = match &spec.driver {
            Some(driver) => (
                DriverConnection::new(driver.channel()),
                NodeDisk::on(&driver.kubelet_dir()),
            ),
            None => (
                DriverConnection::new(driver_without_mounts(spec.driver_name, spec.node_id)),
                NodeDisk::in_memory(Path::new("/var/lib/kubelet")),
            ),
        };
        let config = KubeletConfig {
            client,
            clock: Clock::system(),
            name: spec.name.to_owned(),
            labels: BTreeMap::from([(SCENARIO_LABEL.to_owned(), spec.prefix.to_owned())]),
            driver: Some(connection),
            disk,
            node_status_report_frequency: DEFAULT_NODE_STATUS_REPORT_FREQUENCY,
            injected_bug: None,
        };
        Self::Simulated {
            process: Some(start(config.clone())),
            config: Box::new(config),
        }
    }

    /// Makes the containers of a running pod exit with this code.
    pub(super) fn exit_containers(&self, pod_uid: &str, code: i32) -> Result<()> {
        match self {
            Self::Simulated { process, .. } => {
                let process = process.as_ref().context("the kubelet does not run")?;
                process.exit_containers(pod_uid, code);
                Ok(())
            }
            Self::Real(_) => bail!("containers of a real node choose their exit codes"),
        }
    }

    pub(super) fn is_simulated(&self) -> bool {
        matches!(self, Self::Simulated { .. })
    }

    /// Makes a simulated kubelet register the driver. A real one watches the driver's registration socket.
    pub(super) fn register_driver(&self) {
        if let Self::Simulated {
            process: Some(process),
            ..
        } = self
        {
            process.register_driver();
        }
    }

    /// Stops it without a shutdown: it no longer unmounts, reports or sends heartbeats.
    pub(super) async fn crash(&mut self) -> Result<()> {
        match self {
            Self::Simulated { process, .. } => match process.take() {
                Some(process) => process.stop().await.context("the simulated kubelet panicked"),
                None => Ok(()),
            },
            Self::Real(node) => node.kill_kubelet().await,
        }
    }

    /// Starts it again after [`Self::crash`]; the mounts still exist.
    pub(super) fn recover(&mut self) -> Result<()> {
        match self {
            Self::Simulated { config, process } => {
                *process = Some(start(KubeletConfig::clone(config)));
                Ok(())
            }
            Self::Real(node) => node.start_kubelet(),
        }
    }
}

// === functions ===

/// Its panic is reported when it is stopped.
fn start(config: KubeletConfig) -> KubeletProcess {
    KubeletProcess::start(config, &watch::Sender::new(false))
}
