//! kubectl works with the embedded cluster as with the real control plane.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::cluster::{Backend, Cluster, ClusterSettings};
use csi_e2e::document::Shell;

use crate::Harness;

const COMMANDS: &str = include_str!("kubectl.sh");

trials! { "kubectl":
    prints_the_same_on_the_embedded_cluster_and_on_the_control_plane,
}

async fn prints_the_same_on_the_embedded_cluster_and_on_the_control_plane(
    harness: Arc<Harness>,
) -> Result<()> {
    let _shared = harness.control_plane_lock.read().await;
    let backend = Backend::Embedded(ClusterSettings::DEFAULT);
    let cluster = Cluster::start(&harness.run, &harness.toolchain, backend).await?;
    let embedded = printed(&harness, "kubectl-embedded", cluster.admin_kubeconfig()).await;
    cluster.stop().await?;
    let embedded = embedded?;
    let reference = harness.cluster().await?.admin_kubeconfig();
    let expected = printed(&harness, "kubectl-control-plane", reference).await?;
    ensure!(
        embedded == expected,
        "kubectl prints on the embedded cluster:\n{embedded}\nand on the control plane:\n{expected}"
    );
    ensure!(
        expected.contains("pod/web edited"),
        "the commands were not run:\n{expected}"
    );
    Ok(())
}

async fn printed(harness: &Harness, name: &str, kubeconfig: &Path) -> Result<String> {
    let kubectl = harness.toolchain.kubectl().await?;
    let shell = Shell::new(&harness.run, name)?.program("kubectl", &kubectl)?;
    let directory = shell.home().join(".kube");
    fs::create_dir(&directory).context("make ~/.kube")?;
    fs::copy(kubeconfig, directory.join("config")).context("write ~/.kube/config")?;
    shell.run(COMMANDS).await
}
