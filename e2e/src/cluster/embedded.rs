//! The embedded cluster as a backend: API server and controllers in this process. The API server also listens on a
//! loopback port.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use embedded_cluster::apiserver::{Fault, Rule, Status};
use embedded_cluster::attach_detach::{AttachDetachOptions, ForceDetach, VolumeView};
use embedded_cluster::cluster::{CONTROLLERS, ClusterOptions, EmbeddedCluster};
use embedded_cluster::driver_connection::DriverConnection;
use embedded_cluster::volume::UniqueVolumeName;
use futures::future::BoxFuture;
use kube::Client;
use kube::config::Kubeconfig;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::Dispatch;
use tracing_subscriber::EnvFilter;

use super::ClusterSettings;
use crate::control_plane::Component;
use crate::kubeconfig;
use crate::mutex::lock;
use crate::process::Run;

/// Lease duration of kube-controller-manager, after which the standby replaces a killed one.
const LEASE_DURATION: Duration = Duration::from_secs(2);

/// Each volume on each node in the desired and actual state of world of the attach/detach controller.
pub type AttachDetachVolumes = BTreeMap<(UniqueVolumeName, String), VolumeView>;

/// A running embedded cluster.
pub(super) struct Embedded {
    kubeconfig: PathBuf,
    log: PathBuf,
    client: Client,
    has_standby: bool,
    state: Arc<Mutex<State>>,
    /// The API server's listener, and the start of the standby.
    tasks: Mutex<JoinSet<()>>,
}

struct State {
    cluster: EmbeddedCluster,
    /// The leading replica of kube-controller-manager.
    leader: Option<Component>,
    is_api_server_down: bool,
    is_store_down: bool,
    /// Resources whose patches by the controllers are rejected.
    denied: BTreeSet<String>,
}

/// Without etcd, kube-apiserver serves only watches, from its watch cache.
const VERBS_OF_STORE: &[&str] = &[
    "get",
    "list",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

// === impl Embedded ===

impl Embedded {
    /// Starts the cluster, which is ready immediately.
    ///
    /// # Errors
    /// No port could be bound, or a file could not be written.
    pub(super) async fn start(run: &Run, settings: ClusterSettings) -> Result<Self> {
        let dir = run.new_subdir("embedded-cluster")?;
        let log = dir.join("controllers.log");
        let options = ClusterOptions::default();
        let options = ClusterOptions {
            attach_detach: attach_detach_options(settings, options.attach_detach),
            node_monitor_grace_period: settings
                .node_monitor_grace_period
                .unwrap_or(options.node_monitor_grace_period),
            log: Some(file_log(&log)?),
            ..options
        };
        let cluster = EmbeddedCluster::start(options);
        let listener = cluster.api_server().serve(0).await.context("serve the API")?;
        let kubeconfig = dir.join("admin.kubeconfig");
        let admin =
            Kubeconfig::from_yaml(&listener.kubeconfig().yaml).context("understand the kubeconfig")?;
        kubeconfig::save(&kubeconfig, &admin)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(listener.run());
        Ok(Self {
            kubeconfig,
            log,
            client: cluster.client(),
            has_standby: settings.standby_controller_manager,
            state: Arc::new(Mutex::new(State {
                cluster,
                leader: Some(Component::ControllerManager),
                is_api_server_down: false,
                is_store_down: false,
                denied: BTreeSet::new(),
            })),
            tasks: Mutex::new(tasks),
        })
    }

    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client of the API server in this process.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Runs `work`; fails if a controller panics meanwhile.
    pub(super) async fn while_alive<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut panicked = self.state().cluster.panicked();
        tokio::select! {
            biased;
            result = work => result,
            // The sender lives as long as the cluster.
            Ok(_) = panicked.wait_for(|panicked| *panicked) => bail!("a controller of the embedded cluster panicked"),
        }
    }

    /// Stops the leader, breaks all connections to the API server, or makes its storage fail.
    ///
    /// # Errors
    /// It does not run, or is not a component of an embedded cluster.
    pub(super) fn kill(&self, component: Component) -> Result<()> {
        let mut state = self.state();
        match component {
            Component::ApiServer => {
                ensure!(!state.is_api_server_down, "{} does not run", component.name());
                state.is_api_server_down = true;
                state.cluster.api_server().set_down(true);
            }
            Component::ControllerManager | Component::StandbyControllerManager => {
                ensure!(
                    state.leader == Some(component),
                    "{} does not lead",
                    component.name()
                );
                state.leader = None;
                state.cluster.crash_controllers();
                if component == Component::ControllerManager && self.has_standby {
                    let state = Arc::clone(&self.state);
                    lock(&self.tasks).spawn(async move {
                        sleep(LEASE_DURATION).await;
                        lock(&state).start_controllers(Component::StandbyControllerManager);
                    });
                }
            }
            Component::Etcd => {
                ensure!(!state.is_store_down, "{} does not run", component.name());
                state.is_store_down = true;
                state.set_faults();
            }
            Component::Scheduler => bail!("{} is not embedded by itself", component.name()),
        }
        Ok(())
    }

    /// Starts a killed component again.
    ///
    /// # Errors
    /// It already runs, or is not a component of an embedded cluster.
    pub(super) fn start_component(&self, component: Component) -> Result<()> {
        let mut state = self.state();
        match component {
            Component::ApiServer => {
                ensure!(state.is_api_server_down, "{} runs already", component.name());
                state.is_api_server_down = false;
                state.cluster.api_server().set_down(false);
            }
            Component::ControllerManager | Component::StandbyControllerManager => {
                ensure!(state.leader.is_none(), "{} leads already", component.name());
                state.start_controllers(component);
            }
            Component::Etcd => {
                ensure!(state.is_store_down, "{} runs already", component.name());
                state.is_store_down = false;
                state.set_faults();
            }
            Component::Scheduler => bail!("{} is not embedded by itself", component.name()),
        }
        Ok(())
    }

    /// Rejects, or allows, the controllers' patches of a resource.
    pub(super) fn deny_patches(&self, resource: &str, denied: bool) {
        let mut state = self.state();
        if denied {
            state.denied.insert(resource.to_owned());
        } else {
            state.denied.remove(resource);
        }
        state.set_faults();
    }

    /// File with the controllers' log.
    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// The desired and actual state of world of the attach/detach controller.
    pub(super) fn attach_detach_volumes(&self) -> AttachDetachVolumes {
        self.state().cluster.attach_detach().volumes()
    }

    /// The attach/detach controller's metrics; empty while no replica leads.
    pub(super) fn metrics(&self) -> String {
        let state = self.state();
        match state.leader {
            Some(_) => state.cluster.attach_detach().metrics(),
            None => String::new(),
        }
    }

    /// An external-provisioner in this process.
    pub(super) fn provisioner(&self, driver: DriverConnection) -> BoxFuture<'static, ()> {
        self.state().cluster.provisioner(driver)
    }

    /// Stops all components.
    pub(super) async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        self.state().cluster.crash_controllers();
        tasks.shutdown().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

