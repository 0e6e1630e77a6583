//! `tokens-expired`: calls with a `starting_token` return ABORTED.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct TokensExpired {
    code: Option<ErrorCode>,
}

impl BackendFault for TokensExpired {
    const TYPE: &'static str = "tokens-expired";

    const ABOUT: &'static str = "calls with a `starting_token` return ABORTED";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.refuse(ErrorCode::or(self.code, Code::Aborted), |asked| {
            let text = "starting_token: has expired: list again without it";
            asked.call.continues().then(|| text.to_owned())
        });
        Ok(())
    }
}
