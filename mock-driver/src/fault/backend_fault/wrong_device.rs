use super::*;

backend_fault! {
    "wrong-device": "the publish context names another device; a node of this driver refuses it",
    WrongDevice { volume: Pattern, node: Pattern, device: String }
}

impl WrongDevice {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let device = self.device.unwrap_or_else(|| "/dev/disk/by-id/wrong".to_owned());
        let pattern = VolumeNodePattern::new(self.volume, self.node);
        rule.overlay = Some(Overlay::Device(pattern, DeviceFault::Wrong(device)));
        Ok(())
    }
}
