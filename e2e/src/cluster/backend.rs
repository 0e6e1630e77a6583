//! Backends of a cluster. Code outside this folder selects a backend and calls its methods, but does not match on its variants:
//! to add one, add a variant of [`Backend`] and of [`Running`], and implement their methods.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use embedded_cluster::driver_connection::DriverConnection;
use futures::future::BoxFuture;
use kube::Client;

use super::embedded::{AttachDetachVolumes, Embedded};
use super::{Cluster, ClusterSettings, Series, copy_kubeconfig};
use crate::control_plane::{self, Component, ControlPlane, Request};
use crate::kubeconfig;
use crate::process::log::wait_for_lines;
use crate::process::{self, Run};
use crate::toolchain::{Peer, Toolchain};
use crate::wait::{self, Progress};

/// A backend of a cluster.
#[derive(Clone, Debug)]
pub enum Backend {
    /// API server and controllers of the crate `embedded-cluster`, in this process.
    Embedded(ClusterSettings),
    /// The real control plane, started and stopped by the harness.
    ControlPlane(control_plane::Options),
    /// A running cluster.
    Kubeconfig {
        /// The file; default: `KUBECONFIG` or `~/.kube/config`.
        path: Option<PathBuf>,
        /// The context; default: the file's current context.
        context: Option<String>,
    },
}

/// An external-provisioner.
pub enum Provisioner {
    /// A future that provisions volumes while it is polled.
    Future(BoxFuture<'static, ()>),
    /// A program with these flags in addition to those of every sidecar.
    Program {
        /// The program.
        peer: Peer,
        /// Its flags.
        flags: &'static [&'static str],
    },
}

/// A backend that was started or found.
pub(super) enum Running {
    Embedded(Embedded),
    ControlPlane(Box<ControlPlane>),
    Kubeconfig,
}

// === impl Backend ===

impl Backend {
    /// The real control plane with these settings.
    pub fn control_plane(settings: ClusterSettings) -> Self {
        Self::ControlPlane(settings.control_plane())
    }

    /// The backend to start for a scenario with these settings; `None` if the shared cluster has them, or if the harness
    /// cannot start one.
    pub fn own_cluster(&self, settings: ClusterSettings) -> Option<Self> {
        match self {
            Self::Embedded(_) => Some(Self::Embedded(settings)),
            Self::ControlPlane(_) if settings.needs_own_control_plane() => {
                Some(Self::control_plane(settings))
            }
            Self::ControlPlane(_) | Self::Kubeconfig { .. } => None,
        }
    }

    /// Whether the harness starts the cluster's components as processes. A few such clusters keep a machine busy, so callers limit
    /// how many run at once.
    pub fn starts_processes(&self) -> bool {
        matches!(self, Self::ControlPlane(_))
    }
}

// === impl Running ===

impl Running {
    /// Starts or finds the cluster; also returns an admin client and kubeconfig.
    pub(super) async fn start(
        run: &Arc<Run>,
        toolchain: &Toolchain,
        backend: Backend,
    ) -> Result<(Self, Client, PathBuf)> {
        let (running, admin) = match backend {
            Backend::Embedded(settings) => {
                let embedded = Embedded::start(run, settings).await?;
                let (client, admin) = (embedded.client(), embedded.kubeconfig().to_owned());
                return Ok((Self::Embedded(embedded), client, admin));
            }
            Backend::ControlPlane(options) => {
                let plane = ControlPlane::start(run, toolchain, &options).await?;
                let admin = plane.kubeconfig().to_owned();
                (Self::ControlPlane(Box::new(plane)), admin)
            }
            Backend::Kubeconfig { path, context } => {
                let admin = copy_kubeconfig(path.as_deref(), context, run.dir())?;
                (Self::Kubeconfig, admin)
            }
        };
        Ok((running, kubeconfig::client(&admin).await?, admin))
    }

    /// Whether the API server serves this API group. The embedded one does not authorize requests and does not serve the
    /// RBAC group.
    pub(super) fn serves(&self, group: &str) -> bool {
        match self {
            Self::Embedded(_) => !["policy", "rbac.authorization.k8s.io"].contains(&group),
            Self::ControlPlane(_) | Self::Kubeconfig => true,
        }
    }

