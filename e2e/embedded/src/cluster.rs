//! A Kubernetes cluster in one process: API server, controllers, scheduler and kubelets.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tracing::Dispatch;
use tracing::instrument::WithSubscriber;

use crate::apiserver::{self, ApiServer, Clock};
use crate::attach_detach::{AttachDetachOptions, AttachDetachView};
use crate::control_plane::{self, ControlPlaneConfig, control_plane};
use crate::driver_connection::DriverConnection;
use crate::kubelet::{DEFAULT_NODE_STATUS_REPORT_FREQUENCY, KubeletConfig, KubeletProcess, NodeDisk};
use crate::node_lifecycle::MONITOR_GRACE_PERIOD;

/// `User-Agent` of the controllers.
pub const CONTROLLERS: &str = "kube-controller-manager";
/// `User-Agent` of the kubelets.
pub const KUBELETS: &str = "kubelet";
/// `User-Agent` of external-provisioners.
pub const PROVISIONERS: &str = "csi-provisioner";

/// Options of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Wall clock of all components.
    pub clock: Clock,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Settings of the attach/detach controller.
    pub attach_detach: AttachDetachOptions,
    /// Time without heartbeats after which a node becomes Unknown.
    pub node_monitor_grace_period: Duration,
    /// Period in which kubelets write a node status that has not changed: their `nodeStatusReportFrequency`.
    pub node_status_report_frequency: Duration,
    /// Log of the controllers; default: the process's log.
    pub log: Option<Dispatch>,
}

/// Options of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Name of the Node.
    pub name: String,
    /// Labels in addition to those that kubelet sets.
    pub labels: BTreeMap<String, String>,
    /// The node's CSI driver.
    pub driver: Option<DriverConnection>,
    /// State of mounted volumes on the node's disk.
    pub disk: NodeDisk,
}

/// A running cluster. Dropping it simulates a crash of all its components.
pub struct EmbeddedCluster {
    api_server: ApiServer,
    client: Client,
    controllers_client: Client,
    kubelets_client: Client,
    options: ClusterOptions,
    attach_detach: AttachDetachView,
    controllers: AbortHandle,
    panicked: watch::Sender<bool>,
    nodes: BTreeMap<String, RunningNode>,
    tasks: JoinSet<()>,
}

struct RunningNode {
    options: NodeOptions,
    /// None while its kubelet is down.
    kubelet: Option<KubeletProcess>,
}

// === impl ClusterOptions ===

impl Default for ClusterOptions {
    /// A cluster on the machine's clock.
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            seed: 0,
            attach_detach: AttachDetachOptions::default(),
            node_monitor_grace_period: MONITOR_GRACE_PERIOD,
            node_status_report_frequency: DEFAULT_NODE_STATUS_REPORT_FREQUENCY,
            log: None,
        }
    }
}

// === impl NodeOptions ===

impl NodeOptions {
    /// A node whose driver mounts nothing.
    pub fn new(name: &str, driver: Option<DriverConnection>) -> Self {
        Self {
            name: name.to_owned(),
            labels: BTreeMap::new(),
            driver,
            disk: NodeDisk::in_memory(Path::new("/var/lib/kubelet")),
        }
    }
}

// === impl EmbeddedCluster ===

impl EmbeddedCluster {
    /// Starts an API server and the controllers. Must be called in a tokio runtime, which may be single-threaded.
    pub fn start(options: ClusterOptions) -> Self {
        let api_server = ApiServer::new(&apiserver::Options {
            clock: options.clock.clone(),
            seed: options.seed,
            ..apiserver::Options::default()
        });
        let (client, controllers_client) = (api_server.client(), api_server.client_of(CONTROLLERS));
        let kubelets_client = api_server.client_of(KUBELETS);
        let mut tasks = JoinSet::new();
        let panicked = watch::Sender::new(false);
        let (attach_detach, controllers) =
            start_controllers(&controllers_client, &options, &panicked, &mut tasks);
        Self {
            api_server,
            client,
            controllers_client,
            kubelets_client,
            options,
            attach_detach,
            controllers,
            panicked,
            nodes: BTreeMap::new(),
            tasks,
        }
    }

    /// The cluster's API server, to set fault rules and to serve kubectl.
    pub fn api_server(&self) -> &ApiServer {
        &self.api_server
    }

    /// A client of the cluster's API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The desired and actual state of world of the attach/detach controller.
    pub fn attach_detach(&self) -> &AttachDetachView {
        &self.attach_detach
    }

    /// An external-provisioner that provisions volumes with `driver` while the future is polled.
    pub fn provisioner(&self, driver: DriverConnection) -> BoxFuture<'static, ()> {
        control_plane::provisioner(
            self.api_server.client_of(PROVISIONERS),
            self.options.clock.clone(),
            driver,
        )
    }

    /// Stops all controllers without a shutdown, simulating a crash of kube-controller-manager.
    pub fn crash_controllers(&mut self) {
        self.controllers.abort();
    }

    /// Starts the controllers again, with only the state in the API server.
    pub fn restart_controllers(&mut self) {
        self.controllers.abort();
        (self.attach_detach, self.controllers) = start_controllers(
            &self.controllers_client,
            &self.options,
            &self.panicked,
            &mut self.tasks,
        );
    }

    /// Becomes true when a controller or a kubelet panics.
    pub fn panicked(&self) -> watch::Receiver<bool> {
        self.panicked.subscribe()
    }

    /// Starts a node.
    pub fn add_node(&mut self, options: NodeOptions) {
        let name = options.name.clone();
        self.nodes.insert(
            name.clone(),
            RunningNode {
                options,
                kubelet: None,
            },
        );
        self.start_node(&name);
    }

    /// Stops a node's kubelet without a shutdown: it unmounts and reports nothing any more.
    pub fn crash_node(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.kubelet = None;
        }
    }

    /// Starts the kubelet of a node again; its mounts still exist.
    pub fn start_node(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        node.kubelet = None;
        let config = KubeletConfig {
            client: self.kubelets_client.clone(),
            clock: self.options.clock.clone(),
            name: name.to_owned(),
            labels: node.options.labels.clone(),
            driver: node.options.driver.clone(),
            disk: node.options.disk.clone(),
            node_status_report_frequency: self.options.node_status_report_frequency,
            injected_bug: self.options.attach_detach.injected_bug,
        };
        node.kubelet = Some(KubeletProcess::start(config, &self.panicked));
    }

    /// Removes a node whose Node object was or will be deleted.
    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Makes a node's kubelet call NodeGetInfo again, as after a restart of the driver.
    pub fn register_driver(&self, name: &str) {
        if let Some(kubelet) = self.nodes.get(name).and_then(|node| node.kubelet.as_ref()) {
            kubelet.register_driver();
        }
    }
}

// === functions ===

fn start_controllers(
    client: &Client,
    options: &ClusterOptions,
    panicked: &watch::Sender<bool>,
    tasks: &mut JoinSet<()>,
) -> (AttachDetachView, AbortHandle) {
    let (view, controllers) = control_plane(ControlPlaneConfig {
        client: client.clone(),
        clock: options.clock.clone(),
        seed: options.seed,
        attach_detach: options.attach_detach.clone(),
        node_monitor_grace_period: options.node_monitor_grace_period,
    });
    let panicked = panicked.clone();
    let running = async move {
        if AssertUnwindSafe(controllers).catch_unwind().await.is_err() {
            panicked.send_replace(true);
        }
    };
    let task = match &options.log {
        Some(log) => tasks.spawn(running.with_subscriber(log.clone())),
        None => tasks.spawn(running),
    };
    (view, task)
}
