use super::*;

backend_fault! {
    "not-ready": "Probe reports that the driver is not ready",
    NotReady { r#for: Time }
}

impl NotReady {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.overlay = Some(Overlay::NotReady(self.r#for.map(Duration::from)));
        Ok(())
    }
}
