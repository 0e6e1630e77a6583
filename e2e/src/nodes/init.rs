//! The init process of a node, in its own mount, PID, network, UTS and IPC namespaces.
//!
//! The harness executes this executable by `unshare --kill-child`, so that the kernel kills the process with its
//! parent, and all other processes of the PID namespace with it. The kernel removes the mounts and interfaces with the
//! last process.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::WaitOptions;
use tokio::signal::unix::{SignalKind, signal};

/// Variable that makes the executable run as the init process of a node; its value is the node's directory.
pub(super) const INIT: &str = "CSI_E2E_NODE_INIT";
/// Variable with kubelet's `--root-dir`.
pub(super) const ROOT_DIR: &str = "CSI_E2E_NODE_ROOT_DIR";
/// File in the node's directory that exists once all mounts are done.
pub(super) const READY: &str = "ready";
/// kubelet's files, in the node's directory.
pub(super) const KUBELET: &str = "kubelet";
/// Directory that all nodes share, beside their own directories.
pub(super) const ARRAY: &str = "array";

/// Runs as the init process of a node, and does not return, if the harness requested it.
///
/// Must be called in the `main` of every executable that starts real nodes, before it starts threads.
#[expect(
    clippy::disallowed_methods,
    reason = "asked through the environment: arguments belong to main"
)]
#[expect(clippy::exit, reason = "the first process has no main to return to")]
pub fn init_main_if_requested() {
    let Some(dir) = std::env::var_os(INIT).map(PathBuf::from) else {
        return;
    };
    let root_dir = std::env::var_os(ROOT_DIR).map(PathBuf::from);
    let Err(error) = run(&dir, root_dir.as_deref());
    // The harness, which reads stderr, may have exited.
    drop(writeln!(
        std::io::stderr(),
        "init of {}: {error:#}",
        dir.display()
    ));
    std::process::exit(1);
}

fn run(dir: &Path, root_dir: Option<&Path>) -> Result<std::convert::Infallible> {
    let root_dir = root_dir.with_context(|| format!("{ROOT_DIR} must be set"))?;
    let name = dir
        .file_name()
        .context("the directory must be named as the node")?;
    fs::write("/proc/sys/kernel/hostname", name.as_encoded_bytes()).context("set the host name")?;
    mount_all(dir, root_dir)?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("forward packets of pods")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("start a runtime")?.block_on(async {
        let mut ended = signal(SignalKind::child()).context("listen for SIGCHLD")?;
        fs::write(dir.join(READY), "").context("report readiness")?;
        loop {
            ended.recv().await.context("wait for SIGCHLD")?;
            // The kernel reparents every orphan to this process.
            while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
        }
    })
}

/// Mounts directories at the paths that kubelet, containerd and `deploy/` expect, without changing the machine's
/// files.
fn mount_all(dir: &Path, root_dir: &Path) -> Result<()> {
    // Files that the node does not need after it has stopped, including those of containers.
    for path in ["/run", "/var/lib"] {
        let mounted = mount("tmpfs", path, "tmpfs", MountFlags::empty(), None);
        mounted.with_context(|| format!("mount {path}"))?;
    }
    for path in ["/run/lock", "/var/lib/containerd", "/var/lib/cni"] {
        make_dir(Path::new(path))?;
    }
    let bound = [
        (dir.join(KUBELET), root_dir),
        (dir.join("log"), Path::new("/var/log")),
        (dir.with_file_name(ARRAY), Path::new("/var/lib/csi-mock-driver")),
    ];
    for (source, target) in bound {
        make_dir(&source)?;
        make_dir(target)?;
        mount_bind(&source, target).with_context(|| format!("mount {}", target.display()))?;
    }
    // Set shared propagation only after these bind mounts: otherwise each would be a peer of its source directory, and
    // volumes would be mounted twice.
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    mount_change("/", shared).context("share mounts with containers")
}

fn make_dir(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("make {}", path.display()))
}
