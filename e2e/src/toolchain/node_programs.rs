//! The programs of real nodes and their pods: kubelet, containerd, the sidecars of `deploy/`, this workspace's programs
//! as static executables, and Debian's programs for devices and filesystems.
//!
//! Cold builds take half an hour, so tests only use existing builds; `--bin nodes -- --build` builds the programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use ring::digest::{SHA256, digest};
use tokio::time::Instant;

use super::go::GoProgram;
use super::{Peer, Toolchain, is_executable, lock, progress, workspace_root};
use crate::process;

/// Number of log lines in the error of a failed build.
const TAIL_LINES: usize = 30;

/// Debian packages of a node's root filesystem, as in `deploy/images/Containerfile`.
const DEBIAN: [&str; 3] = [
    "--variant=minbase",
    "--include=mount,e2fsprogs,xfsprogs",
    "bookworm",
];

/// Directories that the driver does not need: half of Debian's size.
const UNUSED: [&str; 5] = [
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
];

const KUBELET: GoProgram = GoProgram {
    module: "e2e/control-plane",
    package: "k8s.io/kubernetes/cmd/kubelet",
    name: "kubelet",
    stamps: &[("k8s.io/component-base/version.gitVersion", "k8s.io/kubernetes")],
    what: "kubelet",
    expectation: "about 3 minutes on two cores from cold caches",
};
const CONTAINERD: GoProgram =
    node_program("github.com/containerd/containerd/v2/cmd/containerd", "containerd");
const SHIM: GoProgram = node_program(
    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    "containerd-shim-runc-v2",
);
const CTR: GoProgram = node_program("github.com/containerd/containerd/v2/cmd/ctr", "ctr");
const SIDECARS: [Peer; 5] = [
    Peer::ExternalAttacher,
    Peer::ExternalProvisioner,
    Peer::ExternalResizer,
    Peer::ExternalSnapshotter,
    Peer::SnapshotController,
];
/// The storage part of Kubernetes' e2e.test.
const SUITE: GoProgram = suite_program(".", "suite");
const AGNHOST: GoProgram = suite_program("k8s.io/kubernetes/test/images/agnhost", "agnhost");
const GINKGO: GoProgram = suite_program("github.com/onsi/ginkgo/v2/ginkgo", "ginkgo");
const NODE_SIDECAR: GoProgram = suite_program("./sidecar", "suite-sidecar");
/// The bastion through which the suite reaches nodes by SSH.
const SUITE_SSH: GoProgram = suite_program("./ssh", "suite-ssh");
/// The suite's images that tests of CSI drivers use.
const SUITE_IMAGES: [&str; 12] = [
    "/e2e-test-images/agnhost:",
    "/e2e-test-images/busybox:",
    "/e2e-test-images/glibc-dns-testing:",
    "/e2e-test-images/nginx:",
    "/pause:",
    "/sig-storage/csi-attacher:",
    "/sig-storage/csi-node-driver-registrar:",
    "/sig-storage/csi-provisioner:",
    "/sig-storage/csi-resizer:",
    "/sig-storage/csi-snapshotter:",
    "/sig-storage/hostpathplugin:",
    "/sig-storage/livenessprobe:",
];

/// The programs of real nodes and their images.
#[derive(Clone, Debug)]
pub struct NodePrograms {
    pub(crate) kubelet: PathBuf,
    pub(crate) containerd: PathBuf,
    /// In containerd's `PATH`.
    pub(crate) shim: PathBuf,
    pub(crate) ctr: PathBuf,
    pub(crate) external_attacher: PathBuf,
    pub(crate) provisioner: PathBuf,
    pub(crate) resizer: PathBuf,
    pub(crate) snapshotter: PathBuf,
    pub(crate) snapshot_controller: PathBuf,
    /// In place of node-driver-registrar and livenessprobe.
    pub(crate) node_sidecar: PathBuf,
    /// Static.
    pub(crate) attacher: PathBuf,
    /// Static.
    pub(crate) driver: PathBuf,
    /// Image layer with Debian's programs for devices and filesystems.
    pub(crate) debian: PathBuf,
    /// Only for Kubernetes' storage suite.
    pub suite: Option<SuitePrograms>,
}

