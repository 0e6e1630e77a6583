//! `list-lacks`: ListVolumes leaves volumes out.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ListLacks {
    volume: Option<Pattern>,
}

impl BackendFault for ListLacks {
    const TYPE: &'static str = "list-lacks";

    const ABOUT: &'static str = "ListVolumes leaves volumes out";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.overlay = Some(Overlay::ListLacks(VolumeNodePattern {
            volume: self.volume,
            node: None,
        }));
        Ok(())
    }
}
