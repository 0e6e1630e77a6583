//! Reconcile rounds: select the VolumeAttachments to compare with ListVolumes, and evaluate the result.
//!
//! A VolumeAttachment is compared only if it neither changed nor was synced between the beginning of the round and its
//! result, so that a concurrent sync is never undone. The work that follows is [`repair`](super::repair).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::ControllerState;
use crate::model::{Driver, PublishTarget};
use crate::plan::reconcile::{
    Candidate, Drift, ListVolumesResult, ListedState, drift, expected_target, listed_handle,
};
use crate::plan::{NodeState, Operation};
use crate::workqueue::{Key, Lane};

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// When it ended.
    pub ended: Instant,
    /// Its duration.
    pub took: Duration,
    /// Number of volumes that the driver listed, up to an error.
    pub listed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// During a round: VolumeAttachments that changed or were synced since it began.
    pub(crate) changed: Option<HashSet<Arc<str>>>,
    pub(crate) metrics: ReconcileMetrics,
    /// Targets that the last complete list showed published without any VolumeAttachment, and whether the one before did, too.
    pub(super) unattached: BTreeMap<PublishTarget, bool>,
    pub(crate) last: Option<LastRound>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LastRound {
    #[serde(skip)]
    pub(crate) round: Round,
    /// Attached volumes that were not listed on their node, and are published again.
    pub(crate) lost: u64,
    /// Detached volumes that were listed on their node, and are unpublished again.
    pub(crate) dangling: u64,
    pub(crate) error: Option<Arc<str>>,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ReconcileMetrics {
    #[serde(rename = "completed")]
    pub(crate) rounds: u64,
    /// Failed rounds: the call failed, or the list was invalid.
    #[serde(rename = "failed")]
    pub(crate) failed_rounds: u64,
    /// Drifts that an attach repairs.
    #[serde(skip)]
    pub(crate) lost: u64,
    /// Drifts that a detach repairs.
    #[serde(skip)]
    pub(crate) dangling: u64,
    pub(crate) repaired: u64,
    /// Repairs that the plan refused.
    pub(crate) refused: u64,
}

// === impl ControllerState ===

impl ControllerState {
    /// Begins a round, whose result is handled as [`Event::VolumesListed`](super::Event::VolumesListed). `None` if no sync
    /// has started yet, the result of the last round is not handled yet, or the driver does not list published nodes.
    pub(crate) fn begin_reconcile(&mut self, driver: &Driver) -> Option<ListVolumesResult> {
        if !self.lists_published() || !self.started || self.rounds.changed.is_some() {
            return None;
        }
        let mut result = ListVolumesResult::default();
        for attachment in self.index.attachments.iter() {
            if self.queue.is_running(&Key::Attachment(attachment.name.clone())) {
                continue;
            }
            let Some(expected) = expected_target(&self.inputs(attachment), driver) else {
                continue;
            };
            if let Some(handle) = listed_handle(&expected.target, driver) {
                result.add(attachment.clone(), expected, handle);
            }
        }
        self.watch_targets(&mut result, driver);
        result.connection = self.connection;
        for volume in self.index.volumes.iter() {
            if let Some(csi) = volume.spec.csi().filter(|csi| *csi.driver == *driver.name) {
                result.add_volume(&volume.name, &csi.handle);
            }
        }
        self.rounds.changed = Some(HashSet::new());
        self.for_each_state(|known| known.newly_attached |= std::mem::take(&mut known.attached_since_round));
        Some(result)
    }

    /// Whether the driver lists its published volumes, so that they can be compared with the VolumeAttachments.
    pub(super) fn lists_published(&self) -> bool {
        self.capabilities.is_some_and(|c| c.publish && c.list_published)
    }

    /// The result of the round that runs will not count.
    pub(super) fn end_round(&mut self) {
        self.rounds.changed = None;
        self.evidence.end_round();
    }

    pub(super) fn list_volumes_failed(&mut self, round: Round, why: Arc<str>) {
        self.end_round();
        self.evidence.list_failed();
        self.rounds.metrics.failed_rounds += 1;
        self.rounds.last = Some(LastRound {
            round,
            lost: 0,
            dangling: 0,
            error: Some(why),
        });
    }

    pub(super) fn volumes_listed(&mut self, mut result: ListVolumesResult, round: Round) {
        // The driver's capabilities changed while it listed.
        let Some(changed) = self.rounds.changed.take() else {
            return;
        };
        self.rounds.metrics.rounds += 1;
        let began = round.ended.checked_sub(round.took).unwrap_or(round.ended);
        let lists_nodes = self.lists_nodes(&result, &changed);
        self.targets_listed(&mut result, round.listed, began, lists_nodes);
        self.evidence.end_round();
        let before = self.rounds.metrics;
        self.find_unattached(result.unexpected);
        let mut candidates = result.candidates;
        // The store is unordered, and the simulation must be deterministic.
        candidates.sort_unstable_by(|a, b| a.attachment.name.cmp(&b.attachment.name));
        for candidate in candidates {
            if self.is_unchanged(&candidate, &changed) {
                self.apply_drift(candidate);
            }
        }
        self.for_each_state(|known| known.newly_attached = false);
        let metrics = self.rounds.metrics;
        self.rounds.last = Some(LastRound {
            round,
            lost: metrics.lost - before.lost,
            dangling: metrics.dangling - before.dangling,
            error: None,
        });
    }

    /// Whether the list shows one of the attached volumes on its node, if there are any. A driver whose node cache is cold lists all
    /// volumes without nodes.
    fn lists_nodes(&self, result: &ListVolumesResult, changed: &HashSet<Arc<str>>) -> bool {
        let candidates = result.candidates.iter();
        let mut attached = candidates
            .filter(|candidate| candidate.attachment.attached && !candidate.attachment.deleting)
            .filter(|candidate| self.is_unchanged(candidate, changed))
            .peekable();
        attached.peek().is_none()
            || attached.any(|candidate| candidate.listed_state == ListedState::Published)
    }

    /// Whether neither the VolumeAttachment nor its node changed, and none of the same volume and node was synced.
    fn is_unchanged(&self, candidate: &Candidate, changed: &HashSet<Arc<str>>) -> bool {
        let Candidate {
            attachment, expected, ..
        } = candidate;
        let newest = self.index.attachments.get(&attachment.name);
        let is_as_it_was = newest
            .is_some_and(|newest| (&newest.uid, newest.version) == (&attachment.uid, attachment.version));
        let node = self.index.nodes.get(&attachment.node).map(|node| &**node);
        let is_node_as_it_was = NodeState::of(node, &expected.target.node_id) == expected.node;
        let is_idle = |name: &Arc<str>| {
            !changed.contains(name) && !self.queue.is_running(&Key::Attachment(name.clone()))
        };
        let mut others = self.index.of_handle(&expected.target.volume_id);
        is_as_it_was
            && is_node_as_it_was
            && is_idle(&attachment.name)
            && others.all(|other| other.node != attachment.node || is_idle(&other.name))
    }

    fn apply_drift(&mut self, candidate: Candidate) {
        let attachment = &candidate.attachment;
        let round = self.rounds.metrics.rounds;
        let known = self.attachment_states.get(&attachment.uid);
        // Weak evidence counts only in two consecutive rounds.
        let suspected = known
            .and_then(|known| known.suspect.as_ref())
            .is_some_and(|suspect| suspect.round + 1 == round);
        let newly_attached = known.is_some_and(|known| known.newly_attached);
        match drift(&candidate, suspected, newly_attached) {
            Drift::InSync if candidate.listed_state.is_known() => self.listed_in_sync(attachment),
            Drift::InSync => {}
            Drift::Suspected => {
                let suspect = &mut self.state_of(&attachment.uid).suspect;
                suspect.get_or_insert_default().round = round;
            }
            Drift::RetryMaySucceed => {
                let key = Key::Attachment(attachment.name.clone());
                self.queue.enqueue_if_pending(&key, &Lane::ALL);
            }
            Drift::Lost => self.repair(candidate, Operation::Attach),
            Drift::StillPublished => self.repair(candidate, Operation::Detach),
        }
    }

    pub(super) fn mark_changed(&mut self, name: &Arc<str>) {
        if let Some(changed) = &mut self.rounds.changed {
            changed.insert(name.clone());
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
