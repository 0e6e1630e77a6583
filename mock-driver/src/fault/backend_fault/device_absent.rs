use super::*;

backend_fault! {
    "device-absent": "no device appears on the node",
    DeviceAbsent { volume: Pattern, node: Pattern }
}

impl DeviceAbsent {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let pattern = VolumeNodePattern::new(self.volume, self.node);
        rule.overlay = Some(Overlay::Device(pattern, DeviceFault::Absent));
        Ok(())
    }
}
