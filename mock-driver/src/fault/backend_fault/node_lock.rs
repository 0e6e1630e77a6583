//! `node-lock`: an attach or detach locks its node for `time` from its begin; others are refused meanwhile, by default with ABORTED.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NodeLock {
    node: Option<Pattern>,
    time: Option<Time>,
    code: Option<ErrorCode>,
}

impl BackendFault for NodeLock {
    const TYPE: &'static str = "node-lock";

    const ABOUT: &'static str = "an attach or detach locks its node for `time` from its begin; others are refused meanwhile, by default with ABORTED";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
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
