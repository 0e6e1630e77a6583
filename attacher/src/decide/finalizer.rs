//! When our finalizer may come off a PersistentVolume.

use crate::model::Volume;

/// Whether the finalizer has done its duty: the volume is being deleted and none of our attachments
/// names it.
///
/// On a volume that lives the finalizer stays after a detach: the next attach would only have to put
/// it back. Attachments of other drivers do not count: our finalizer says nothing about them.
///
/// A driver that publishes nothing (`publishes` is false) has nothing to protect, so what an earlier
/// version of it made us put there comes off at once.
pub fn release(volume: &Volume, attachments: usize, publishes: bool) -> bool {
    volume.finalizer && (!publishes || volume.deleting && attachments == 0)
}
