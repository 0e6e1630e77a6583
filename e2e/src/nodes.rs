//! Real nodes: two kubelets with containerd, each in its own namespaces, on the real control plane, with driver, attacher
//! and sidecars as pods from `deploy/`.
//!
//! Owns their processes, network and images. Invariants: the machine's mounts and interfaces, and cgroups and loop devices
//! that do not belong to the run, stay unchanged; the kernel objects of a node are removed when [`RealNodes::stop`]
//! returns, and when the harness is killed (see [`process`](crate::process) and [`init_main_if_requested`]).

mod image;
mod init;
mod kubelet_identity;
mod network;
mod program;
mod real_node;
mod requirements;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use csi_mock_driver::admin_api::client::Client as AdminClient;
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::{Api, Client};
use serde_json::json;

pub use image::{BUSYBOX, GO_ATTACHER};
pub use init::init_main_if_requested;
pub use program::{program_main, say};
pub use real_node::RealNode;
pub use requirements::{REAL_KUBELETS, missing_requirement};

use crate::cluster::{Backend, Cluster};
use crate::control_plane::{Component, Options};
use crate::kubeconfig;
use crate::process::{Run, loop_devices};
use crate::toolchain::{NodePrograms, Toolchain, workspace_root};
use crate::wait::{self, Progress};
use image::Layout;
use kubelet_identity::KubeletAuthority;
use network::{Addresses, Network};

/// Names of the nodes.
pub const NODES: [&str; 2] = ["node-a", "node-b"];
/// Name of the driver in `deploy/`.
pub const DRIVER: &str = "mock.csi.local";
/// Namespace of driver and attacher.
pub const DRIVER_NAMESPACE: &str = "csi-mock-driver";
/// The overlay for scenarios.
pub const OVERLAY: &str = "deploy/overlays/mock-driver-nodes";
/// kubelet's default `--root-dir`.
pub const ROOT_DIR: &str = "/var/lib/kubelet";
/// Timeout of the readiness of a node or a driver pod on busy cores.
pub const READY: Duration = Duration::from_secs(180);
/// Feature gates that tests of Kubernetes' storage suite need and that are not enabled by default in each supported release.
const SUITE_GATES: &[&str] = &["CSIVolumeHealth", "VolumeLimitScaling"];

/// A cluster of real nodes.
pub struct RealNodes {
    run: Arc<Run>,
    cluster: Arc<Cluster>,
    network: Network,
    nodes: Vec<Arc<RealNode>>,
    layout: PathBuf,
    manifests: String,
}

// === impl RealNodes ===

impl RealNodes {
    /// Starts control plane and nodes with the images of `overlay`, and waits until the nodes are ready. `root_dir`:
    /// kubelet's `--root-dir`.
    ///
    /// # Errors
    /// A program exited; the error contains its last log lines.
    pub async fn start(
        run: &Arc<Run>,
        toolchain: &Toolchain,
        programs: NodePrograms,
        overlay: &str,
        root_dir: &str,
    ) -> Result<Self> {
        let programs = Arc::new(programs);
        let dir = run.subdir("nodes")?;
        let manifests = toolchain.kustomize(&workspace_root().join(overlay)).await?;
        let layout = {
            let (dir, programs) = (run.subdir("images")?, Arc::clone(&programs));
            let mut named = images(&manifests);
            named.extend(image::RECIPE_IMAGES.map(str::to_owned));
            named.extend(
                programs
                    .suite
                    .iter()
                    .flat_map(|suite| suite.images.iter().cloned()),
            );
            tokio::task::spawn_blocking(move || Layout::make(&dir, &named, &programs))
                .await
                .context("make images")??
        };
        let authority = KubeletAuthority::generate(&dir)?;
        let egress = dir.join("egress.sock");
        let mut network = Network::start(run, &egress).await?;
        let boot = (1..).zip(NODES).map(|(number, name)| {
            let (dir, addresses) = (dir.join(name), Addresses(number));
            RealNode::boot(run, dir, root_dir, &programs, &network, addresses)
        });
        let nodes = try_join_all(boot);
        let options = options(authority.certificate(), &egress, &dir, gates(&programs))?;
        let cluster = Cluster::start(run, toolchain, Backend::ControlPlane(options));
        let (nodes, cluster) = tokio::try_join!(nodes, cluster)?;
        network.serve_api_server(address_of_api_server(&cluster)?)?;
        for node in &nodes {
            let server = format!("https://{}", network::API_SERVER);
            let ca = kubeconfig::current_cluster(cluster.admin_kubeconfig())?.certificate_authority;
            let ca = ca.context("the administrator's kubeconfig must name a CA")?;
            authority.write_kubeconfig(&node.kubeconfig(), node.name(), &server, &ca)?;
            node.start_kubelet()?;
        }
        let real = Self {
            run: Arc::clone(run),
            cluster: Arc::new(cluster),
            network,
            nodes: nodes.into_iter().map(Arc::new).collect(),
            layout,
            manifests,
        };
        let imports = try_join_all(real.nodes.iter().map(|node| node.import_images(&real.layout)));
        real.while_alive(imports).await?;
        for node in &real.nodes {
            real.wait_until_ready(node).await?;
        }
        Ok(real)
    }

