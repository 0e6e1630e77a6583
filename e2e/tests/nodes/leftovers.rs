//! Leftovers of volumes on the nodes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use csi_e2e::nodes::RealNodes;

/// Parent directories of raw block volumes in kubelet's directory. kubelet keeps them.
const PARENTS: [&str; 2] = ["volumeDevices/publish", "volumeDevices/staging"];

/// Loop devices, mounts and directories of volumes.
pub(crate) fn left_on_nodes(nodes: &RealNodes) -> Result<Vec<String>> {
    let devices = nodes.loop_devices()?;
    let mut left: Vec<_> = devices
        .iter()
        .map(|device| device.display().to_string())
        .collect();
    for node in nodes.nodes() {
        for mount in node.mounts()? {
            let path = mount.mount_point.display().to_string();
            if path.contains("kubernetes.io~csi") || path.contains("plugins/kubernetes.io/csi") {
                left.push(format!("{} on {}", path, node.name()));
            }
        }
        let directories = directories(&node.kubelet_dir())?;
        left.extend(directories.iter().map(|path| path.display().to_string()));
    }
    Ok(left)
}

/// The directories in which kubelet stages and publishes volumes.
fn directories(kubelet: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for driver in entries(&kubelet.join("plugins/kubernetes.io/csi"))? {
        for volume in entries(&driver)? {
            let is_parent = PARENTS.iter().any(|parent| volume.ends_with(parent));
            found.extend(if is_parent {
                entries(&volume)?
            } else {
                vec![volume]
            });
        }
    }
    for pod in entries(&kubelet.join("pods"))? {
        for kind in ["volumes", "volumeDevices"] {
            found.extend(entries(&pod.join(kind).join("kubernetes.io~csi"))?);
        }
    }
    Ok(found)
}

/// The entries of a directory, if it exists.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
            return Ok(Vec::new());
        }
        entries => entries.with_context(|| format!("list {}", dir.display()))?,
    };
    let paths: std::io::Result<_> = entries.map(|entry| Ok(entry?.path())).collect();
    paths.with_context(|| format!("list {}", dir.display()))
}
