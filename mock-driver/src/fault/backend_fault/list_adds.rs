use super::*;

backend_fault! {
    "list-adds": "ListVolumes adds a node that does not have the volume",
    ListAdds { volume: Pattern, node: String }
}

impl ListAdds {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let node = required("node", self.node, "node: node-9")?;
        let pattern = VolumeNodePattern::new(self.volume, None);
        rule.overlay = Some(Overlay::ListAdds(pattern, node));
        Ok(())
    }
}
