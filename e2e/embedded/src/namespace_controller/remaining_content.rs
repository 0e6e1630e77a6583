//! The content that remains in a terminating namespace, and the conditions that show it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::apiserver::Clock;

/// The conditions of a terminating namespace: type, and reason and message if the condition is false.
const CONDITIONS: [(&str, &str, &str); 5] = [
    (
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        CONTENT_FAILURE,
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    (
        CONTENT_REMAINING,
        "ContentRemoved",
        "All content successfully removed",
    ),
    (
        FINALIZERS_REMAINING,
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
];
pub(super) const CONTENT_FAILURE: &str = "NamespaceDeletionContentFailure";
const CONTENT_REMAINING: &str = "NamespaceContentRemaining";
const FINALIZERS_REMAINING: &str = "NamespaceFinalizersRemaining";

/// The content that is left after the deletions in a namespace.
#[derive(Debug, Default)]
pub(super) struct RemainingContent {
    /// Number of objects by resource.
    pub(super) objects: BTreeMap<String, usize>,
    /// Number of objects by finalizer.
    pub(super) finalizers: BTreeMap<String, usize>,
    pub(super) errors: BTreeSet<String>,
}

// === impl RemainingContent ===

impl RemainingContent {
    /// Reason and message of a condition that is true.
    fn failure(&self, condition: &str) -> Option<(&'static str, String)> {
        let list = |counts: &BTreeMap<String, usize>, verb: &str| {
            let texts: Vec<String> = counts
                .iter()
                .map(|(name, count)| format!("{name} {verb} {count} resource instances"))
                .collect();
            texts.join(", ")
        };
        match condition {
            CONTENT_FAILURE if !self.errors.is_empty() => {
                let errors: Vec<&str> = self.errors.iter().map(String::as_str).collect();
                let message = format!(
                    "Failed to delete all resource types, {} remaining: {}",
                    errors.len(),
                    errors.join(", ")
                );
                Some(("ContentDeletionFailed", message))
            }
            CONTENT_REMAINING if !self.objects.is_empty() => {
                let message = format!("Some resources are remaining: {}", list(&self.objects, "has"));
                Some(("SomeResourcesRemain", message))
            }
            FINALIZERS_REMAINING if !self.finalizers.is_empty() => {
                let message = format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    list(&self.finalizers, "in")
                );
                Some(("SomeFinalizersRemain", message))
            }
            _ => None,
        }
    }

    /// Sets all conditions of a terminating namespace; returns whether one has changed.
    pub(super) fn update_conditions(&self, conditions: &mut Vec<NamespaceCondition>, clock: &Clock) -> bool {
        let mut has_changed = false;
        for (kind, ok_reason, ok_message) in CONDITIONS {
            let (status, (reason, message)) = match self.failure(kind) {
                Some(failure) => ("True", failure),
                None => ("False", (ok_reason, ok_message.to_owned())),
            };
            let at = conditions.iter().position(|condition| condition.type_ == kind);
            let old = at.map(|at| &conditions[at]);
            let unchanged = old.filter(|old| old.status == status);
            let new = NamespaceCondition {
                type_: kind.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message),
                last_transition_time: match unchanged {
                    Some(old) => old.last_transition_time.clone(),
                    None => Some(Time(clock.now())),
                },
            };
            if old == Some(&new) {
                continue;
            }
            has_changed = true;
            match at {
                Some(at) => conditions[at] = new,
                None => conditions.push(new),
            }
        }
        has_changed
    }
}
