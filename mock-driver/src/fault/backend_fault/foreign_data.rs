use super::*;

backend_fault! {
    "foreign-data":
    "NodeStageVolume finds foreign data (`unknown`, `btrfs`, `luks`, `lvm`, `partitions`, `swap`) and returns FAILED_PRECONDITION",
    ForeignData { volume: Pattern, node: Pattern, data: Data }
}

impl ForeignData {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let data = match self.data.unwrap_or_default() {
            Data::Unknown => "data of an unknown kind",
            Data::Btrfs => "a btrfs filesystem",
            Data::Luks => "an encrypted disk (LUKS)",
            Data::Lvm => "a physical volume of LVM",
            Data::Partitions => "a partition table",
            Data::Swap => "swap space",
        };
        let pattern = VolumeNodePattern::new(self.volume, self.node);
        rule.overlay = Some(Overlay::Disk(pattern, DiskFault::Foreign(data)));
        Ok(())
    }
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Data {
    #[default]
    Unknown,
    Btrfs,
    Luks,
    Lvm,
    Partitions,
    Swap,
}
