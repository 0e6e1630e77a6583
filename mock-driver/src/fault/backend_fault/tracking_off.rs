//! `tracking-off`: GetMetadataDelta returns FAILED_PRECONDITION: the array does not track changes.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct TrackingOff {
    code: Option<ErrorCode>,
}

impl BackendFault for TrackingOff {
    const TYPE: &'static str = "tracking-off";

    const ABOUT: &'static str =
        "GetMetadataDelta returns FAILED_PRECONDITION: the array does not track changes";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.matches.method = only(Method::GetMetadataDelta);
        rule.refuse(ErrorCode::or(self.code, Code::FailedPrecondition), |_| {
            Some("the array does not track which blocks change: copy the whole snapshot".to_owned())
        });
        Ok(())
    }
}
