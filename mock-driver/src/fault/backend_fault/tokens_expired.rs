use super::*;

backend_fault! {
    "tokens-expired": "calls with a `starting_token` return ABORTED",
    TokensExpired { code: ErrorCode }
}

impl TokensExpired {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.refuse(ErrorCode::or(self.code, Code::Aborted), |asked| {
            let text = "starting_token: has expired: list again without it";
            asked.call.continues().then(|| text.to_owned())
        });
        Ok(())
    }
}
