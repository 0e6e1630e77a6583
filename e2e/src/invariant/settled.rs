//! Invariant 4: every attachment converges.

use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeError};

use super::{Observations, Violation};

/// Finds attachments that are neither attached nor have an error.
pub fn check(observations: &Observations) -> Vec<Violation> {
    observations
        .attachments
        .iter()
        .filter_map(|attachment| {
            let missing = unsettled(attachment)?;
            let name = attachment.metadata.name.as_deref().unwrap_or_default();
            Some(Violation::new(
                4,
                format!("attachment {name} is not settled: {missing}"),
            ))
        })
        .collect()
}

/// Why an attachment has not converged; `None` if it has.
pub fn unsettled(attachment: &VolumeAttachment) -> Option<&'static str> {
    let status = attachment.status.as_ref();
    if attachment.metadata.deletion_timestamp.is_some() {
        let error = status.and_then(|status| status.detach_error.as_ref());
        return (!names_a_cause(error)).then_some("it is being deleted and has no detachError");
    }
    let error = status.and_then(|status| status.attach_error.as_ref());
    match status.is_some_and(|status| status.attached) {
        true if error.is_some() => Some("it is attached and still has an attachError"),
        true => None,
        false => (!names_a_cause(error)).then_some("it is not attached and has no attachError"),
    }
}

fn names_a_cause(error: Option<&VolumeError>) -> bool {
    error
        .and_then(|error| error.message.as_deref())
        .is_some_and(|message| !message.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::observations::samples::*;
    use super::*;

    #[test]
    fn attached_or_failed_with_a_cause_is_settled() {
        let attached_and_failed = {
            let mut attachment = failed(attachment(), "no slot");
            attachment.status.as_mut().expect("it has a status").attached = true;
            attachment
        };
        let cases = [
            ("attached", attached(attachment()), true),
            ("failed", failed(attachment(), "no slot"), true),
            ("silent", attachment(), false),
            ("failed without a message", failed(attachment(), ""), false),
            ("attached and failed", attached_and_failed, false),
            ("leaving in silence", deleting(attached(attachment()), 1), false),
        ];
        for (case, attachment, settled) in cases {
            let mut observations = mk_observations();
            observations.attachments = vec![attachment];
            assert_eq!(check(&observations).is_empty(), settled, "{case}");
        }
    }
}