    /// Applies the overlay unchanged, and waits until its pods are ready and kubelet has registered the driver on each
    /// node.
    pub async fn deploy(&self) -> Result<()> {
        self.cluster.apply(&self.manifests).await?;
        self.wait_until_deployed().await
    }

    /// Applies the objects that a recipe may have deleted: ServiceAccounts, RBAC objects and the overlay.
    pub async fn redeploy(&self) -> Result<()> {
        self.cluster.install().await?;
        self.deploy().await
    }

    /// Waits until the driver's pods are ready and kubelet has registered the driver on each node.
    pub async fn wait_until_deployed(&self) -> Result<()> {
        let daemon_sets = Api::<DaemonSet>::namespaced(self.client(), DRIVER_NAMESPACE);
        let daemon_set = wait::for_object(
            &daemon_sets,
            "csi-mock-driver-node",
            READY,
            "the driver on each node",
            |found| {
                let status = found.and_then(|found| found.status.clone()).unwrap_or_default();
                let ready = usize::try_from(status.number_ready).unwrap_or(0) == NODES.len();
                Progress::of(ready, || format!("{status:?}"))
            },
        );
        let deployments = Api::<Deployment>::namespaced(self.client(), DRIVER_NAMESPACE);
        let deployment = wait::for_object(
            &deployments,
            "csi-attacher",
            READY,
            "the attacher's pod",
            |found| {
                let status = found.and_then(|found| found.status.clone()).unwrap_or_default();
                let wanted = found.and_then(|found| found.spec.replicas);
                let ready = wanted.is_some() && status.ready_replicas == wanted;
                Progress::of(ready, || format!("{status:?}"))
            },
        );
        let ready = async { tokio::try_join!(daemon_set, deployment).map(drop) };
        self.while_alive(ready).await?;
        for node in NODES {
            self.wait_until_registered(node).await?;
        }
        Ok(())
    }

    /// Waits until the node's CSINode shows that kubelet has registered the driver.
    async fn wait_until_registered(&self, node: &str) -> Result<()> {
        let csi_nodes = Api::<CSINode>::all(self.client());
        let what = format!("kubelet of {node} to register {DRIVER}");
        wait::for_object(&csi_nodes, node, READY, &what, |found| {
            let drivers = found.map(|found| &found.spec.drivers);
            let registered =
                drivers.is_some_and(|drivers| drivers.iter().any(|driver| driver.name == DRIVER));
            Progress::of(registered, || format!("its drivers are {drivers:?}"))
        })
        .await
    }

    /// Waits until the Node's Ready condition is True.
    pub async fn wait_until_ready(&self, node: &RealNode) -> Result<()> {
        self.while_alive(self.wait_for_readiness(node.name(), true)).await
    }

    /// Waits until the Node's Ready condition is not True.
    pub async fn wait_until_not_ready(&self, node: &RealNode) -> Result<()> {
        self.wait_for_readiness(node.name(), false).await
    }

    async fn wait_for_readiness(&self, node: &str, ready: bool) -> Result<()> {
        let nodes = Api::<Node>::all(self.client());
        let what = format!("readiness of {node} to be {ready}");
        wait::for_object(&nodes, node, READY, &what, |found| {
            let status = found.and_then(|found| found.status.as_ref());
            let conditions = status
                .and_then(|status| status.conditions.clone())
                .unwrap_or_default();
            let condition = conditions
                .into_iter()
                .find(|condition| condition.type_ == "Ready");
            let tainted = found
                .and_then(|found| found.spec.as_ref()?.taints.clone())
                .is_some();
            let is_ready = condition
                .as_ref()
                .is_some_and(|condition| condition.status == "True")
                && !tainted;
            Progress::of(is_ready == ready, || format!("{condition:?}, tainted: {tainted}"))
        })
        .await
    }

