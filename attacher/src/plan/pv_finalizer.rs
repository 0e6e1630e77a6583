//! When our finalizer may come off a PersistentVolume.

use crate::model::Volume;

/// Whether the finalizer has done its duty: none of our attachments names the volume, and none will, as it
/// is being deleted, or ours it may not be, as it was left to the in-tree plugin. Migration may have been
/// rolled back, and whoever deletes the volume then must not wait for us.
///
/// On any other volume the finalizer stays after a detach: the next attach would only have to put
/// it back. Attachments of other drivers do not count: our finalizer says nothing about them.
///
/// A driver that publishes nothing (`publishes` is false) has nothing to protect, so what an earlier
/// version of it made us put there comes off at once.
pub fn release(volume: &Volume, attachments: usize, publishes: bool) -> bool {
    let unneeded = (volume.deleting || volume.left_in_tree) && attachments == 0;
    volume.finalizer && (!publishes || unneeded)
}
