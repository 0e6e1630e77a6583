//! The place scenarios are played at: one cluster and the programs to be run on it.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::sync::{Mutex, OnceCell, OwnedMutexGuard};

use crate::cluster::{Backend, Cluster};
use crate::process::Run;
use crate::subject::Kind;
use crate::toolchain::{Peer, Toolchain};

/// A cluster and the programs of one run of the harness, shared by all scenarios.
pub struct Site {
    run: Arc<Run>,
    toolchain: Toolchain,
    cluster: Cluster,
    driver: PathBuf,
    ours: OnceCell<PathBuf>,
    go: OnceCell<PathBuf>,
    known_driver: Arc<Mutex<()>>,
    chance: Chance,
}

/// What scenarios that chance writes are made of.
#[derive(Clone, Copy, Debug)]
pub struct Chance {
    /// What all of it comes from. The same seed makes the same choices again.
    pub seed: u64,
    /// How many attachments are made, if not as many as usual.
    pub attachments: Option<usize>,
}

// === impl Site ===

impl Site {
    /// Builds what every scenario needs and starts or finds the cluster.
    pub async fn open(run: &Arc<Run>, toolchain: &Toolchain, backend: Backend) -> Result<Self> {
        let settings = toolchain.settings();
        let chance = Chance {
            seed: settings.seed()?.unwrap_or_else(any_number),
            attachments: settings.attachments()?,
        };
        let driver = toolchain
            .csi_mock_driver()
            .await
            .context("build the mock driver")?;
        let cluster = Cluster::start(run, toolchain, backend).await?;
        Ok(Self {
            run: run.clone(),
            toolchain: toolchain.clone(),
            cluster,
            driver,
            ours: OnceCell::new(),
            go: OnceCell::new(),
            known_driver: Arc::default(),
            chance,
        })
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The run its processes belong to.
    pub fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// Program of the mock driver.
    pub fn driver(&self) -> &Path {
        &self.driver
    }

    /// Program of an attacher, built when it is first asked for: whoever runs only our own scenarios should
    /// not wait for the Go one.
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

    /// Where chance comes from in this run.
    pub fn chance(&self) -> Chance {
        self.chance
    }

    /// Waits until no other stage has a driver of a name that Kubernetes knows.
    pub(super) async fn known_driver(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.known_driver).lock_owned().await
    }

    /// Stops what was started, in order.
    pub async fn close(self) -> Result<()> {
        self.cluster.stop().await
    }
}

/// A seed for a run that was given none. Small, so that it is easily repeated.
fn any_number() -> u64 {
    RandomState::new().hash_one(0_u8) >> 32
}
