//! Kubernetes' storage suite against driver and attacher on real nodes.

mod results;
mod selection;
mod ssh;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub use results::Results;
pub use selection::{Family, Selection};

use super::RealNodes;
use crate::process::{Process, Spec};
use crate::toolchain::{NodePrograms, SuitePrograms, Toolchain, workspace_root};
use selection::LeftOut;
use ssh::Ssh;

/// What is deployed for the suite.
pub const SUITE_OVERLAY: &str = "deploy/overlays/mock-driver-group-snapshots";
/// Feature gates that are off by default and that tests need.
const GATES: &[&str] = &["CSIVolumeHealth", "VolumeLimitScaling"];
/// Beside the overlay: the VolumeAttributesClass that the driver's definition names.
const TIERS: &str = "deploy/examples/tiers.yaml";
const DEFINITION: &str = "deploy/e2e-suite/testdriver.yaml";
/// Longer than the whole suite.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);

/// Feature gates of nodes with these programs.
pub(super) fn gates(programs: &NodePrograms) -> &'static [&'static str] {
    match programs.suite {
        Some(_) => GATES,
        None => &[],
    }
}

// === impl RealNodes ===

impl RealNodes {
    /// Prepares the cluster for the suite and deploys the driver.
    ///
    /// Returns the snapshot controller, which ends when it is dropped.
    pub async fn deploy_for_suite(&self, toolchain: &Toolchain, suite: &SuitePrograms) -> Result<Process> {
        let definitions = toolchain.snapshot_definitions().await?;
        self.cluster.apply_definitions(&definitions).await?;
        let controller = Spec::new("snapshot-controller", &suite.snapshot_controller).arg(format!(
            "--kubeconfig={}",
            self.cluster.admin_kubeconfig().display()
        ));
        let controller = Process::spawn(&self.run, controller)?;
        self.deploy().await?;
        let tiers = std::fs::read_to_string(workspace_root().join(TIERS)).context("read the tiers")?;
        let is_class = |document: &&str| document.contains("\nkind: VolumeAttributesClass\n");
        let classes: Vec<_> = tiers.split("\n---\n").filter(is_class).collect();
        self.cluster.apply(&classes.join("\n---\n")).await?;
        Ok(controller)
    }

    /// Runs the selected tests, and returns the results and the log.
    pub async fn run_suite(
        &self,
        suite: &SuitePrograms,
        selection: &Selection,
        processes: u16,
    ) -> Result<(Results, PathBuf)> {
        let dir = self.run.subdir("suite")?;
        let kubeconfig = self.cluster.admin_kubeconfig().display();
        let definition = workspace_root().join(DEFINITION);
        let left_out = LeftOut::all()?;
        let skip: Vec<_> = left_out.iter().map(LeftOut::pattern).collect();
        // ginkgo knows a test program by this suffix.
        let program = dir.join("e2e.test");
        std::os::unix::fs::symlink(&suite.suite, &program).context("link the suite")?;
        let ssh = Ssh::start(self, &suite.ssh, &dir).await?;
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
        let ginkgo = Process::spawn(&self.run, ginkgo)?;
        let exit = ssh.bastion.while_alive(ginkgo.exited_within(LIMIT));
        let exit = self.while_alive(exit).await?;
        let results = Results::read(&dir.join("report.json"), selection, &left_out);
        let results = results.with_context(|| format!("ginkgo: {}", ginkgo.log_tail(20)))?;
        // What prepares or ends the suite can fail without a failed test.
        ensure!(
            exit.status.success() || results.failed() > 0,
            "ginkgo ended with {} although no test failed: {}",
            exit.status,
            ginkgo.log_tail(20)
        );
        Ok((results, ginkgo.stdout().to_owned()))
    }
}
