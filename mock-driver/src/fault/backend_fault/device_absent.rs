//! `device-absent`: no device appears on the node.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
pub(super) struct DeviceAbsent(VolumeNodePattern);

impl BackendFault for DeviceAbsent {
    const TYPE: &'static str = "device-absent";

    const ABOUT: &'static str = "no device appears on the node";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.overlay = Some(Overlay::Device(self.0, DeviceFault::Absent));
        Ok(())
    }
}
