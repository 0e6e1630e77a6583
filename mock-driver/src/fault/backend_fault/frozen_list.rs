use super::*;

backend_fault! {
    "frozen-list": "ListVolumes returns the state of `age` ago",
    FrozenList { age: Time }
}

impl FrozenList {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.overlay = Some(Overlay::FrozenList(self.age.map(Duration::from)));
        Ok(())
    }
}
