//! `busy`: the array refuses changes, by default with ABORTED; Node calls pass.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Busy {
    volume: Option<Pattern>,
    node: Option<Pattern>,
    code: Option<ErrorCode>,
}

impl BackendFault for Busy {
    const TYPE: &'static str = "busy";

    const ABOUT: &'static str = "the array refuses changes, by default with ABORTED; Node calls pass";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.matches.volume = restrictive_pattern(self.volume);
        rule.matches.node = restrictive_pattern(self.node);
        let code = ErrorCode::or(self.code, Code::Aborted);
        rule.refuse(code, |asked| {
            asked
                .call
                .changes()
                .then(|| "the array is busy: try again later".to_owned())
        });
        Ok(())
    }
}
