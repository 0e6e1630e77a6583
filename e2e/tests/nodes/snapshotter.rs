//! The release of external-snapshotter that `deploy/README.md` names, from its Go modules.

use std::path::PathBuf;

use anyhow::{Context, Result};
use csi_e2e::document::block;
use csi_e2e::toolchain::Toolchain;

use crate::recipes::DEPLOY;

pub(crate) const REPOSITORY: &str = "https://github.com/kubernetes-csi/external-snapshotter/";

/// The release of external-snapshotter that the document names.
pub(crate) struct Snapshotter {
    /// The block that installs it.
    pub(crate) commands: String,
    pub(crate) version: String,
    /// Sources of the CRDs.
    pub(crate) client: PathBuf,
    pub(crate) root: PathBuf,
}

// === impl Snapshotter ===

impl Snapshotter {
    pub(crate) async fn read(toolchain: &Toolchain) -> Result<Self> {
        let commands = block(DEPLOY, &format!("kubectl apply -k \"{REPOSITORY}"))?;
        let version = commands
            .split("?ref=")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        let version = version.context("the document must name a version")?.to_owned();
        let module = "github.com/kubernetes-csi/external-snapshotter";
        let client = format!("{module}/client/v8@{version}");
        let root = format!("{module}/v8@{version}");
        Ok(Self {
            client: toolchain.go_sources(&client).await?,
            root: toolchain.go_sources(&root).await?,
            commands,
            version,
        })
    }
}
