use super::*;

backend_fault! {
    "busy": "the array refuses changes, by default with ABORTED; Node calls pass",
    Busy { volume: Pattern, node: Pattern, code: ErrorCode }
}

impl Busy {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
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
