//! Invariant 2: `attached: true` means that the driver has the volume on that node.
//!
//! It is checked for every watch event of every attachment. A watch event follows the write of its state, so the publish must have
//! returned before the event; and until the attachment is deleted, the volume must stay published. If the scenario itself makes
//! a status temporarily wrong, only the final state counts.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::{Observations, Violation};
use crate::driver::journal::{Call, Effect, PUBLISH, UNPUBLISH};

/// Finds attachments with `attached: true` whose volume was not published.
pub fn check(observations: &Observations) -> Vec<Violation> {
    let mut violations = Vec::new();
    let by_volume = observations.calls_by_volume();
    for period in attached_periods(observations).into_values() {
        let (volume, node) = period.target;
        let calls = by_volume.get(volume).map_or(&[][..], Vec::as_slice);
        if observations
            .exempt
            .contains(&(volume.to_owned(), node.to_owned()))
        {
            continue;
        }
        let name = period.attachment.metadata.name.as_deref().unwrap_or_default();
        let Some(published) = last_publish(calls, period.target, period.first_seen) else {
            violations.push(Violation::new(
                2,
                format!(
                    "{name} had attached=true at {} but {volume} was not published to {node}",
                    period.first_seen
                ),
            ));
            continue;
        };
        if let Some(call) = early_unpublish(calls, period.target, published, period.deletion_requested) {
            violations.push(Violation::new(
                2,
                format!(
                    "{name} had attached=true while {volume} was unpublished from {node} ({})",
                    call.start
                ),
            ));
        }
    }
    violations.extend(not_in_the_final_list(observations));
    violations
}

/// The time during which one attachment (by UID) had `attached: true`.
struct AttachedPeriod<'a> {
    attachment: &'a VolumeAttachment,
    target: (&'a str, &'a str),
    first_seen: Timestamp,
    deletion_requested: Option<Timestamp>,
}

fn attached_periods(observations: &Observations) -> BTreeMap<&str, AttachedPeriod<'_>> {
    let mut periods: BTreeMap<&str, AttachedPeriod<'_>> = BTreeMap::new();
    for event in &observations.watch_events {
        let attachment = &event.attachment;
        let Some(target) = observations.publish_target(attachment) else {
            continue;
        };
        let uid = attachment.metadata.uid.as_deref().unwrap_or_default();
        let deletion_requested = attachment.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        if let Some(period) = periods.get_mut(uid) {
            period.deletion_requested = period.deletion_requested.or(deletion_requested);
        } else if says_attached(attachment) {
            periods.insert(
                uid,
                AttachedPeriod {
                    attachment,
                    target,
                    first_seen: event.at,
                    deletion_requested,
                },
            );
        }
    }
    periods
}

fn says_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

fn concerns(call: &Call, method: &str, (volume, node): (&str, &str)) -> bool {
    call.method == method
        && call.effect == Effect::Done
        && call.volume == volume
        && (call.node == node || call.node.is_empty())
}

/// Time of the response to the last publish to `target` before `seen`, when `attached: true` was first observed.
fn last_publish(calls: &[&Call], target: (&str, &str), seen: Timestamp) -> Option<Timestamp> {
    calls
        .iter()
        .filter(|call| call.succeeded() && concerns(call, PUBLISH, target))
        .filter_map(|call| call.end.as_ref())
        .map(|end| end.at)
        .filter(|&at| at <= seen)
        .max()
}

/// An unpublish after the publish and before the attachment's deletionTimestamp, which the API server rounds down to seconds, so
/// that a correct unpublish is never too early.
fn early_unpublish<'a>(
    calls: &[&'a Call],
    target: (&str, &str),
    published: Timestamp,
    deletion_requested: Option<Timestamp>,
) -> Option<&'a Call> {
    calls
        .iter()
        .copied()
        .filter(|call| concerns(call, UNPUBLISH, target))
        .find(|call| {
            call.start >= published && deletion_requested.is_none_or(|requested| call.start < requested)
        })
}

fn not_in_the_final_list(observations: &Observations) -> Vec<Violation> {
    observations
        .attachments
        .iter()
        .filter(|attachment| says_attached(attachment) && attachment.metadata.deletion_timestamp.is_none())
        .filter_map(|attachment| {
            let (volume, node) = observations.publish_target(attachment)?;
            let listed = observations
                .published
                .get(volume)
                .is_some_and(|nodes| nodes.contains(node));
            let changing = (volume.to_owned(), node.to_owned());
            let listed = listed || observations.changing.contains(&changing);
            let name = attachment.metadata.name.as_deref().unwrap_or_default();
            (!listed).then(|| {
                Violation::new(
                    2,
                    format!("{name} says attached but the driver's list lacks {volume} on {node}"),
                )
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::observations::samples::*;
    use super::*;

    #[test]
    fn an_honest_life_is_fine() {
        let mut observations = mk_observations();
        observations.calls = vec![publish("vol", "id-a", 2), unpublish("vol", "id-a", 6)];
        observations.watch_events = vec![
            seen(attachment(), 1),
            seen(attached(attachment()), 3),
            seen(deleting(attached(attachment()), 5), 5),
        ];
        assert_eq!(check(&observations), []);
    }

    #[test]
    fn attached_without_publish_is_found() {
        let mut observations = mk_observations();
        observations.watch_events = vec![seen(attached(attachment()), 3)];
        assert_eq!(check(&observations).len(), 1);
    }

    #[test]
    fn attached_before_the_publish_was_answered_is_found() {
        let mut observations = mk_observations();
        observations.calls = vec![publish("vol", "id-a", 4)];
        observations.watch_events = vec![seen(attached(attachment()), 3)];
        assert_eq!(check(&observations).len(), 1);
    }

    #[test]
    fn publish_to_another_node_does_not_count() {
        let mut observations = mk_observations();
        observations.calls = vec![publish("vol", "id-b", 2)];
        observations.watch_events = vec![seen(attached(attachment()), 3)];
        assert_eq!(check(&observations).len(), 1);
    }

    #[test]
    fn an_unpublish_under_a_live_attachment_is_found() {
        let mut observations = mk_observations();
        observations.calls = vec![publish("vol", "id-a", 2), unpublish("vol", "id-a", 4)];
        observations.watch_events = vec![seen(attached(attachment()), 3)];
        assert_eq!(check(&observations).len(), 1);
        observations
            .watch_events
            .push(seen(deleting(attached(attachment()), 5), 5));
        assert_eq!(
            check(&observations).len(),
            1,
            "a deletion requested later does not excuse it"
        );
    }

    #[test]
    fn exempt_volume_must_be_published_at_the_end_only() {
        let mut observations = mk_observations();
        observations.watch_events = vec![seen(attached(attachment()), 3)];
        observations.exempt.insert(("vol".to_owned(), "id-a".to_owned()));
        assert_eq!(check(&observations), []);
        observations.attachments = vec![attached(attachment())];
        assert_eq!(check(&observations).len(), 1);
    }

    #[test]
    fn the_final_list_must_agree() {
        let mut observations = mk_observations();
        observations.attachments = vec![attached(attachment())];
        assert_eq!(check(&observations).len(), 1);
        observations
            .published
            .entry("vol".to_owned())
            .or_default()
            .insert("id-a".to_owned());
        assert_eq!(check(&observations), []);
    }
}
