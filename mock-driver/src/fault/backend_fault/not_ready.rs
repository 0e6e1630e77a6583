//! `not-ready`: Probe reports that the driver is not ready.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NotReady {
    r#for: Option<Time>,
}

impl BackendFault for NotReady {
    const TYPE: &'static str = "not-ready";

    const ABOUT: &'static str = "Probe reports that the driver is not ready";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.overlay = Some(Overlay::NotReady(self.r#for.map(Duration::from)));
        Ok(())
    }
}
