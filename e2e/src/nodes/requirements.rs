//! Requirements of real nodes on the machine.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{leftovers, stdout_of_blocking};
use crate::toolchain::Settings;

/// Programs, and their Debian packages.
const PROGRAMS: [(&str, &str); 9] = [
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("losetup", "mount"),
    ("ip", "iproute2"),
    ("tar", "tar"),
    ("runc", "runc"),
    ("busybox", "busybox-static"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
];

/// Plugins of CNI, from containernetworking-plugins.
const PLUGINS: [&str; 3] = ["ptp", "host-local", "loopback"];

/// The reason that real nodes cannot run on this machine, if any.
pub fn missing_requirement(settings: &Settings) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("real nodes need root".to_owned());
    }
    missing_program(settings)
        .or_else(|| failure("namespaces cannot be made", make_namespaces))
        .or_else(|| failure("a loop device cannot be attached", attach_loop_device))
        .or_else(|| failure("a cgroup cannot be made", make_cgroup))
}

fn failure(what: &str, probe: fn() -> Result<()>) -> Option<String> {
    probe().err().map(|error| format!("{what}: {error:#}"))
}

fn missing_program(settings: &Settings) -> Option<String> {
    if settings.require_go().is_err() {
        return Some("`go` is not on PATH".to_owned());
    }
    for (program, package) in PROGRAMS {
        if settings.on_path(program).is_none() {
            return Some(format!("{program} is not on PATH (Debian: {package})"));
        }
    }
    for plugin in PLUGINS {
        if !Path::new("/usr/lib/cni").join(plugin).exists() {
            return Some(format!(
                "there is no /usr/lib/cni/{plugin} (Debian: containernetworking-plugins)"
            ));
        }
    }
    None
}

fn make_namespaces() -> Result<()> {
    let in_namespaces = "mount -t tmpfs tmpfs /run && ip link add name a type veth peer name b";
    let mut unshare = Command::new("unshare");
    unshare
        .args([
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--fork",
            "--mount-proc",
        ])
        .args(["sh", "-c", in_namespaces]);
    stdout_of_blocking(&mut unshare).map(drop)
}

/// Attaches a loop device to a file and detaches it.
fn attach_loop_device() -> Result<()> {
    let dir = tempfile::tempdir().context("make a temporary directory")?;
    let path = dir.path().join("disk");
    let file = File::create(&path).context("create a file")?;
    file.set_len(1 << 20).context("enlarge a file")?;
    let device = stdout_of_blocking(Command::new("losetup").args(["--find", "--show"]).arg(path))?;
    stdout_of_blocking(Command::new("losetup").args(["--detach", device.trim()])).map(drop)
}

/// Creates a cgroup in each hierarchy and removes it.
fn make_cgroup() -> Result<()> {
    let dir = tempfile::Builder::new()
        .prefix("csi-e2e-")
        .tempdir()
        .context("make a temporary directory")?;
    let made = leftovers::make_cgroup(dir.path(), "probe");
    let removed = leftovers::remove_cgroups(dir.path());
    made.and(removed)
}
