//! `slow-node`: attaches and detaches of a node queue up, `time` each.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct SlowNode {
    node: Option<Pattern>,
    time: Option<Time>,
}

impl BackendFault for SlowNode {
    const TYPE: &'static str = "slow-node";

    const ABOUT: &'static str = "attaches and detaches of a node queue up, `time` each";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.matches.method = publish_and_unpublish();
        rule.matches.node = restrictive_pattern(self.node);
        rule.action.queue = Some(required("time", self.time, "time: 2s")?.into());
        Ok(())
    }
}
