use super::*;

backend_fault! {
    "slow-node": "attaches and detaches of a node queue up, `time` each",
    SlowNode { node: Pattern, time: Time }
}

impl SlowNode {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.matches.method = publish_and_unpublish();
        rule.matches.node = restrictive_pattern(self.node);
        rule.action.queue = Some(required("time", self.time, "time: 2s")?.into());
        Ok(())
    }
}
