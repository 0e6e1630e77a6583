//! The volumes that should be attached: node -> volume -> pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::volume::{UniqueVolumeName, VolumeSpec};

/// A pod that needs a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodToAdd {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// A volume to be attached to a node.
#[derive(Clone, Debug)]
pub(crate) struct VolumeToAttach {
    pub volume_name: UniqueVolumeName,
    pub node_name: String,
    pub spec: Arc<VolumeSpec>,
    pub scheduled_pods: Vec<PodToAdd>,
    pub multi_attach_error_reported: bool,
}

/// Node -> volume -> pods.
#[derive(Debug, Default)]
pub(crate) struct DesiredStateOfWorld {
    nodes: BTreeMap<String, NodeManaged>,
}

#[derive(Debug, Default)]
struct NodeManaged {
    volumes: BTreeMap<UniqueVolumeName, Volume>,
}

#[derive(Debug)]
struct Volume {
    spec: Arc<VolumeSpec>,
    pods: BTreeMap<String, PodToAdd>,
    multi_attach_error_reported: bool,
}

/// The node still has volumes that should be attached.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to delete node {node:?} from list of nodes managed by attach/detach controller--the node still \
     contains {volumes} volumes in its list of volumes to attach"
)]
pub(super) struct NodeHasVolumes {
    node: String,
    volumes: usize,
}

// === impl DesiredStateOfWorld ===

impl DesiredStateOfWorld {
    /// Adds a node with controller-managed attach and detach.
    pub(crate) fn add_node(&mut self, node: &str) {
        self.nodes.entry(node.to_owned()).or_default();
    }

    /// Adds a pod that needs a volume on a node; ignores a node that is not managed.
    pub(crate) fn add_pod(&mut self, pod: PodToAdd, spec: Arc<VolumeSpec>, node: &str) -> bool {
        let Some(node) = self.nodes.get_mut(node) else {
            return false;
        };
        let volume = node.volumes.entry(spec.unique_name()).or_insert_with(|| Volume {
            spec,
            pods: BTreeMap::new(),
            multi_attach_error_reported: false,
        });
        volume.pods.insert(pod.uid.clone(), pod).is_none()
    }

    /// Removes a node without volumes.
    pub(super) fn delete_node(&mut self, node: &str) -> Result<(), NodeHasVolumes> {
        let Some(managed) = self.nodes.get(node) else {
            return Ok(());
        };
        if !managed.volumes.is_empty() {
            return Err(NodeHasVolumes {
                node: node.to_owned(),
                volumes: managed.volumes.len(),
            });
        }
        self.nodes.remove(node);
        Ok(())
    }

    /// Removes a pod from a volume, and the volume if it was its last pod.
    pub(crate) fn delete_pod(&mut self, pod_uid: &str, volume_name: &str, node: &str) -> bool {
        let Some(managed) = self.nodes.get_mut(node) else {
            return false;
        };
        let Some(volume) = managed.volumes.get_mut(volume_name) else {
            return false;
        };
        let removed = volume.pods.remove(pod_uid).is_some();
        if volume.pods.is_empty() {
            managed.volumes.remove(volume_name);
        }
        removed
    }

    pub(crate) fn node_exists(&self, node: &str) -> bool {
        self.nodes.contains_key(node)
    }

    pub(crate) fn volume_exists(&self, volume_name: &str, node: &str) -> bool {
        self.nodes
            .get(node)
            .is_some_and(|managed| managed.volumes.contains_key(volume_name))
    }

    /// Records that the multi-attach error of the volume on the node was reported.
    pub(crate) fn set_multi_attach_error(&mut self, volume_name: &str, node: &str) {
        if let Some(volume) = self
            .nodes
            .get_mut(node)
            .and_then(|managed| managed.volumes.get_mut(volume_name))
        {
            volume.multi_attach_error_reported = true;
        }
    }

    /// The spec of the volume if it should be attached to the node.
    pub(crate) fn spec(&self, volume_name: &str, node: &str) -> Option<&VolumeSpec> {
        Some(&self.nodes.get(node)?.volumes.get(volume_name)?.spec)
    }

    /// The volume that should be attached to the node.
    pub(crate) fn get_volume_to_attach(&self, volume_name: &str, node: &str) -> Option<VolumeToAttach> {
        let volume = self.nodes.get(node)?.volumes.get(volume_name)?;
        Some(volume.to_attach(volume_name, node))
    }

