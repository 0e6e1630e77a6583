//! `quota`: CreateVolume returns RESOURCE_EXHAUSTED beyond it.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Quota {
    volumes: Option<u64>,
    bytes: Option<u64>,
}

impl BackendFault for Quota {
    const TYPE: &'static str = "quota";

    const ABOUT: &'static str = "CreateVolume returns RESOURCE_EXHAUSTED beyond it";

    fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let (volumes, bytes) = (self.volumes, self.bytes);
        required("volumes", volumes.or(bytes), "volumes: 10 or bytes: 1073741824")?;
        rule.matches.method = only(Method::CreateVolume);
        rule.counts_volumes = true;
        rule.refuse(Code::ResourceExhausted, move |asked| {
            let usage = asked.call.usage(asked.reserved);
            let is_exceeded = volumes.is_some_and(|most| usage.volumes >= most)
                || bytes.is_some_and(|most| usage.bytes.saturating_add(usage.asked) > most);
            let (volumes, bytes) = (usage.volumes, usage.bytes);
            (is_exceeded && !usage.is_repeat)
                .then(|| format!("quota exceeded: the array has {volumes} volumes with {bytes} bytes"))
        });
        Ok(())
    }
}
