//! Kubernetes' storage suite against driver and attacher on real nodes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::nodes::{READY, RealNodes};
use csi_e2e::process::{Process, Spec};
use csi_e2e::toolchain::{SuitePrograms, Toolchain, workspace_root};
use csi_e2e::wait::{self, Progress};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::Api;

use crate::results::Results;
use crate::selection::{LeftOut, Selection};
use crate::ssh::Ssh;

/// The overlay for the suite.
pub(crate) const SUITE_OVERLAY: &str = "deploy/overlays/mock-driver-group-snapshots";
/// Manifest in addition to the overlay: the VolumeAttributesClass of the test driver definition.
const TIERS: &str = "deploy/examples/tiers.yaml";
const SNAPSHOT_CONTROLLER: &str = include_str!("volume-snapshot-controller.yaml");
const DEFINITION: &str = "deploy/e2e-suite/testdriver.yaml";
/// Timeout, longer than the whole suite takes.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

/// The manifests with this number of zones in the array.
fn with_zones(manifests: &str, zones: u8) -> Result<String> {
    // The array's flag for simulated nodes; one zone is the default.
    const FLAG: &str = "--nodes=0";
    let line = manifests.lines().find(|line| line.ends_with(FLAG));
    let line = line.with_context(|| format!("the manifests must have the flag {FLAG}"))?;
    let zones = line.replace(FLAG, &format!("--zones={zones}"));
    Ok(manifests.replace(line, &format!("{line}\n{zones}")))
}

/// Prepares the cluster for the suite and deploys snapshot controller and driver.
pub(crate) async fn deploy(nodes: &RealNodes, toolchain: &Toolchain, zones: u8) -> Result<()> {
    let definitions = toolchain.snapshot_definitions().await?;
    nodes.cluster().apply_definitions(&definitions).await?;
    nodes.cluster().apply(SNAPSHOT_CONTROLLER).await?;
    nodes
        .cluster()
        .apply(&with_zones(nodes.manifests(), zones)?)
        .await?;
    nodes.wait_until_deployed().await?;
    let stateful_sets = Api::<StatefulSet>::namespaced(nodes.client(), "kube-system");
    let ready = wait::for_object(
        &stateful_sets,
        "volume-snapshot-controller",
        READY,
        "the snapshot controller's pod",
        |found| {
            let status = found.and_then(|found| found.status.clone()).unwrap_or_default();
            Progress::of(status.ready_replicas == Some(1), || format!("{status:?}"))
        },
    );
    nodes.while_alive(ready).await?;
    let tiers = std::fs::read_to_string(workspace_root().join(TIERS)).context("read the tiers")?;
    let is_class = |document: &&str| document.contains("\nkind: VolumeAttributesClass\n");
    let classes: Vec<_> = tiers.split("\n---\n").filter(is_class).collect();
    nodes.cluster().apply(&classes.join("\n---\n")).await?;
    Ok(())
}

/// Runs the selected tests, and returns the results and the log.
pub(crate) async fn run(
    nodes: &RealNodes,
    suite: &SuitePrograms,
    selection: &Selection,
    processes: u16,
) -> Result<(Results, PathBuf)> {
    let dir = nodes.run().subdir("suite")?;
    let kubeconfig = nodes.cluster().admin_kubeconfig().display();
    let definition = workspace_root().join(DEFINITION);
    let left_out = LeftOut::all()?;
    let skip: Vec<_> = left_out.iter().map(LeftOut::pattern).collect();
    // ginkgo recognizes a test program by this suffix.
    let program = dir.join("e2e.test");
    std::os::unix::fs::symlink(&suite.suite, &program).context("link the suite")?;
    let ssh = Ssh::start(nodes, &suite.ssh, &dir).await?;
    let ginkgo = Spec::new("suite", &suite.ginkgo)
        .args([
            format!("--procs={processes}"),
            format!("--timeout={}s", LIMIT.as_secs()),
        ])
        .args([
            "--no-color",
            "-v",
            "--output-interceptor-mode=none",
            "--json-report=report.json",
        ])
        .args([
            format!("--focus={}", selection.pattern()),
            format!("--skip={}", skip.join("|")),
        ])
        .arg(program)
        .args(["--", "-provider=local", "-disable-log-dump=true"])
        .arg(format!("-kubeconfig={kubeconfig}"))
        .arg(format!("-storage.testdriver={}", definition.display()))
        // Without it, csi-driver-host-path is not tested with group snapshots.
        .env("CSI_PROW_ENABLE_GROUP_SNAPSHOT", "true")
        .env("KUBE_SSH_BASTION", &ssh.address)
        .env("KUBE_SSH_KEY_PATH", &ssh.key)
        .env("KUBE_SSH_USER", "root")
        .dir(&dir);
    let ginkgo = Process::spawn(nodes.run(), ginkgo)?;
    let exit = ssh.bastion.while_alive(ginkgo.exited_within(LIMIT));
    let exit = nodes.while_alive(exit).await?;
    let results = Results::read(&dir.join("report.json"), selection, &left_out);
    let results = results.with_context(|| format!("ginkgo: {}", ginkgo.log_tail(20)))?;
    // Setup and teardown of the suite can fail without a failed test.
    ensure!(
        exit.status.success() || results.failed() > 0,
        "ginkgo ended with {} although no test failed: {}",
        exit.status,
        ginkgo.log_tail(20)
    );
    Ok((results, ginkgo.stdout().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_a_flag_of_the_array() {
        let manifests = "args:\n  - --mode=controller\n  - --nodes=0\n  - --attach-limit=64\n";
        let expected = "args:\n  - --mode=controller\n  - --nodes=0\n  - --zones=2\n  - --attach-limit=64\n";
        assert_eq!(with_zones(manifests, 2).unwrap(), expected);
        assert!(with_zones("args: []\n", 2).is_err());
    }
}
