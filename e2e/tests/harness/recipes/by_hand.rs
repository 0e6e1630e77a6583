//! Recipes that need no pods: programs that a reader starts by hand, and completions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::cluster::{Backend, Cluster, ClusterSettings};
use csi_e2e::document::{Shell, block};
use csi_e2e::process::{free_address, stop_in_reverse};

use crate::Harness;
use crate::metrics::until;

const README: &str = "README.md";
const EXPLAIN: &str = "attacher/explain/README.md";
/// Maximum time of a program's shutdown after SIGTERM.
const GRACE: Duration = Duration::from_secs(30);

trials! { "recipes":
    attacher_and_driver_run_by_hand,
    kubectl_completes_the_plugin,
}

/// The attacher becomes ready with the driver of another block, and the API server of the kubeconfig in the home directory.
async fn attacher_and_driver_run_by_hand(harness: Arc<Harness>) -> Result<()> {
    let backend = Backend::Embedded(ClusterSettings::DEFAULT);
    let cluster = Cluster::start(&harness.run, &harness.toolchain, backend).await?;
    let (http, admin) = (free_address()?, free_address()?);
    let shell = Shell::new(&harness.run, "by-hand")?
        .program("csi-attacher", &harness.toolchain.csi_attacher().await?)?
        .program("csi-mock-driver", &harness.toolchain.csi_mock_driver().await?)?;
    let home = shell.home();
    let socket = home.join("csi.sock").display().to_string();
    let shell = shell
        .replacing(
            "cargo run -p csi-mock-driver --",
            "exec csi-mock-driver --devices=emulated",
        )
        .replacing("target/release/csi-attacher", "exec csi-attacher")
        .replacing("/tmp/csi.sock", &socket)
        .replacing("/run/csi/socket", &socket)
        .replacing("127.0.0.1:9810", &admin.to_string())
        .replacing(":8080", &http.to_string());
    std::fs::create_dir(home.join(".kube")).context("make ~/.kube")?;
    std::fs::copy(cluster.admin_kubeconfig(), home.join(".kube/config")).context("write ~/.kube/config")?;

    let driver = shell.start(&block(README, "cargo run -p csi-mock-driver")?)?;
    let attacher = shell.start(&block(README, "cargo build --release -p csi-attacher")?)?;
    let ready = async |address: SocketAddr, path: &str| until(address, path, |text| text == "ok\n").await;
    attacher
        .while_alive(driver.while_alive(ready(http, "/readyz")))
        .await?;
    driver
        .while_alive(until(admin, "/", |text| text.contains("<html")))
        .await?;
    shell.ensure_all_replaced()?;
    stop_in_reverse(&[driver, attacher], GRACE).await?;
    cluster.stop().await
}

/// Bash completes the plugin's own name with the script that the plugin prints, kubectl with the one in the document.
async fn kubectl_completes_the_plugin(harness: Arc<Harness>) -> Result<()> {
    let shell = Shell::new(&harness.run, "completion")?
        .program("kubectl", &harness.toolchain.kubectl().await?)?
        .program("kubectl-csi_attach", &harness.toolchain.explain_plugin().await?)?;
    let source = block(EXPLAIN, "source <(kubectl")?;
    let completed = shell
        .run(&format!("{source}complete -p kubectl-csi_attach"))
        .await?;
    ensure!(
        completed.contains("kubectl-csi_attach"),
        "bash completes {completed}"
    );
    shell.script("kubectl_complete-csi_attach", &block(EXPLAIN, "#!/bin/sh")?)?;
    let completed = shell.run("kubectl __complete csi-attach ''").await?;
    ensure!(completed.contains("explain"), "kubectl completes {completed}");
    Ok(())
}
