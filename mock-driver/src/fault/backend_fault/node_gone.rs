use super::*;

backend_fault! {
    "node-gone": "ControllerPublishVolume to the node returns NOT_FOUND",
    NodeGone { node: Pattern }
}

impl NodeGone {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.matches.method = only(Method::ControllerPublishVolume);
        rule.matches.node = restrictive_pattern(self.node);
        rule.refuse(Code::NotFound, |asked| {
            Some(format!("node \"{}\" is unknown to the array", asked.call.node()))
        });
        Ok(())
    }
}
