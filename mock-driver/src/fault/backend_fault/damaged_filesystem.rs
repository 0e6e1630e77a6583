//! `damaged-filesystem`: the filesystem has errors that fsck cannot repair, and NodeStageVolume returns INTERNAL.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
pub(super) struct DamagedFilesystem(VolumeNodePattern);

impl BackendFault for DamagedFilesystem {
    const TYPE: &'static str = "damaged-filesystem";

    const ABOUT: &'static str =
        "the filesystem has errors that fsck cannot repair, and NodeStageVolume returns INTERNAL";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.overlay = Some(Overlay::Disk(self.0, DiskFault::Damaged));
        Ok(())
    }
}
