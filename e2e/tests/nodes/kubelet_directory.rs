//! The driver on kubelets with another `--root-dir`.

use anyhow::{Context, Result, ensure};
use csi_e2e::nodes::{self, NODES, RealNodes};

use crate::env::Env;
use crate::recipes::write_overlay;
use crate::shared_nodes::Prepared;
use crate::volumes::SCENARIOS;

pub(crate) const NAME: &str = "driver_uses_another_kubelet_directory";
/// The directory that the component sets: k0s' default.
const ROOT_DIR: &str = "/var/lib/k0s/kubelet";
/// Scenarios with paths for filesystems and for devices.
const REPEATED: [&str; 2] = ["pod_attaches", "block_volume_moves_with_its_data"];

/// On separate nodes.
pub(crate) async fn driver_uses_another_kubelet_directory(prepared: Prepared) -> Result<()> {
    let Prepared {
        run,
        toolchain,
        programs,
    } = prepared;
    let overlay = run.dir().join("overlay");
    write_overlay(&overlay, "mock-driver-nodes", &["kubelet-directory"])?;
    let overlay = overlay.display().to_string();
    let nodes = RealNodes::start(&run, &toolchain, programs, &overlay, ROOT_DIR).await?;
    let used = nodes.while_alive(use_volumes(&nodes)).await;
    if used.is_err() {
        run.keep_files()?;
    }
    let used = used.with_context(|| format!("files are in {}", run.dir().display()));
    let used = used.and(nodes.stop().await);
    drop(nodes);
    used.and(run.finish().await)
}

async fn use_volumes(nodes: &RealNodes) -> Result<()> {
    nodes.deploy().await?;
    for name in REPEATED {
        let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
        let scenario = scenario.with_context(|| format!("there is no scenario {name}"))?;
        let env = Env::set_up(nodes, name).await?;
        if let Err(error) = (scenario.run)(&env).await {
            return Err(error.context(env.describe().await));
        }
        env.tear_down().await?;
    }
    // kubelet creates `device-plugins` in its default directory, whatever `--root-dir` is.
    let default = nodes::ROOT_DIR;
    for node in NODES {
        let list = format!("ls {default} 2>/dev/null || true");
        let listed = nodes.node(node)?.command(&["sh", "-c", &list]).await?;
        ensure!(
            listed.split_whitespace().all(|name| name == "device-plugins"),
            "{default} on {node} has {listed}"
        );
    }
    Ok(())
}