    /// All volumes that should be attached.
    pub(crate) fn get_volumes_to_attach(&self) -> Vec<VolumeToAttach> {
        let nodes = self.nodes.iter();
        nodes
            .flat_map(|(node, managed)| {
                let volumes = managed.volumes.iter();
                volumes.map(move |(name, volume)| volume.to_attach(name, node))
            })
            .collect()
    }

    /// Every pod with one of its volumes and its node.
    pub(crate) fn get_pod_to_add(&self) -> Vec<(PodToAdd, UniqueVolumeName, String)> {
        self.nodes
            .iter()
            .flat_map(|(node, managed)| {
                managed.volumes.iter().flat_map(move |(name, volume)| {
                    volume
                        .pods
                        .values()
                        .map(move |pod| (pod.clone(), name.clone(), node.clone()))
                })
            })
            .collect()
    }

    /// The pods that need the volume on one of `nodes`.
    pub(crate) fn get_volume_pods_on_nodes(&self, nodes: &[String], volume_name: &str) -> Vec<PodToAdd> {
        nodes
            .iter()
            .filter_map(|node| self.nodes.get(node)?.volumes.get(volume_name))
            .flat_map(|volume| volume.pods.values().cloned())
            .collect()
    }

    /// Number of volumes by driver.
    pub(crate) fn volumes_by_driver(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for volume in self.nodes.values().flat_map(|managed| managed.volumes.values()) {
            *counts.entry(volume.spec.driver.clone()).or_default() += 1;
        }
        counts
    }
}

// === impl Volume ===

impl Volume {
    fn to_attach(&self, name: &str, node: &str) -> VolumeToAttach {
        VolumeToAttach {
            volume_name: name.to_owned(),
            node_name: node.to_owned(),
            spec: self.spec.clone(),
            scheduled_pods: self.pods.values().cloned().collect(),
            multi_attach_error_reported: self.multi_attach_error_reported,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::attach_detach) fn mk_pod(name: &str) -> PodToAdd {
        PodToAdd {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
        }
    }

    pub(in crate::attach_detach) fn mk_spec(handle: &str, mode: &str) -> Arc<VolumeSpec> {
        Arc::new(VolumeSpec {
            name: format!("pv-{handle}"),
            driver: "d".to_owned(),
            handle: handle.to_owned(),
            access_modes: vec![mode.to_owned()],
            inline: None,
        })
    }

    #[test]
    fn volume_is_desired_while_a_pod_on_a_managed_node_needs_it() {
        let spec = mk_spec("v", "ReadWriteOnce");
        let name = spec.unique_name();
        let mut desired = DesiredStateOfWorld::default();
        assert!(
            !desired.add_pod(mk_pod("p"), spec.clone(), "a"),
            "node a is not managed"
        );
        assert!(!desired.volume_exists(&name, "a"));

        desired.add_node("a");
        assert!(desired.add_pod(mk_pod("p"), spec.clone(), "a"));
        assert!(desired.add_pod(mk_pod("q"), spec.clone(), "a"));
        assert!(!desired.add_pod(mk_pod("q"), spec, "a"), "already there");
        assert_eq!(
            desired.get_volumes_to_attach().len(),
            1,
            "one volume for both pods"
        );
        assert!(desired.delete_node("a").is_err());

        assert!(desired.delete_pod("uid-p", &name, "a"));
        assert!(desired.volume_exists(&name, "a"));
        assert!(desired.delete_pod("uid-q", &name, "a"));
        assert!(!desired.volume_exists(&name, "a"));
        assert_eq!(desired.delete_node("a"), Ok(()));
        assert!(!desired.node_exists("a"));
    }

    #[test]
    fn multi_attach_error_is_remembered_until_the_volume_is_no_longer_desired() {
        let spec = mk_spec("v", "ReadWriteOnce");
        let name = spec.unique_name();
        let mut desired = DesiredStateOfWorld::default();
        desired.add_node("a");
        desired.add_pod(mk_pod("p"), spec.clone(), "a");
        desired.set_multi_attach_error(&name, "a");
        assert!(desired.get_volumes_to_attach()[0].multi_attach_error_reported);
        desired.delete_pod("uid-p", &name, "a");
        desired.add_pod(mk_pod("p"), spec, "a");
        assert!(!desired.get_volumes_to_attach()[0].multi_attach_error_reported);
    }
}
