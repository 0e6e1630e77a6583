//! Kubeconfig files for the programs of a run.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

/// Name of the one cluster, user and context in a file.
const NAME: &str = "csi-e2e";

/// Writes a kubeconfig of one user, who is known by `token`, of one cluster, whose entry `cluster` is, to a
/// file that only this user may read.
pub(crate) fn write(path: &Path, cluster: impl Serialize, token: &str) -> Result<()> {
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": {"token": token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    });
    save(path, &kubeconfig)
}

/// Writes a kubeconfig to a file that only this user may read.
pub(crate) fn save(path: &Path, kubeconfig: &impl Serialize) -> Result<()> {
    let text = serde_saphyr::to_string(kubeconfig).context("serialise a kubeconfig")?;
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("open {}", path.display()))?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("write {}", path.display()))
}
