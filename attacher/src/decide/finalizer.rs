//! When our finalizer may come off a PersistentVolume.

use crate::model::Volume;

/// Whether the finalizer has done its duty: the volume is being deleted and none of our attachments
/// names it.
///
/// On a volume that lives the finalizer stays after a detach: the next attach would only have to put
/// it back. Attachments of other drivers do not count: our finalizer says nothing about them.
pub fn release(volume: &Volume, attachments: usize) -> bool {
    volume.finalizer && volume.deleting && attachments == 0
}