/// The programs and images of Kubernetes' storage suite.
#[derive(Clone, Debug)]
pub struct SuitePrograms {
    /// `e2e.test`.
    pub suite: PathBuf,
    /// Its runner.
    pub ginkgo: PathBuf,
    pub(crate) agnhost: PathBuf,
    /// The SSH bastion.
    pub ssh: PathBuf,
    /// Names of the suite's images.
    pub(crate) images: Vec<String>,
}

const fn suite_program(package: &'static str, name: &'static str) -> GoProgram {
    GoProgram {
        module: "e2e/suite",
        ..node_program(package, name)
    }
}

const fn node_program(package: &'static str, name: &'static str) -> GoProgram {
    GoProgram {
        module: "e2e/nodes",
        package,
        name,
        stamps: &[],
        what: name,
        expectation: "about 5 minutes on two cores from cold caches",
    }
}

// === impl Toolchain ===

impl Toolchain {
    /// The programs of Kubernetes' storage suite, built on first use.
    pub async fn build_suite_programs(&self) -> Result<SuitePrograms> {
        let suite = self.go_program(&SUITE).await?;
        let mut list = self.command(&suite, workspace_root());
        let images = process::stdout_of(list.arg("--list-images")).await?;
        let used = images
            .lines()
            .filter(|name| SUITE_IMAGES.iter().any(|image| name.contains(image)));
        Ok(SuitePrograms {
            images: used.map(|name| name.trim().to_owned()).collect(),
            suite,
            ginkgo: self.go_program(&GINKGO).await?,
            agnhost: self.go_program(&AGNHOST).await?,
            ssh: self.go_program(&SUITE_SSH).await?,
        })
    }

