//! Invariant 3: nothing leaks.
//!
//! It holds for the final state and for each removal of an attachment: its volume must be unpublished by then. Otherwise
//! the volume would never be detached if the attacher were killed at that moment.

use std::collections::BTreeSet;

use super::{Observations, Violation};
use crate::driver::journal::{Call, Effect, PUBLISH, UNPUBLISH};

/// While attachments exist: each published volume belongs to one of them.
pub fn check_running(observations: &Observations) -> Vec<Violation> {
    let owned: BTreeSet<_> = observations
        .attachments
        .iter()
        .filter_map(|attachment| observations.publish_target(attachment))
        .collect();
    let mut violations = gone_too_early(observations);
    violations.extend(
        published(observations)
            .filter(|target| !owned.contains(target))
            .map(|(volume, node)| {
                Violation::new(
                    3,
                    format!("{volume} is published to {node} without a VolumeAttachment"),
                )
            }),
    );
    violations
}

/// After all objects were deleted: nothing is mounted or published, and no attachment or volume with our finalizer exists.
pub fn check_cleaned_up(observations: &Observations) -> Vec<Violation> {
    let mut violations = gone_too_early(observations);
    violations.extend(
        mounted(observations)
            .map(|(volume, node)| Violation::new(3, format!("{volume} is still mounted on {node}"))),
    );
    violations.extend(
        published(observations)
            .map(|(volume, node)| Violation::new(3, format!("{volume} is still published to {node}"))),
    );
    violations.extend(observations.attachments.iter().map(|attachment| {
        let name = attachment.metadata.name.as_deref().unwrap_or_default();
        Violation::new(
            3,
            format!(
                "attachment {name} is left, finalizers {:?}",
                attachment.metadata.finalizers
            ),
        )
    }));
    violations.extend(observations.persistent_volumes.iter().filter_map(|volume| {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let held = volume
            .metadata
            .finalizers
            .iter()
            .flatten()
            .any(|held| *held == observations.finalizer);
        held.then(|| {
            Violation::new(
                3,
                format!("volume {name} is still held by {}", observations.finalizer),
            )
        })
    }));
    violations
}

/// Attachments that were deleted before their volume was unpublished.
fn gone_too_early(observations: &Observations) -> Vec<Violation> {
    let by_volume = observations.calls_by_volume();
    let gone = observations.watch_events.iter().filter(|event| event.gone);
    gone.filter_map(|event| {
        let target = observations.publish_target(&event.attachment)?;
        let had_effect =
            |call: &&Call| call.effect == Effect::Done && call.effect_by.is_some_and(|by| by <= event.at);
        let calls = || {
            let calls = by_volume.get(target.0).into_iter().flatten().copied();
            calls.filter(had_effect)
        };
        let published = calls()
            .filter(|call| call.method == PUBLISH && call.node == target.1)
            .max_by_key(|call| call.start)?;
        let unpublished = calls().any(|call| {
            call.method == UNPUBLISH
                && (call.node == target.1 || call.node.is_empty())
                && call.start >= published.start
        });
        let name = event.attachment.metadata.name.as_deref().unwrap_or_default();
        (!unpublished).then(|| {
            Violation::new(
                3,
                format!(
                    "attachment {name} was gone at {} with {target:?} still published",
                    event.at
                ),
            )
        })
    })
    .collect()
}

/// Volumes with the nodes on which they are mounted, except force-detached ones, which their nodes cannot unmount.
fn mounted(observations: &Observations) -> impl Iterator<Item = (&str, &str)> {
    let mut mounted = BTreeSet::new();
    for event in &observations.mounts {
        let mount = (event.volume.as_str(), event.node.as_str());
        if event.mounted {
            mounted.insert(mount);
        } else {
            mounted.remove(&mount);
        }
    }
    mounted.into_iter().filter(|(volume, node)| {
        let mount = ((*volume).to_owned(), (*node).to_owned());
        !observations.force_detached.contains(&mount)
    })
}

fn published(observations: &Observations) -> impl Iterator<Item = (&str, &str)> {
    observations
        .published
        .iter()
        .flat_map(|(volume, nodes)| nodes.iter().map(move |node| (volume.as_str(), node.as_str())))
}

#[cfg(test)]
mod tests {
    use super::super::observations::samples::*;
    use super::{check_cleaned_up, check_running};

    #[test]
    fn a_publication_needs_an_attachment() {
        let mut observations = mk_observations();
        observations
            .published
            .entry("vol".to_owned())
            .or_default()
            .insert("id-a".to_owned());
        assert_eq!(check_running(&observations).len(), 1);
        observations.attachments = vec![attachment()];
        assert_eq!(check_running(&observations), []);
        observations
            .published
            .entry("vol".to_owned())
            .or_default()
            .insert("id-b".to_owned());
        assert_eq!(
            check_running(&observations).len(),
            1,
            "the attachment is for the other node"
        );
    }

    #[test]
    fn an_attachment_may_go_only_after_its_volume() {
        let mut observations = mk_observations();
        let going = || deleting(attached(attachment()), 3);
        observations.calls = vec![publish("vol", "id-a", 1), unpublish("vol", "id-a", 4)];
        observations.watch_events = vec![gone(going(), 5)];
        assert_eq!(check_cleaned_up(&observations), []);
        observations.calls[1] = unpublish("vol", "id-a", 6);
        assert_eq!(
            check_cleaned_up(&observations).len(),
            1,
            "the finalizer went before the unpublish had ended"
        );
        observations.calls.truncate(1);
        assert_eq!(check_cleaned_up(&observations).len(), 1, "no unpublish");
        observations.calls.clear();
        assert_eq!(check_cleaned_up(&observations), [], "it was never published");
    }

    #[test]
    fn an_unpublish_of_an_earlier_life_does_not_count() {
        let mut observations = mk_observations();
        observations.calls = vec![
            publish("vol", "id-a", 1),
            unpublish("vol", "id-a", 2),
            publish("vol", "id-a", 4),
        ];
        observations.watch_events = vec![gone(attachment(), 5)];
        assert_eq!(check_running(&observations).len(), 1);
    }

    #[test]
    fn nothing_may_be_left_after_clean_up() {
        let mut observations = mk_observations();
        assert_eq!(check_cleaned_up(&observations), []);
        observations
            .published
            .entry("vol".to_owned())
            .or_default()
            .insert("id-a".to_owned());
        observations.attachments = vec![attachment()];
        observations.persistent_volumes = vec![persistent_volume(&["external-attacher/d"])];
        assert_eq!(check_cleaned_up(&observations).len(), 3);
    }

    #[test]
    fn nothing_may_be_mounted_after_clean_up() {
        let mut observations = mk_observations();
        observations.mounts = vec![mounted("a", "vol", 1), unmounted("a", "vol", 2)];
        assert_eq!(check_cleaned_up(&observations), []);
        observations.mounts.push(mounted("a", "vol", 3));
        assert_eq!(check_cleaned_up(&observations).len(), 1);
        observations
            .force_detached
            .insert(("vol".to_owned(), "a".to_owned()));
        assert_eq!(check_cleaned_up(&observations), [], "a dead node cannot unmount");
    }

    #[test]
    fn finalizers_of_others_are_not_ours_to_remove() {
        let mut observations = mk_observations();
        observations.persistent_volumes = vec![persistent_volume(&["kubernetes.io/pv-protection"])];
        assert_eq!(check_cleaned_up(&observations), []);
    }
}
