//! `frozen-list`: ListVolumes returns the state of `age` ago.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct FrozenList {
    age: Option<Time>,
}

impl BackendFault for FrozenList {
    const TYPE: &'static str = "frozen-list";

    const ABOUT: &'static str = "ListVolumes returns the state of `age` ago";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        rule.overlay = Some(Overlay::FrozenList(self.age.map(Duration::from)));
        Ok(())
    }
}
