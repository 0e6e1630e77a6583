//! `read-only`: the array refuses changes; Node calls pass.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct ReadOnly {
    code: Option<ErrorCode>,
}

impl BackendFault for ReadOnly {
    const TYPE: &'static str = "read-only";

    const ABOUT: &'static str = "the array refuses changes; Node calls pass";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let code = ErrorCode::or(self.code, Code::FailedPrecondition);
        rule.refuse(code, |asked| {
            asked
                .call
                .changes()
                .then(|| "the array is read-only: it takes no changes".to_owned())
        });
        Ok(())
    }
}