    /// Whether the API server supports server-side apply.
    pub(super) fn has_server_side_apply(&self) -> bool {
        !matches!(self, Self::Embedded(_))
    }

    /// File with the log of a component.
    fn log(&self, component: Component) -> Result<PathBuf> {
        match self {
            Self::Embedded(embedded) => Ok(embedded.log().to_owned()),
            Self::ControlPlane(plane) => Ok(plane.log(component)),
            Self::Kubeconfig => out_of_reach(),
        }
    }
}

fn out_of_reach<T>() -> Result<T> {
    bail!("the components of a cluster that the harness did not start are out of its reach")
}

// === impl Cluster ===

impl Cluster {
    /// Kubeconfig with the permissions of a cluster admin.
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.admin
    }

    /// Runs `work`; fails with last log lines if a component of the cluster exits meanwhile.
    pub async fn while_alive<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match &self.running {
            Running::Embedded(embedded) => embedded.while_alive(work).await,
            Running::ControlPlane(plane) => plane.while_alive(work).await,
            Running::Kubeconfig => work.await,
        }
    }

    /// Whether the harness found the cluster, and leaves it running.
    pub(crate) fn is_existing(&self) -> bool {
        matches!(self.running, Running::Kubeconfig)
    }

    /// Stops the components that [`Cluster::start`] started. On a cluster that it found, deletes the objects that it created.
    pub async fn stop(&self) -> Result<()> {
        match &self.running {
            Running::Embedded(embedded) => embedded.stop().await,
            Running::ControlPlane(plane) => plane.stop().await?,
            Running::Kubeconfig => self.uninstall().await?,
        }
        Ok(())
    }

    /// Kills a component (SIGKILL), until [`Cluster::start_component`].
    ///
    /// # Errors
    /// It does not run, or the harness did not start it.
    pub async fn kill_component(&self, component: Component) -> Result<()> {
        match &self.running {
            Running::Embedded(embedded) => embedded.kill(component),
            Running::ControlPlane(plane) => plane.kill(component).await,
            Running::Kubeconfig => out_of_reach(),
        }
    }

    /// Starts a killed component again, on its port and with its data, and waits until it is ready.
    pub async fn start_component(&self, component: Component) -> Result<()> {
        match &self.running {
            Running::Embedded(embedded) => embedded.start_component(component),
            Running::ControlPlane(plane) => plane.start_component(component).await,
            Running::Kubeconfig => out_of_reach(),
        }
    }

    /// Stops a component and starts it again: a real one gracefully; the embedded controllers end as in a crash.
    pub async fn restart_component(&self, component: Component) -> Result<()> {
        match &self.running {
            Running::Embedded(embedded) => {
                embedded.kill(component)?;
                embedded.start_component(component)
            }
            Running::ControlPlane(plane) => plane.restart(component).await,
            Running::Kubeconfig => out_of_reach(),
        }
    }

    /// Saves a snapshot of etcd.
    ///
    /// # Errors
    /// The backend does not run etcd.
    pub async fn save_snapshot(&self) -> Result<PathBuf> {
        match &self.running {
            Running::ControlPlane(plane) => plane.save_snapshot().await,
            Running::Embedded(_) => bail!("an embedded cluster has no etcd"),
            Running::Kubeconfig => out_of_reach(),
        }
    }

    /// Restores a snapshot of etcd and starts the API server again; the controllers keep running.
    ///
    /// # Errors
    /// The backend does not run etcd.
    pub async fn restore_snapshot(&self, snapshot: &Path) -> Result<()> {
        match &self.running {
            Running::ControlPlane(plane) => plane.restore_snapshot(snapshot).await,
            Running::Embedded(_) => bail!("an embedded cluster has no etcd"),
            Running::Kubeconfig => out_of_reach(),
        }
    }

    /// Process id of a component that runs as a separate process.
    pub fn component_pid(&self, component: Component) -> Result<Option<u32>> {
        match &self.running {
            Running::Embedded(_) => Ok(None),
            Running::ControlPlane(plane) => Ok(plane.pid(component)),
            Running::Kubeconfig => out_of_reach(),
        }
    }

    /// The last mebibyte of the log of each component that logs about a scenario's objects, by the component's name.
    pub fn component_logs(&self) -> Vec<(&'static str, String)> {
        let tail = |log: &Path| process::tail(log, usize::MAX).unwrap_or_default();
        match &self.running {
            Running::Embedded(embedded) => vec![("embedded-controllers", tail(embedded.log()))],
            Running::ControlPlane(plane) => {
                let components = [Component::ControllerManager, Component::StandbyControllerManager];
                let log = |component: Component| (component.name(), tail(&plane.log(component)));
                components.map(log).into()
            }
            Running::Kubeconfig => Vec::new(),
        }
    }

    /// The metrics of a component, in Prometheus' text format. An embedded cluster has only those of the attach/detach
    /// controller.
    async fn component_metrics(&self, component: Component) -> Result<String> {
        match &self.running {
            Running::Embedded(embedded) => Ok(embedded.metrics()),
            Running::ControlPlane(plane) => plane.metrics(component).await,
            Running::Kubeconfig => out_of_reach(),
        }
    }

    /// Waits until the log of a component has a line with all of `words`.
    pub async fn wait_for_component_log(
        &self,
        component: Component,
        words: &[&str],
        within: Duration,
    ) -> Result<()> {
        let log = self.running.log(component)?;
        wait_for_lines(component.name(), &log, 0, words, 1, within).await
    }

    /// Waits until the log of a component has `count` more lines with all of `words`.
    pub async fn wait_for_more_component_logs(
        &self,
        component: Component,
        words: &[&str],
        count: usize,
        within: Duration,
    ) -> Result<()> {
        let log = self.running.log(component)?;
        let end = log.metadata().context("find the end of the log")?.len();
        wait_for_lines(component.name(), &log, end, words, count, within).await
    }

    /// Waits until all series have these values in the metrics of a component. A missing series counts as 0.
    ///
    /// # Errors
    /// Timeout, or a sample of the metrics is malformed.
    pub async fn wait_for_component_metrics(
        &self,
        component: Component,
        wanted: &[(Series, u64)],
        within: Duration,
    ) -> Result<()> {
        let what = format!("metrics of {}", component.name());
        wait::poll(within, &what, || async {
            let metrics = self.component_metrics(component).await?;
            let mut mismatches = Vec::new();
            for (series, value) in wanted {
                let found = series.value(&metrics)?;
                if found != *value {
                    mismatches.push((series, value, found));
                }
            }
            Ok(Progress::of(mismatches.is_empty(), || {
                format!("(series, wanted, found): {mismatches:?}")
            }))
        })
        .await
    }

    /// The desired and actual state of world of the attach/detach controller, if it runs in this process.
    pub fn attach_detach_volumes(&self) -> Option<AttachDetachVolumes> {
        match &self.running {
            Running::Embedded(embedded) => Some(embedded.attach_detach_volumes()),
            Running::ControlPlane(_) | Running::Kubeconfig => None,
        }
    }

    /// The external-provisioner for the cluster, with this driver.
    pub fn provisioner(&self, driver: DriverConnection) -> Provisioner {
        match &self.running {
            Running::Embedded(embedded) => Provisioner::Future(embedded.provisioner(driver)),
            Running::ControlPlane(_) | Running::Kubeconfig => Provisioner::Program {
                peer: Peer::ExternalProvisioner,
                flags: &["--default-fstype=ext4", "--retry-interval-start=200ms"],
            },
        }
    }

    /// Makes the API server reject, or allow, the controllers' patches of a resource, if the backend does this by a
    /// fault rule instead of a permission.
    pub(super) fn deny_by_fault(&self, resource: &str, denied: bool) -> bool {
        match &self.running {
            Running::Embedded(embedded) => embedded.deny_patches(resource, denied),
            Running::ControlPlane(_) | Running::Kubeconfig => return false,
        }
        true
    }

    /// The requests of ServiceAccounts so far; `None` without an audit log.
    pub fn audited_requests(&self) -> Result<Option<BTreeSet<Request>>> {
        match &self.running {
            Running::ControlPlane(plane) => plane.audited(),
            Running::Embedded(_) | Running::Kubeconfig => Ok(None),
        }
    }
}
