//! Reconcile rounds: which VolumeAttachments they compare with ListVolumes, and what follows.
//!
//! A VolumeAttachment is compared only if it neither changed nor was synced between the beginning of the round and its
//! result, so that a concurrent sync is never undone. The work that follows is [`repair`](super::repair).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ControllerState;
use crate::model::{Attachment, Driver, PublishTarget};
use crate::plan::Operation;
use crate::plan::reconcile::{Candidate, Drift, ListVolumesResult, drift, expected_target, listed_handle};
use crate::workqueue::Key;

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// When it ended.
    pub ended: Instant,
    /// How long it took.
    pub took: Duration,
    /// How many volumes the driver listed, up to an error.
    pub listed: u64,
}

/// The last round and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRound {
    /// Its duration and size.
    pub round: Round,
    /// Attached volumes that were not listed on their node, and are published again.
    pub lost: u64,
    /// Detached volumes that were listed on their node, and are unpublished again.
    pub leftover: u64,
    /// Why it failed, if it did.
    pub error: Option<Arc<str>>,
}

/// A drift that is being repaired, for the log and an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The attachment.
    pub attachment: Arc<Attachment>,
    /// Its volume and node id.
    pub target: PublishTarget,
    /// The repair: an attach if the volume is attached but not listed on its node, a detach if it is listed there although
    /// its VolumeAttachment is being deleted without our finalizer.
    pub repair: Operation,
    /// How many times in a row it was repaired without a list that agreed in between.
    pub times: u32,
}

/// Counts since the start, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReconcileMetrics {
    /// Completed rounds.
    pub rounds: u64,
    /// Failed rounds: the call failed, or the list was invalid.
    pub failed_rounds: u64,
    /// Drifts that an attach repairs.
    pub lost: u64,
    /// Drifts that a detach repairs.
    pub leftover: u64,
    /// Successful repairs.
    pub repaired: u64,
    /// Repairs that the plan refused.
    pub refused: u64,
}

// === impl ControllerState ===

impl ControllerState {
    /// Begins a round, whose result is handled as
    /// [`Event::VolumesListed`](super::Event::VolumesListed). `None` if no sync has started
    /// yet, or the driver does not list published nodes.
    pub fn begin_reconcile(&mut self, driver: &Driver) -> Option<ListVolumesResult> {
        let lists = self.capabilities.is_some_and(|c| c.publish && c.list_published);
        if !lists || !self.started {
            return None;
        }
        let mut result = ListVolumesResult::default();
        for attachment in self.index.attachments() {
            if self.queue.is_running(&Key::Attachment(attachment.name.clone())) {
                continue;
            }
            let Some(expected) = expected_target(&self.index.inputs(attachment), driver) else {
                continue;
            };
            if let Some(handle) = listed_handle(&expected.target, driver) {
                result.add(attachment.clone(), expected, handle);
            }
        }
        self.repairs.dirty = Some(HashSet::new());
        let attached = std::mem::take(&mut self.repairs.attached_since_round);
        self.repairs.newly_attached.extend(attached);
        Some(result)
    }

    /// Takes the drifts that were found since the last call.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.repairs.findings)
    }

    /// Counts for metrics.
    pub fn reconcile_metrics(&self) -> ReconcileMetrics {
        self.repairs.metrics
    }

    /// The last round, if there was one.
    pub fn last_round(&self) -> Option<&LastRound> {
        self.repairs.last.as_ref()
    }

    pub(super) fn list_volumes_failed(&mut self, round: Round, why: Arc<str>) {
        self.repairs.dirty = None;
        self.repairs.metrics.failed_rounds += 1;
        self.repairs.last = Some(LastRound {
            round,
            lost: 0,
            leftover: 0,
            error: Some(why),
        });
    }

    pub(super) fn volumes_listed(&mut self, result: ListVolumesResult, round: Round) {
        // The driver's capabilities changed while it listed.
        let Some(dirty) = self.repairs.dirty.take() else {
            return;
        };
        self.repairs.metrics.rounds += 1;
        let before = self.repairs.metrics;
        let mut candidates = result.into_candidates();
        // The store is unordered, and the simulation must be deterministic.
        candidates.sort_unstable_by(|a, b| a.attachment.name.cmp(&b.attachment.name));
        for candidate in candidates {
            if self.is_unchanged(&candidate, &dirty) {
                self.apply_drift(candidate);
            }
        }
        self.repairs.newly_attached.clear();
        let metrics = self.repairs.metrics;
        self.repairs.last = Some(LastRound {
            round,
            lost: metrics.lost - before.lost,
            leftover: metrics.leftover - before.leftover,
            error: None,
        });
    }

    /// Whether neither the VolumeAttachment nor another one of the same volume and node changed or was synced.
    fn is_unchanged(&self, candidate: &Candidate, dirty: &HashSet<Arc<str>>) -> bool {
        let attachment = &candidate.attachment;
        let is_as_it_was = self
            .index
            .attachment(&attachment.name)
            .is_some_and(|newest| newest.uid == attachment.uid && newest.version == attachment.version);
        let is_idle =
            |name: &Arc<str>| !dirty.contains(name) && !self.queue.is_running(&Key::Attachment(name.clone()));
        let has_same_target = |name: &Arc<str>| {
            self.index
                .attachment(name)
                .is_some_and(|other| other.node == attachment.node && other.source == attachment.source)
        };
        let present_id = self
            .index
            .node(&attachment.node)
            .and_then(|node| node.id.as_ref());
        let target = &candidate.expected.target;
        let is_node_as_it_was = match &attachment.recorded.node_id {
            Some(recorded) => {
                present_id.filter(|id| *id != recorded) == candidate.expected.other_node_id.as_ref()
            }
            None => present_id == Some(&target.node_id),
        };
        // Inline volumes are few, and have no index.
        let (by_volume, by_node) = match attachment.volume_name() {
            Some(volume) => (Some(self.index.attachments_of_volume(volume)), None),
            None => (None, Some(self.index.attachments_of_node(&attachment.node))),
        };
        let mut candidates = by_volume
            .into_iter()
            .flatten()
            .chain(by_node.into_iter().flatten());
        is_as_it_was
            && is_node_as_it_was
            && is_idle(&attachment.name)
            && candidates.all(|name| !has_same_target(name) || is_idle(name))
    }

    fn apply_drift(&mut self, candidate: Candidate) {
        let uid = &candidate.attachment.uid;
        let round = self.repairs.metrics.rounds;
        // Weak evidence counts only twice in a row.
        let suspected = self
            .repairs
            .suspects
            .get(uid)
            .is_some_and(|suspect| suspect.round + 1 == round);
        let newly_attached = self.repairs.newly_attached.contains(uid);
        let drift = drift(&candidate, suspected, newly_attached);
        let key = Key::Attachment(candidate.attachment.name.clone());
        match drift {
            Drift::InSync if candidate.listed_state.is_known() => self.listed_in_sync(&candidate.attachment),
            Drift::InSync => {}
            Drift::Suspected => self.repairs.suspects.entry(uid.clone()).or_default().round = round,
            Drift::RetryMaySucceed => self.queue.enqueue_if_pending(&key),
            Drift::MissingFinalizer => self.attach_again(&candidate.attachment),
            Drift::Lost => self.repair(candidate, Operation::Attach),
            Drift::Leftover => self.repair(candidate, Operation::Detach),
        }
    }

    pub(super) fn mark_dirty(&mut self, name: &Arc<str>) {
        if let Some(dirty) = &mut self.repairs.dirty {
            dirty.insert(name.clone());
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
