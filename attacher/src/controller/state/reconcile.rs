//! Surveys of where the driver says that volumes are, and the work that follows from them.
//!
//! An attachment is judged only if it neither changed nor had work from the moment the survey began until
//! its result is here, so what a concurrent job does is never undone. The work that follows is
//! [`repair`](super::repair).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ControllerState;
use crate::model::{Attachment, Driver, PublishTarget};
use crate::plan::Operation;
use crate::plan::reconcile::{Drift, ListVolumesResult, Subject, listed_handle, verdict, whereabouts};
use crate::workqueue::Key;

/// How the survey of one round went, as who carried it out tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// When it ended.
    pub ended: Instant,
    /// How long it took.
    pub took: Duration,
    /// How many volumes the driver listed, as far as it came.
    pub listed: u64,
}

/// The last round, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRound {
    /// How it went.
    pub round: Round,
    /// How many attachments it found lost, which are published again.
    pub lost: u64,
    /// How many volumes it found published for nobody, which are unpublished.
    pub leftover: u64,
    /// Why it came to nothing, if it did.
    pub error: Option<Arc<str>>,
}

/// Something that a survey found wrong and that is going to be repaired. To be told to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The attachment.
    pub attachment: Arc<Attachment>,
    /// Its volume and node id.
    pub target: PublishTarget,
    /// What is wrong.
    pub fault: Fault,
    /// The how-manieth time in a row, without the driver's list agreeing in between.
    pub times: u32,
}

/// What a survey can find wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The volume is not on the node although it is attached.
    Lost,
    /// The volume is on the node although its attachment is being deleted and was let go of.
    Leftover,
}

/// Counts since the start, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReconcileMetrics {
    /// Surveys that were completed.
    pub rounds: u64,
    /// Surveys that failed: the driver did not answer, or its list was broken.
    pub failed_rounds: u64,
    /// Attachments found lost.
    pub lost: u64,
    /// Volumes found published for attachments that were let go of.
    pub leftover: u64,
    /// Repairs that succeeded.
    pub repaired: u64,
    /// Repairs that could not be made as things stood.
    pub refused: u64,
}

// === impl ControllerState ===

impl ControllerState {
    /// Begins a survey, to be fed with the driver's list and handed back as
    /// [`Event::VolumesListed`](super::Event::VolumesListed). `None` when there is nothing to survey: work has not
    /// begun yet, or the driver does not tell where its volumes are.
    pub fn begin_reconcile(&mut self, driver: &Driver) -> Option<ListVolumesResult> {
        let lists = self.capabilities.is_some_and(|c| c.publish && c.list_published);
        if !lists || !self.started {
            return None;
        }
        let mut survey = ListVolumesResult::default();
        for attachment in self.index.attachments() {
            if self.queue.is_running(&Key::Attachment(attachment.name.clone())) {
                continue;
            }
            let Some(whereabouts) = whereabouts(&self.index.inputs(attachment), driver) else {
                continue;
            };
            if let Some(handle) = listed_handle(&whereabouts.target, driver) {
                survey.add(attachment.clone(), whereabouts, handle);
            }
        }
        self.repairs.dirty = Some(HashSet::new());
        let fresh = std::mem::take(&mut self.repairs.fresh);
        self.repairs.young.extend(fresh);
        Some(survey)
    }

    /// What the surveys since the last call found wrong.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.repairs.findings)
    }

    /// Counts for metrics.
    pub fn tally(&self) -> ReconcileMetrics {
        self.repairs.tally
    }

    /// The last round of surveys, if there was one.
    pub fn last_round(&self) -> Option<&LastRound> {
        self.repairs.last.as_ref()
    }

    pub(super) fn survey_failed(&mut self, round: Round, why: Arc<str>) {
        self.repairs.dirty = None;
        self.repairs.tally.failed_rounds += 1;
        self.repairs.last = Some(LastRound {
            round,
            lost: 0,
            leftover: 0,
            error: Some(why),
        });
    }

    pub(super) fn surveyed(&mut self, survey: ListVolumesResult, round: Round) {
        // The driver's capabilities changed while it listed.
        let Some(dirty) = self.repairs.dirty.take() else {
            return;
        };
        self.repairs.tally.rounds += 1;
        let before = self.repairs.tally;
        let mut subjects = survey.into_subjects();
        // The index has no order, and the same calls are to give the same one.
        subjects.sort_unstable_by(|a, b| a.attachment.name.cmp(&b.attachment.name));
        for subject in subjects {
            if self.is_undisturbed(&subject, &dirty) {
                self.judge(subject);
            }
        }
        self.repairs.young.clear();
        let tally = self.repairs.tally;
        self.repairs.last = Some(LastRound {
            round,
            lost: tally.lost - before.lost,
            leftover: tally.leftover - before.leftover,
            error: None,
        });
    }

    /// Whether nothing has happened to the attachment, nor to another one of the same volume on the same
    /// node, whose calls have the same target.
    fn is_undisturbed(&self, subject: &Subject, dirty: &HashSet<Arc<str>>) -> bool {
        let attachment = &subject.attachment;
        let is_as_it_was = self
            .index
            .attachment(&attachment.name)
            .is_some_and(|newest| newest.uid == attachment.uid && newest.version == attachment.version);
        let at_rest =
            |name: &Arc<str>| !dirty.contains(name) && !self.queue.is_running(&Key::Attachment(name.clone()));
        let is_twin = |name: &Arc<str>| {
            self.index
                .attachment(name)
                .is_some_and(|other| other.node == attachment.node && other.source == attachment.source)
        };
        let today = self
            .index
            .node(&attachment.node)
            .and_then(|node| node.id.as_ref());
        let target = &subject.whereabouts.target;
        let is_node_as_it_was = match &attachment.recorded.node_id {
            Some(recorded) => {
                today.filter(|id| *id != recorded) == subject.whereabouts.other_node_id.as_ref()
            }
            None => today == Some(&target.node_id),
        };
        // Volumes that are specified in place are few, and not worth an index.
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
            && at_rest(&attachment.name)
            && candidates.all(|name| !is_twin(name) || at_rest(name))
    }

    fn judge(&mut self, subject: Subject) {
        let uid = &subject.attachment.uid;
        let round = self.repairs.tally.rounds;
        // Evidence adds up only if it comes twice in a row.
        let doubted = self
            .repairs
            .suspects
            .get(uid)
            .is_some_and(|doubt| doubt.round + 1 == round);
        let young = self.repairs.young.contains(uid);
        let verdict = verdict(&subject, doubted, young);
        let key = Key::Attachment(subject.attachment.name.clone());
        match verdict {
            Drift::InOrder if subject.sight.is_known() => self.in_order(&subject.attachment),
            Drift::InOrder => {}
            Drift::Doubtful => self.repairs.suspects.entry(uid.clone()).or_default().round = round,
            Drift::Promising => self.queue.enqueue_if_pending(&key),
            Drift::Unguarded => self.attach_again(&subject.attachment),
            Drift::Lost => self.repair(subject, Operation::Attach),
            Drift::Leftover => self.repair(subject, Operation::Detach),
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
