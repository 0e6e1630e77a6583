use super::*;

backend_fault! {
    "damaged-filesystem":
    "the filesystem has errors that fsck cannot repair, and NodeStageVolume returns INTERNAL",
    DamagedFilesystem { volume: Pattern, node: Pattern }
}

impl DamagedFilesystem {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let pattern = VolumeNodePattern::new(self.volume, self.node);
        rule.overlay = Some(Overlay::Disk(pattern, DiskFault::Damaged));
        Ok(())
    }
}
