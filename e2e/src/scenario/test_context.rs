//! The cluster and the programs of scenarios.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::sync::{Mutex, OnceCell, OwnedMutexGuard};

use crate::attacher::Kind;
use crate::cluster::{Backend, Cluster};
use crate::nodes::{RealNode, RealNodes};
use crate::process::Run;
use crate::toolchain::{Peer, Toolchain};

/// A cluster and the programs of one run of the harness, shared by all scenarios.
pub struct TestContext {
    run: Arc<Run>,
    toolchain: Toolchain,
    cluster: Arc<Cluster>,
    /// The scenarios' real nodes; empty if nodes are simulated.
    real_nodes: Vec<Arc<RealNode>>,
    driver: PathBuf,
    ours: OnceCell<PathBuf>,
    go: OnceCell<PathBuf>,
    lock_well_known_driver_name: Arc<Mutex<()>>,
    randomness: Randomness,
}

/// A build of an attacher.
#[derive(Clone, Copy, Debug)]
pub enum Build {
    /// The one under test.
    Current(Kind),
    /// An earlier build of csi-attacher.
    Previous,
}

/// Settings of randomized scenarios.
#[derive(Clone, Copy, Debug)]
pub struct Randomness {
    /// The seed; equal seeds make equal choices.
    pub seed: u64,
    /// Number of attachments; `None`: the default.
    pub attachments: Option<usize>,
}

// === impl Build ===

impl Build {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Current(kind) => kind,
            Self::Previous => Kind::Ours,
        }
    }
}

impl From<Kind> for Build {
    fn from(kind: Kind) -> Self {
        Self::Current(kind)
    }
}

// === impl TestContext ===

impl TestContext {
    /// Starts or finds the cluster and builds the programs that every scenario needs.
    pub async fn open(run: &Arc<Run>, toolchain: &Toolchain, backend: Backend) -> Result<Self> {
        let cluster = Cluster::start(run, toolchain, backend).await?;
        Self::on(run, toolchain, Arc::new(cluster)).await
    }

    /// A context for scenarios on real nodes, which the caller stops.
    pub async fn on_real_nodes(run: &Arc<Run>, toolchain: &Toolchain, nodes: &RealNodes) -> Result<Self> {
        let mut ctx = Self::on(run, toolchain, Arc::clone(nodes.cluster())).await?;
        ctx.real_nodes = nodes.nodes().to_vec();
        Ok(ctx)
    }

    /// Builds the programs that every scenario needs.
    pub async fn on(run: &Arc<Run>, toolchain: &Toolchain, cluster: Arc<Cluster>) -> Result<Self> {
        let settings = toolchain.settings();
        let randomness = Randomness {
            seed: settings.seed()?.unwrap_or_else(random_seed),
            attachments: settings.attachments()?,
        };
        let driver = toolchain
            .csi_mock_driver()
            .await
            .context("build the mock driver")?;
        Ok(Self {
            run: run.clone(),
            toolchain: toolchain.clone(),
            cluster,
            real_nodes: Vec::new(),
            driver,
            ours: OnceCell::new(),
            go: OnceCell::new(),
            lock_well_known_driver_name: Arc::default(),
            randomness,
        })
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The `index`th real node of a scenario, if nodes are real.
    pub(super) fn real_node(&self, index: usize) -> Option<&Arc<RealNode>> {
        self.real_nodes.get(index)
    }

    /// The run of its processes.
    pub fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// Program of the mock driver.
    pub fn driver(&self) -> &Path {
        &self.driver
    }

    /// Program of an attacher, built on first use, so that scenarios with csi-attacher do not wait for the Go one.
    pub async fn attacher(&self, kind: Kind) -> Result<&Path> {
        let (cell, what) = match kind {
            Kind::Ours => (&self.ours, "build our attacher"),
            Kind::Go => (&self.go, "build the Go attacher"),
        };
        let program = cell
            .get_or_try_init(|| async {
                match kind {
                    Kind::Ours => self.toolchain.csi_attacher().await,
                    Kind::Go => self.toolchain.peer(Peer::ExternalAttacher).await,
                }
            })
            .await
            .context(what)?;
        Ok(program)
    }

    /// Program of an attacher of this build.
    pub(super) async fn attacher_build(&self, build: Build) -> Result<PathBuf> {
        match build {
            Build::Current(kind) => self.attacher(kind).await.map(Path::to_owned),
            Build::Previous => self.toolchain.previous_attacher(),
        }
    }

    /// Program of a Go peer, built on first use.
    pub(super) async fn peer(&self, peer: Peer) -> Result<PathBuf> {
        self.toolchain
            .peer(peer)
            .await
            .with_context(|| format!("build {}", peer.name()))
    }

    /// The CustomResourceDefinitions of VolumeSnapshots, as a YAML stream.
    pub(super) async fn snapshot_definitions(&self) -> Result<String> {
        let definitions = self.toolchain.snapshot_definitions().await;
        definitions.context("find the definitions of VolumeSnapshots")
    }

    /// The kubectl plugin that explains stuck volumes, built when a scenario first needs it.
    pub async fn explain_plugin(&self) -> Result<PathBuf> {
        self.toolchain
            .explain_plugin()
            .await
            .context("build kubectl-csi_attach")
    }

    /// Settings of randomized scenarios in this run.
    pub fn randomness(&self) -> Randomness {
        self.randomness
    }

    /// Waits until no other test environment uses a driver name that is built into Kubernetes.
    pub(super) async fn lock_well_known_driver_name(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.lock_well_known_driver_name).lock_owned().await
    }

    /// Stops all processes, in order.
    pub async fn close(self) -> Result<()> {
        self.cluster.stop().await
    }
}

/// A random seed; small, so that it is easy to type.
fn random_seed() -> u64 {
    RandomState::new().hash_one(0_u8) >> 32
}
