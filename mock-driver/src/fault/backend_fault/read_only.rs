use super::*;

backend_fault! {
    "read-only": "the array refuses changes; Node calls pass",
    ReadOnly { code: ErrorCode }
}

impl ReadOnly {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
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
