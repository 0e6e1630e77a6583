use super::*;

backend_fault! {
    "node-lock":
    "an attach or detach locks its node for `time` from its begin; others are refused meanwhile, by default with ABORTED",
    NodeLock { node: Pattern, time: Time, code: ErrorCode }
}

impl NodeLock {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.matches.method = publish_and_unpublish();
        rule.matches.node = restrictive_pattern(self.node);
        let time = required("time", self.time, "time: 1s")?.into();
        rule.refuse(ErrorCode::or(self.code, Code::Aborted), move |asked| {
            let node = asked.call.node();
            let is_locked = asked.state.is_queued(node, asked.now);
            if !is_locked {
                asked.state.enqueue(node, time, asked.now);
            }
            is_locked.then(|| format!("node \"{node}\" is locked: another operation is pending"))
        });
        Ok(())
    }
}