    /// Starts a node after [`RealNode::crash`].
    pub async fn boot(&self, node: &RealNode) -> Result<()> {
        node.start_init(&self.network).await?;
        node.import_images(&self.layout).await?;
        node.start_kubelet()
    }

    /// Runs `work`; fails with last log lines if a program that should run exits meanwhile.
    pub async fn while_alive<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let worked = self.cluster.while_alive(work).await;
        self.ensure_alive()?;
        worked
    }

    /// The run that the nodes belong to.
    pub fn run(&self) -> &Arc<Run> {
        &self.run
    }

    fn ensure_alive(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.ensure_alive())
    }

    /// A client with the permissions of an administrator.
    pub fn client(&self) -> Client {
        self.cluster.client()
    }

    /// The cluster.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// The objects of the overlay, as a YAML stream.
    pub fn manifests(&self) -> &str {
        &self.manifests
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Arc<RealNode>] {
        &self.nodes
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Result<&RealNode> {
        let node = self.nodes.iter().find(|node| node.name() == name);
        node.map(AsRef::as_ref)
            .with_context(|| format!("there is no node {name}"))
    }

    /// The admin API of the array.
    pub fn array(&self) -> Result<AdminClient> {
        admin(&self.run.dir().join("nodes").join(init::ARRAY))
    }

    /// The admin API of the driver on a node.
    pub fn node_driver(&self, node: &str) -> Result<AdminClient> {
        admin(&self.node(node)?.kubelet_dir().join("plugins").join(DRIVER))
    }

    /// Loop devices of volumes, on all nodes.
    pub fn loop_devices(&self) -> Result<Vec<PathBuf>> {
        loop_devices(self.run.dir())
    }

    /// Kills the nodes and stops the control plane. [`Run::finish`] removes their remaining kernel objects.
    pub async fn stop(&self) -> Result<()> {
        let alive = self.ensure_alive();
        try_join_all(self.nodes.iter().map(|node| node.crash())).await?;
        self.network.stop().await?;
        self.cluster.stop().await?;
        alive
    }
}

/// Loop devices of volumes on the nodes of the run in `dir`.
pub fn loop_devices(dir: &Path) -> Result<Vec<PathBuf>> {
    loop_devices::loop_devices(dir, &dir.join("nodes").join(init::ARRAY))
}

/// A client of the driver whose admin socket is in `dir`.
fn admin(dir: &Path) -> Result<AdminClient> {
    let endpoint = format!("unix://{}", dir.join("admin.sock").display());
    Ok(AdminClient::new(
        endpoint.parse().context("parse the admin endpoint")?,
    ))
}

/// Feature gates of nodes with these programs.
fn gates(programs: &NodePrograms) -> &'static [&'static str] {
    match programs.suite {
        Some(_) => SUITE_GATES,
        None => &[],
    }
}

/// Options that differ from those of other control planes.
fn options(kubelets_ca: &Path, egress: &Path, dir: &Path, gates: &[&str]) -> Result<Options> {
    let selector = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{
            "name": "cluster",
            "connection": {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": egress}}},
        }],
    });
    let file = dir.join("egress.yaml");
    std::fs::write(&file, selector.to_string()).context("write the egress selector")?;
    let gates: Vec<_> = gates
        .iter()
        .map(|gate| format!("--feature-gates={gate}=true"))
        .collect();
    let mut api_server = vec![
        format!("--client-ca-file={}", kubelets_ca.display()),
        format!("--egress-selector-config-file={}", file.display()),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
    ];
    api_server.extend_from_slice(&gates);
    // Kubelets renew their leases every 2 s.
    let mut controllers = vec!["--node-monitor-grace-period=12s".to_owned()];
    controllers.extend_from_slice(&gates);
    Ok(Options {
        scheduler: true,
        extra_flags: [
            (Component::ApiServer, api_server),
            (Component::ControllerManager, controllers),
            (Component::Scheduler, gates),
        ]
        .into(),
        ..Options::default()
    })
}

fn address_of_api_server(cluster: &Cluster) -> Result<SocketAddr> {
    let server = kubeconfig::current_cluster(cluster.admin_kubeconfig())?.server;
    let server = server.context("the administrator's kubeconfig must name a server")?;
    let Some(address) = server.strip_prefix("https://") else {
        bail!("{server} must be an https URL");
    };
    address.parse().with_context(|| format!("understand {address}"))
}

/// The images in the manifests.
fn images(manifests: &str) -> BTreeSet<String> {
    let fields = manifests.lines().map(|line| line.trim_start_matches([' ', '-']));
    fields
        .filter_map(|field| field.strip_prefix("image: "))
        .map(str::to_owned)
        .collect()
}
