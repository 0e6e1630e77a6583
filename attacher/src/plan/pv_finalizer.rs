//! When our finalizer is removed from a PersistentVolume.

use crate::model::Volume;

/// Whether our finalizer must be removed: no VolumeAttachment of ours names the volume, and none will, as it is being deleted
/// or left to the in-tree plugin. Migration may have been rolled back, and the volume's deletion must not wait for us.
///
/// Otherwise the finalizer stays after a detach, since the next attach would add it again. VolumeAttachments of other drivers
/// do not count.
///
/// A driver without publish calls (`publishes` is false) has no volumes to protect, so the finalizer of an earlier driver
/// version is removed at once.
pub fn release(volume: &Volume, attachments: usize, publishes: bool) -> bool {
    let unneeded = (volume.deleting || volume.left_in_tree) && attachments == 0;
    volume.finalizer && (!publishes || unneeded)
}
