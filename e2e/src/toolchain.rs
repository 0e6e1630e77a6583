//! Where the programs of a run come from: Go builds, our own binaries, and the settings that name others.
//!
//! Owns everything the harness reads from its environment ([`Settings`]).

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};

use crate::process::Run;

/// What a person can set through the environment.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `CSI_ATTACHER_BIN`: an attacher to be used as it is, instead of one built from this tree.
    pub attacher: Option<PathBuf>,
    /// `CSI_MOCK_DRIVER_BIN`: a driver to be used as it is, instead of one built from this tree.
    pub mock_driver: Option<PathBuf>,
    /// `CARGO_TARGET_DIR`: where builds go, instead of `target/` in the workspace.
    pub target_dir: Option<PathBuf>,
    /// `CSI_E2E_KEEP` is set: the run's files stay after its end.
    pub keep_files: bool,
}

/// Finds and builds the programs of one run.
#[derive(Clone, Debug)]
pub struct Toolchain {
    run: Arc<Run>,
    settings: Settings,
}

/// A Go program of the `e2e/peers` module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The Go sidecar we are compared with, external-attacher.
    ExternalAttacher,
    /// The CSI conformance tests.
    CsiSanity,
    /// Our own writer of the official descriptor of csi.proto.
    CsiDescriptors,
}

impl Settings {
    /// Reads the environment.
    pub fn from_env() -> Self {
        Self::default()
    }
}

impl Toolchain {
    /// A toolchain whose builds are processes of `run`.
    pub fn new(run: &Arc<Run>, settings: Settings) -> Self {
        Self {
            run: Arc::clone(run),
            settings,
        }
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The executable with etcd and the Kubernetes control plane, built if need be.
    pub async fn control_plane(&self) -> Result<PathBuf> {
        bail!("being written")
    }

    /// A Go peer, built if need be.
    pub async fn peer(&self, peer: Peer) -> Result<PathBuf> {
        bail!("being written: {peer:?} {}", self.run.dir().display())
    }

    /// Our attacher, built in the caller's profile unless the settings name another.
    pub async fn csi_attacher(&self) -> Result<PathBuf> {
        bail!("being written")
    }

    /// Our mock driver, built in the caller's profile unless the settings name another.
    pub async fn csi_mock_driver(&self) -> Result<PathBuf> {
        bail!("being written")
    }
}
