use super::*;

backend_fault! {
    "node-limit": "the array attaches at most `limit` volumes to a node, whatever NodeGetInfo reports",
    NodeLimit { node: Pattern, limit: u64 }
}

impl NodeLimit {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.matches.method = only(Method::ControllerPublishVolume);
        rule.matches.node = restrictive_pattern(self.node);
        let limit = required("limit", self.limit, "limit: 3")?;
        rule.refuse(Code::ResourceExhausted, move |asked| {
            let usage = asked.call.usage(asked.reserved);
            let (node, on_node) = (asked.call.node(), usage.on_node);
            (on_node >= limit && !usage.is_repeat)
                .then(|| format!("node \"{node}\" has reached its limit: {on_node} volumes are attached"))
        });
        Ok(())
    }
}
