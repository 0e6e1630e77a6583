//! The state of mounted volumes on a node's disk, like kubelet's `vol_data.json` files: a restarted kubelet
//! reconstructs its volumes from it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::mount_spec::MountSpec;
use crate::volume::{CSI_PLUGIN, sha256_hex};

/// kubelet's volume directories.
#[derive(Clone, Debug)]
pub struct NodeDisk {
    root: PathBuf,
    /// Whether directories are created in the filesystem, for a driver that mounts.
    real: bool,
    entries: Arc<Mutex<BTreeMap<PathBuf, VolumeData>>>,
}

/// The volume of a directory.
#[derive(Clone, Debug)]
pub(crate) struct VolumeData {
    pub spec: MountSpec,
    /// UID of the pod; `None` for a staging directory.
    pub pod: Option<String>,
}

// === impl NodeDisk ===

impl NodeDisk {
    /// Directories under `root` that exist only in memory, for a driver that does not mount.
    pub fn in_memory(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            real: false,
            entries: Arc::default(),
        }
    }

    /// Directories under `root`.
    pub fn on(root: &Path) -> Self {
        Self {
            real: true,
            ..Self::in_memory(root)
        }
    }

    /// Where the volume is staged.
    pub(crate) fn staging_path(&self, spec: &MountSpec) -> PathBuf {
        if spec.block {
            return self.device_directory("staging").join(&spec.name);
        }
        self.root
            .join("plugins")
            .join(CSI_PLUGIN)
            .join(&spec.driver)
            .join(sha256_hex(&spec.handle))
            .join("globalmount")
    }

    /// Where the volume is published to a pod.
    pub(crate) fn target_path(&self, spec: &MountSpec, pod: &str) -> PathBuf {
        if spec.block {
            return self.device_directory("publish").join(&spec.name).join(pod);
        }
        self.root
            .join("pods")
            .join(pod)
            .join("volumes/kubernetes.io~csi")
            .join(&spec.name)
            .join("mount")
    }

    /// Where all pods find the device of a block volume.
    pub(crate) fn global_map_path(&self, spec: &MountSpec) -> PathBuf {
        self.device_directory(&spec.name).join("dev")
    }

    /// The directory with a pod's links to the devices of its block volumes.
    pub(crate) fn pod_device_map_path(&self, pod: &str) -> PathBuf {
        self.root
            .join("pods")
            .join(pod)
            .join("volumeDevices/kubernetes.io~csi")
    }

    fn device_directory(&self, name: &str) -> PathBuf {
        self.root
            .join("plugins")
            .join(CSI_PLUGIN)
            .join("volumeDevices")
            .join(name)
    }

    /// Records the volume. Must precede the driver's call, so that a restarted kubelet finds the volume.
    pub(crate) fn save(&self, path: &Path, data: VolumeData) -> std::io::Result<()> {
        if self.real {
            // kubelet creates the staging directory and the parent of the target; the driver creates the target.
            let directory = if data.pod.is_none() {
                Some(path)
            } else {
                path.parent()
            };
            if let Some(directory) = directory {
                std::fs::create_dir_all(directory)?;
            }
        }
        self.lock().insert(path.to_owned(), data);
        Ok(())
    }

    /// Removes the record of an unmounted volume.
    pub(crate) fn remove(&self, path: &Path) {
        let removed = self.lock().remove(path);
        if self.real && removed.is_some() {
            // The driver may have removed the directory, and the parent holds no data.
            drop(std::fs::remove_dir(path));
            if let Some(parent) = path.parent() {
                drop(std::fs::remove_dir(parent));
            }
        }
    }

    /// The volumes that a restarted kubelet reconstructs: those in directories of pods (`getVolumesFromPodDir`), and none that is
    /// staged only (kubernetes#85476, #121937).
    pub(crate) fn volumes(&self) -> Vec<VolumeData> {
        let entries = self.lock();
        let found = entries.values().filter(|volume| volume.pod.is_some());
        found.cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, VolumeData>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::mount_spec::tests::mk_spec;
    use super::*;

    #[test]
    fn restarted_kubelet_finds_no_volume_that_is_staged_only() {
        let disk = NodeDisk::in_memory(Path::new("/k"));
        let spec = mk_spec();
        let data = |pod: Option<&str>| VolumeData {
            spec: spec.clone(),
            pod: pod.map(str::to_owned),
        };
        disk.save(&disk.staging_path(&spec), data(None)).unwrap();
        assert_eq!(disk.volumes().len(), 0);
        disk.save(&disk.target_path(&spec, "uid"), data(Some("uid")))
            .unwrap();
        assert_eq!(disk.volumes().len(), 1);
    }
}
