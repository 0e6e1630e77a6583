//! The desired state of world: the volumes that pods need.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::{Operation, VolumeManager, VolumeToMount};
use crate::kubelet::mount_spec::MountSpec;
use crate::nestedpendingoperations::OperationKey;
use crate::volume::UniqueVolumeName;

// === impl VolumeManager ===

impl VolumeManager {
    /// The pod needs the volume.
    pub(crate) fn add_pod_to_volume(&mut self, pod: &str, spec: MountSpec) {
        let name = spec.unique_name.clone();
        let of_pod = self.desired_of_pod.entry(pod.to_owned()).or_default();
        of_pod.insert(name.clone(), spec.outer_name.clone());
        self.desired
            .entry(name)
            .or_insert_with(|| VolumeToMount {
                spec: Arc::new(spec),
                reported_in_use: false,
                pods: BTreeSet::new(),
            })
            .pods
            .insert(pod.to_owned());
    }

    /// The pod needs no volume any more.
    pub(crate) fn delete_pod(&mut self, pod: &str) {
        for (name, _) in self.desired_of_pod.remove(pod).into_iter().flatten() {
            if let Entry::Occupied(mut volume) = self.desired.entry(name) {
                volume.get_mut().pods.remove(pod);
                if volume.get().pods.is_empty() {
                    volume.remove();
                }
            }
        }
    }

    /// The desired volumes of the driver need no attach any more (`MarkVolumeAttachability`).
    pub(crate) fn mark_not_attachable(&mut self, driver: &str) {
        let of_driver = self.desired.values_mut();
        for volume in of_driver.filter(|volume| volume.spec.driver == driver && volume.spec.attachable) {
            Arc::make_mut(&mut volume.spec).attachable = false;
        }
    }

    /// `volumesInUse`: desired volumes, and volumes that are not yet unstaged.
    pub(crate) fn volumes_in_use(&self) -> BTreeSet<&str> {
        let desired = self.desired.values().map(|volume| &volume.spec);
        desired
            .chain(self.actual.values().map(|volume| &volume.spec))
            .filter(|spec| spec.attachable)
            .map(|spec| spec.unique_name.as_str())
            .collect()
    }

    /// The API server stored this `volumesInUse`.
    pub(crate) fn mark_volumes_as_reported_in_use(&mut self, stored: &BTreeSet<UniqueVolumeName>) {
        for (name, volume) in &mut self.desired {
            volume.reported_in_use = stored.contains(name);
        }
    }

    /// The node's watch has reported this `volumesAttached`: volumes that are new in it skip their backoff.
    pub(crate) fn mark_volumes_as_reported_attached(&mut self, attached: BTreeSet<UniqueVolumeName>) {
        for name in attached.difference(&self.reported_attached) {
            self.pending
                .forget_backoff(&OperationKey::of_volume(name), Operation::VERIFY);
        }
        self.reported_attached = attached;
    }
}