// === impl State ===

impl State {
    fn start_controllers(&mut self, component: Component) {
        self.cluster.restart_controllers();
        self.leader = Some(component);
    }

    fn set_faults(&self) {
        let denied = self.denied.iter().map(|resource| {
            Rule::always(Fault::Error(Status::access_denied(resource)))
                .verbs(&["patch"])
                .resource(resource)
                .user_agent(CONTROLLERS)
        });
        let store = Rule::always(Fault::Error(Status::storage_timeout())).verbs(VERBS_OF_STORE);
        let store = self.is_store_down.then_some(store);
        self.cluster
            .api_server()
            .set_faults(denied.chain(store).collect());
    }
}

// === functions ===

fn attach_detach_options(settings: ClusterSettings, default: AttachDetachOptions) -> AttachDetachOptions {
    let populator_period = |default| settings.populator_period.unwrap_or(default);
    AttachDetachOptions {
        force_detach: ForceDetach {
            max_wait_for_unmount: settings
                .max_wait_for_unmount
                .unwrap_or(default.force_detach.max_wait_for_unmount),
            disable_on_timeout: settings.disable_force_detach_on_timeout,
        },
        reconcile_sync_period: settings
            .reconcile_sync_period
            .unwrap_or(default.reconcile_sync_period),
        csi_timeout: settings.csi_timeout.unwrap_or(default.csi_timeout),
        populator_loop_sleep_period: populator_period(default.populator_loop_sleep_period),
        populator_list_pods_retry_duration: populator_period(default.populator_list_pods_retry_duration),
        ..default
    }
}

/// A separate log for the controllers.
fn file_log(path: &Path) -> Result<Dispatch> {
    let file = std::fs::File::create(path).with_context(|| format!("create {}", path.display()))?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("embedded_cluster=debug,warn"))
        .with_ansi(false)
        .with_writer(Mutex::new(file))
        .finish();
    Ok(Dispatch::new(subscriber))
}
