//! `node-gone`: ControllerPublishVolume to the node returns NOT_FOUND.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NodeGone {
    node: Option<Pattern>,
}

impl BackendFault for NodeGone {
    const TYPE: &'static str = "node-gone";

    const ABOUT: &'static str = "ControllerPublishVolume to the node returns NOT_FOUND";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.matches.method = only(Method::ControllerPublishVolume);
        rule.matches.node = restrictive_pattern(self.node);
        rule.refuse(Code::NotFound, |asked| {
            Some(format!("node \"{}\" is unknown to the array", asked.call.node()))
        });
        Ok(())
    }
}
