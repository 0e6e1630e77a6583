//! `list-adds`: ListVolumes adds a node that does not have the volume.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ListAdds {
    volume: Option<Pattern>,
    node: Option<String>,
}

impl BackendFault for ListAdds {
    const TYPE: &'static str = "list-adds";

    const ABOUT: &'static str = "ListVolumes adds a node that does not have the volume";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let node = required("node", self.node, "node: node-9")?;
        let pattern = VolumeNodePattern {
            volume: self.volume,
            node: None,
        };
        rule.overlay = Some(Overlay::ListAdds(pattern, node));
        Ok(())
    }
}
