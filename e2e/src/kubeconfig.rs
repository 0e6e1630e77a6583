//! Kubeconfig files of a run, and clients that use them.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use kube::Client;
use kube::config::{Cluster, KubeConfigOptions, Kubeconfig};
use serde::Serialize;
use serde_json::json;

/// Name of the one cluster, user and context in a file.
const NAME: &str = "csi-e2e";

/// Writes a kubeconfig with one user, with this token, and one cluster, with this entry, to a file that only
/// the current user may read.
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

/// Writes a kubeconfig to a file that only the current user may read.
pub fn save(path: &Path, kubeconfig: &impl Serialize) -> Result<()> {
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

/// A client with the permissions of the file's user.
pub async fn client(path: &Path) -> Result<Client> {
    Client::try_from(config(path).await?).with_context(|| format!("make a client of {}", path.display()))
}

/// The client configuration of the file's user.
pub(crate) async fn config(path: &Path) -> Result<kube::Config> {
    let cluster = current_cluster(path)?;
    let mut config = kube::Config::from_custom_kubeconfig(read(path)?, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("understand {}", path.display()))?;
    // kube's retries, which can take a quarter of an hour, would exceed the deadlines of scenarios.
    config.default_retry = false;
    if cluster.proxy_url.is_none() {
        // The proxy comes from the environment and is for remote hosts.
        config.proxy_url = None;
    }
    Ok(config)
}

/// The cluster entry of the file's current context.
pub(crate) fn current_cluster(path: &Path) -> Result<Cluster> {
    let kubeconfig = read(path)?;
    let current = kubeconfig
        .current_context
        .context("the kubeconfig must have a current context")?;
    let named = kubeconfig
        .contexts
        .into_iter()
        .find(|context| context.name == current);
    let context = named.and_then(|context| context.context);
    let cluster = context
        .with_context(|| format!("the kubeconfig must have the context {current}"))?
        .cluster;
    let named = kubeconfig
        .clusters
        .into_iter()
        .find(|named| named.name == cluster);
    named
        .and_then(|named| named.cluster)
        .with_context(|| format!("the kubeconfig must have the cluster {cluster}"))
}

fn read(path: &Path) -> Result<Kubeconfig> {
    Kubeconfig::read_from(path).with_context(|| format!("read {}", path.display()))
}
