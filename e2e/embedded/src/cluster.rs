//! A whole cluster in one process: API server, controllers, scheduler and kubelets.

use std::collections::BTreeMap;
use std::path::Path;

use kube::Client;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::{AbortHandle, JoinSet};

use crate::apiserver::{self, ApiServer, Clock};
use crate::attach_detach::{AttachDetachView, ForceDetach};
use crate::control_plane::{ControlPlaneConfig, control_plane};
use crate::driver_connection::DriverConnection;
use crate::event_recorder::EventBroadcaster;
use crate::kubelet::{self, Command, KubeletConfig, NodeDisk};

/// What a cluster is started with.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Wall clock of all components.
    pub clock: Clock,
    /// Seed of everything random.
    pub seed: u64,
    /// When the attach/detach controller takes a mounted volume away.
    pub force_detach: ForceDetach,
    /// Drivers that volumes are provisioned with.
    pub provisioners: Vec<DriverConnection>,
}

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Name of the Node.
    pub name: String,
    /// Labels besides those that kubelet sets itself.
    pub labels: BTreeMap<String, String>,
    /// The node's CSI driver.
    pub driver: Option<DriverConnection>,
    /// Where its kubelet keeps what is mounted.
    pub disk: NodeDisk,
}

/// A running cluster. Dropping it is a crash of everything in it.
pub struct EmbeddedCluster {
    api_server: ApiServer,
    client: Client,
    options: ClusterOptions,
    attach_detach: AttachDetachView,
    controllers: AbortHandle,
    nodes: BTreeMap<String, RunningNode>,
    tasks: JoinSet<()>,
}

struct RunningNode {
    options: NodeOptions,
    /// None while its kubelet is down.
    kubelet: Option<Kubelet>,
}

struct Kubelet {
    commands: UnboundedSender<Command>,
    tasks: [AbortHandle; 2],
}

// === impl ClusterOptions ===

impl Default for ClusterOptions {
    /// A cluster on the machine's time.
    fn default() -> Self {
        Self {
            clock: Clock::system(),
            seed: 0,
            force_detach: ForceDetach::default(),
            provisioners: Vec::new(),
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
    /// Starts an API server and the controllers. Must be called in a tokio runtime; a current-thread one will do.
    pub fn start(options: ClusterOptions) -> Self {
        let api_server = ApiServer::new(&apiserver::Options {
            clock: options.clock.clone(),
            seed: options.seed,
            ..apiserver::Options::default()
        });
        let client = api_server.client();
        let mut tasks = JoinSet::new();
        let (attach_detach, controllers) = start_controllers(&client, &options, &mut tasks);
        Self {
            api_server,
            client,
            options,
            attach_detach,
            controllers,
            nodes: BTreeMap::new(),
            tasks,
        }
    }

    /// The cluster's API server, for faults, and to serve it to kubectl.
    pub fn api_server(&self) -> &ApiServer {
        &self.api_server
    }

    /// A client of the cluster's API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What the attach/detach controller wants and knows.
    pub fn attach_detach(&self) -> &AttachDetachView {
        &self.attach_detach
    }

    /// Ends all controllers without a word, as a crash of kube-controller-manager does.
    pub fn crash_controllers(&mut self) {
        self.controllers.abort();
    }

    /// Starts the controllers again, with nothing but what the API server has.
    pub fn restart_controllers(&mut self) {
        self.controllers.abort();
        (self.attach_detach, self.controllers) =
            start_controllers(&self.client, &self.options, &mut self.tasks);
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

    /// Ends a node's kubelet without a word: nothing is unmounted or reported any more.
    pub fn crash_node(&mut self, name: &str) {
        if let Some(kubelet) = self.nodes.get_mut(name).and_then(|node| node.kubelet.take()) {
            for task in kubelet.tasks {
                task.abort();
            }
        }
    }

    /// Starts the kubelet of a node again; what was mounted still is.
    pub fn start_node(&mut self, name: &str) {
        self.crash_node(name);
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        let (commands, requests) = mpsc::unbounded_channel();
        let events = EventBroadcaster::new(self.client.clone(), self.options.clock.clone());
        let config = KubeletConfig {
            client: self.client.clone(),
            clock: self.options.clock.clone(),
            name: name.to_owned(),
            labels: node.options.labels.clone(),
            driver: node.options.driver.clone(),
            disk: node.options.disk.clone(),
            recorder: events.recorder("kubelet", name),
        };
        node.kubelet = Some(Kubelet {
            commands,
            tasks: [
                self.tasks.spawn(events.run()),
                self.tasks.spawn(kubelet::run(config, requests)),
            ],
        });
    }

    /// Forgets a node whose Node object was or will be deleted.
    pub fn remove_node(&mut self, name: &str) {
        self.crash_node(name);
        self.nodes.remove(name);
    }

    /// Has a node's kubelet ask its driver again, as after a restart of the driver.
    pub fn register_driver(&self, name: &str) {
        if let Some(kubelet) = self.nodes.get(name).and_then(|node| node.kubelet.as_ref())
            && kubelet.commands.send(Command::RegisterDriver).is_err()
        {
            tracing::debug!(node = name, "kubelet is down; it asks the driver when it starts");
        }
    }
}

// === functions ===

fn start_controllers(
    client: &Client,
    options: &ClusterOptions,
    tasks: &mut JoinSet<()>,
) -> (AttachDetachView, AbortHandle) {
    let (view, controllers) = control_plane(ControlPlaneConfig {
        client: client.clone(),
        clock: options.clock.clone(),
        seed: options.seed,
        force_detach: options.force_detach,
        provisioners: options.provisioners.clone(),
    });
    (view, tasks.spawn(controllers))
}