    async fn are_built(&self, programs: &[GoProgram]) -> Result<bool> {
        for program in programs {
            if self.built_go_program(program).await?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The programs, if all are built; this workspace's programs are rebuilt if they changed.
    pub async fn built_node_programs(&self) -> Result<Option<NodePrograms>> {
        let sidecars = SIDECARS.map(Peer::program);
        let nodes = [KUBELET, CONTAINERD, SHIM, CTR, NODE_SIDECAR];
        if !self.are_built(&nodes).await? || !self.are_built(&sidecars).await? {
            return Ok(None);
        }
        let debian = self.debian_layer()?.is_file();
        let own = self.static_binaries()?.iter().all(|binary| is_executable(binary));
        if debian && own {
            return self.build_node_programs().await.map(Some);
        }
        Ok(None)
    }

    /// The programs, built on first use.
    pub async fn build_node_programs(&self) -> Result<NodePrograms> {
        let debian = self.build_debian_layer().await?;
        let [attacher, driver] = self.build_static_binaries().await?;
        Ok(NodePrograms {
            kubelet: self.go_program(&KUBELET).await?,
            containerd: self.go_program(&CONTAINERD).await?,
            shim: self.go_program(&SHIM).await?,
            ctr: self.go_program(&CTR).await?,
            external_attacher: self.peer(Peer::ExternalAttacher).await?,
            provisioner: self.peer(Peer::ExternalProvisioner).await?,
            resizer: self.peer(Peer::ExternalResizer).await?,
            snapshotter: self.peer(Peer::ExternalSnapshotter).await?,
            snapshot_controller: self.peer(Peer::SnapshotController).await?,
            node_sidecar: self.go_program(&NODE_SIDECAR).await?,
            attacher,
            driver,
            debian,
            suite: None,
        })
    }

    /// Attacher and driver, built like `deploy/images/binaries`, or from the settings.
    fn static_binaries(&self) -> Result<[PathBuf; 2]> {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let built = self.target_dir()?.join("csi-e2e/images").join(architecture);
        let named = |setting: &Option<PathBuf>, name| setting.clone().unwrap_or_else(|| built.join(name));
        let attacher = named(&self.settings.attacher, "csi-attacher");
        Ok([attacher, named(&self.settings.mock_driver, "csi-mock-driver")])
    }

    /// Takes a second if nothing has changed.
    async fn build_static_binaries(&self) -> Result<[PathBuf; 2]> {
        let binaries = self.static_binaries()?;
        if self.settings.attacher.is_some() && self.settings.mock_driver.is_some() {
            return Ok(binaries);
        }
        let target = self.target_dir()?;
        let builds = target.join("csi-e2e");
        fs::create_dir_all(&builds).with_context(|| format!("make {}", builds.display()))?;
        let _lock = lock(builds.join("images.lock"), "static executables").await?;
        let script = workspace_root().join("deploy/images/binaries");
        let out = builds.join("images");
        let mut command = self.command(&script, workspace_root());
        for name in verdict::CALLERS_PACKAGE_VARIABLES {
            command.env_remove(name);
        }
        command.arg(&out).env("CARGO_TARGET_DIR", &target);
        self.watched(
            command,
            &builds.join("images.log"),
            "static executables (release)",
        )
        .await?;
        Ok(binaries)
    }

    fn debian_layer(&self) -> Result<PathBuf> {
        let input = format!("{DEBIAN:?} {UNUSED:?}");
        let hash = digest(&SHA256, input.as_bytes());
        let key: String = hash
            .as_ref()
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok(self.target_dir()?.join(format!("csi-e2e/debian-{key}/layer.tar")))
    }

    async fn build_debian_layer(&self) -> Result<PathBuf> {
        let layer = self.debian_layer()?;
        let finished = layer.parent().context("the layer must lie in a directory")?;
        let builds = finished.parent().context("builds must lie in a directory")?;
        fs::create_dir_all(builds).with_context(|| format!("make {}", builds.display()))?;
        let _lock = lock(builds.join("debian.lock"), "Debian's root filesystem").await?;
        if layer.is_file() {
            return Ok(layer);
        }
        let unfinished = builds.join("debian-unfinished");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).with_context(|| format!("remove {}", unfinished.display()))?;
        }
        let root = unfinished.join("root");
        fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
        let log = unfinished.join("build.log");
        // It mounts /proc in the new root.
        let mut debootstrap = self.command("unshare".as_ref(), &unfinished);
        debootstrap
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "debootstrap",
            ])
            .args(&DEBIAN[..2])
            .args([DEBIAN[2], "root"]);
        self.watched(debootstrap, &log, "Debian's root filesystem")
            .await?;
        for unused in UNUSED {
            let dir = root.join(unused);
            fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
        }
        let mut tar = self.command("tar".as_ref(), &unfinished);
        // Container runtimes create the devices.
        tar.args([
            "--create",
            "--file=layer.tar",
            "--exclude=./dev/*",
            "--exclude=./proc/*",
        ])
        .args(["--directory=root", "."]);
        self.watched(tar, &log, "Debian's image layer").await?;
        fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
        fs::rename(&unfinished, finished).with_context(|| format!("put {} in place", finished.display()))?;
        Ok(layer)
    }

    /// Runs a build with its output in `log`.
    async fn watched(&self, mut command: tokio::process::Command, log: &Path, what: &str) -> Result<()> {
        let file = fs::File::create(log).with_context(|| format!("open {}", log.display()))?;
        let errors = file.try_clone().context("share the log of a build")?;
        let mut child = command
            .stdout(Stdio::from(file))
            .stderr(Stdio::from(errors))
            .spawn()
            .with_context(|| format!("start the build of {what}"))?;
        let last = || process::tail(log, 1).unwrap_or_default();
        let status = progress::watch(&mut child, what, Instant::now(), last).await?;
        ensure!(
            status.success(),
            "the build of {what} ended with {status}:\n{}",
            process::tail(log, TAIL_LINES).unwrap_or_default()
        );
        Ok(())
    }
}
