//! What real nodes need of the machine.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::toolchain::Settings;

/// Programs, and the Debian packages they come in.
const PROGRAMS: [(&str, &str); 7] = [
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("losetup", "mount"),
    ("ip", "iproute2"),
    ("tar", "tar"),
    ("runc", "runc"),
    ("busybox", "busybox-static"),
];

/// Plugins of CNI, from containernetworking-plugins.
const PLUGINS: [&str; 3] = ["ptp", "host-local", "loopback"];

/// Why real nodes cannot run here, if they cannot.
pub fn missing_requirement(settings: &Settings) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("real nodes need root".to_owned());
    }
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
    if !Path::new("/dev/loop-control").exists() {
        return Some("there is no /dev/loop-control".to_owned());
    }
    let namespaces = "mount -t tmpfs tmpfs /run && ip link add name a type veth peer name b";
    let tried = Command::new("unshare")
        .args([
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--fork",
            "--mount-proc",
        ])
        .args(["sh", "-c", namespaces])
        .stdin(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "namespaces cannot be made: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Some(format!("unshare cannot be run: {error}")),
    }
}
