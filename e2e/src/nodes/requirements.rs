//! Requirements of real nodes on the machine.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use verdict::{Missing, Requirement};

use crate::process::{leftovers, stdout_of_blocking};
use crate::toolchain::Settings;

/// Name of what is missing in `ACCEPTED_SKIPS`.
pub const REAL_KUBELETS: &str = "real-kubelets";

/// Tries what real nodes need.
type Probe = fn() -> Result<()>;

const PROGRAMS: [&str; 9] = [
    "unshare",
    "nsenter",
    "losetup",
    "ip",
    "tar",
    "runc",
    "busybox",
    "mkfs.ext4",
    "mkfs.xfs",
];

/// Plugins of CNI.
const PLUGINS: [&str; 3] = ["ptp", "host-local", "loopback"];

/// What real nodes lack on this machine, if anything.
pub fn missing_requirement(settings: &Settings) -> Option<Missing> {
    let missing = |reason: &str, cure: &str| {
        Some(Missing::new(
            REAL_KUBELETS,
            format!("real kubelets cannot run: {reason}"),
            cure,
        ))
    };
    if let Err(go) = settings.go() {
        return Some(go);
    }
    let programs = PROGRAMS.map(Requirement::Program);
    let unmet = [Requirement::Root]
        .into_iter()
        .chain(programs)
        .find_map(Requirement::missing);
    if let Some(unmet) = unmet {
        return missing(unmet.reason(), unmet.cure());
    }
    if let Some(plugin) = PLUGINS
        .iter()
        .find(|plugin| !Path::new("/usr/lib/cni").join(plugin).exists())
    {
        let reason = format!("there is no /usr/lib/cni/{plugin}");
        return missing(&reason, "apt-get install containernetworking-plugins");
    }
    let probes: [(&str, Probe); 3] = [
        ("namespaces cannot be made", make_namespaces),
        ("a loop device cannot be attached", attach_loop_device),
        ("a cgroup cannot be made", make_cgroup),
    ];
    let failed = probes
        .iter()
        .find_map(|(what, probe)| Some((what, probe().err()?)));
    failed.and_then(|(what, error)| {
        missing(
            &format!("{what}: {error:#}"),
            "a machine, or a privileged container",
        )
    })
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
