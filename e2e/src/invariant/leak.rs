//! Invariant 3: nothing leaks.

use std::collections::BTreeSet;

use super::{Evidence, Violation};

/// While attachments exist: whatever is published belongs to one of them.
pub fn check_running(evidence: &Evidence) -> Vec<Violation> {
    let owned: BTreeSet<_> = evidence
        .attachments
        .iter()
        .filter_map(|attachment| evidence.place_of(attachment))
        .collect();
    published(evidence)
        .filter(|place| !owned.contains(place))
        .map(|(volume, node)| {
            Violation::new(
                3,
                format!("{volume} is published to {node} but no attachment says so"),
            )
        })
        .collect()
}

/// After everything was deleted: nothing published, no attachment, no volume held by our finalizer.
pub fn check_cleaned_up(evidence: &Evidence) -> Vec<Violation> {
    let mut violations: Vec<_> = published(evidence)
        .map(|(volume, node)| Violation::new(3, format!("{volume} is still published to {node}")))
        .collect();
    violations.extend(evidence.attachments.iter().map(|attachment| {
        let name = attachment.metadata.name.as_deref().unwrap_or_default();
        Violation::new(
            3,
            format!(
                "attachment {name} is left, finalizers {:?}",
                attachment.metadata.finalizers
            ),
        )
    }));
    violations.extend(evidence.persistent_volumes.iter().filter_map(|volume| {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let held = volume
            .metadata
            .finalizers
            .iter()
            .flatten()
            .any(|held| *held == evidence.finalizer);
        held.then(|| {
            Violation::new(
                3,
                format!("volume {name} is still held by {}", evidence.finalizer),
            )
        })
    }));
    violations
}

fn published(evidence: &Evidence) -> impl Iterator<Item = (&str, &str)> {
    evidence
        .published
        .iter()
        .flat_map(|(volume, nodes)| nodes.iter().map(move |node| (volume.as_str(), node.as_str())))
}

#[cfg(test)]
mod tests {
    use super::super::evidence::samples::*;
    use super::*;

    #[test]
    fn a_publication_needs_an_attachment() {
        let mut evidence = mk_evidence();
        evidence
            .published
            .entry("vol".to_owned())
            .or_default()
            .insert("id-a".to_owned());
        assert_eq!(check_running(&evidence).len(), 1);
        evidence.attachments = vec![attachment()];
        assert_eq!(check_running(&evidence), []);
        evidence
            .published
            .entry("vol".to_owned())
            .or_default()
            .insert("id-b".to_owned());
        assert_eq!(
            check_running(&evidence).len(),
            1,
            "the attachment is for the other node"
        );
    }

    #[test]
    fn nothing_may_be_left_after_clean_up() {
        let mut evidence = mk_evidence();
        assert_eq!(check_cleaned_up(&evidence), []);
        evidence
            .published
            .entry("vol".to_owned())
            .or_default()
            .insert("id-a".to_owned());
        evidence.attachments = vec![attachment()];
        evidence.persistent_volumes = vec![persistent_volume(&["external-attacher/d"])];
        assert_eq!(check_cleaned_up(&evidence).len(), 3);
    }

    #[test]
    fn finalizers_of_others_are_not_ours_to_remove() {
        let mut evidence = mk_evidence();
        evidence.persistent_volumes = vec![persistent_volume(&["kubernetes.io/pv-protection"])];
        assert_eq!(check_cleaned_up(&evidence), []);
    }
}
