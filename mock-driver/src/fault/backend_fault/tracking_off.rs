use super::*;

backend_fault! {
    "tracking-off": "GetMetadataDelta returns FAILED_PRECONDITION: the array does not track changes",
    TrackingOff { code: ErrorCode }
}

impl TrackingOff {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.matches.method = only(Method::GetMetadataDelta);
        rule.refuse(ErrorCode::or(self.code, Code::FailedPrecondition), |_| {
            Some("the array does not track which blocks change: copy the whole snapshot".to_owned())
        });
        Ok(())
    }
}
