//! `wrong-device`: the publish context names another device; a node of this driver refuses it.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct WrongDevice {
    volume: Option<Pattern>,
    node: Option<Pattern>,
    device: Option<String>,
}

impl BackendFault for WrongDevice {
    const TYPE: &'static str = "wrong-device";

    const ABOUT: &'static str = "the publish context names another device; a node of this driver refuses it";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let device = self.device.unwrap_or_else(|| "/dev/disk/by-id/wrong".to_owned());
        let pattern = VolumeNodePattern {
            volume: self.volume,
            node: self.node,
        };
        rule.overlay = Some(Overlay::Device(pattern, DeviceFault::Wrong(device)));
        Ok(())
    }
}
