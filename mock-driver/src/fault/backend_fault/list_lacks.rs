use super::*;

backend_fault! {
    "list-lacks": "ListVolumes leaves volumes out",
    ListLacks { volume: Pattern }
}

impl ListLacks {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.overlay = Some(Overlay::ListLacks(VolumeNodePattern::new(self.volume, None)));
        Ok(())
    }
}
