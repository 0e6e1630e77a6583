use super::*;
use crate::fault::io::Bytes;

backend_fault! {
    "quota": "CreateVolume returns RESOURCE_EXHAUSTED beyond it",
    Quota { volumes: u64, bytes: Bytes }
}

impl Quota {
    pub(super) fn add_to(self, rule: &mut Rule) -> Result<(), FieldError> {
        let (volumes, bytes) = (self.volumes, self.bytes.map(|bytes| bytes.0));
        required("volumes", volumes.or(bytes), "volumes: 10 or bytes: 1Gi")?;
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
