//! Evidence that targets are unpublished, which [`plan::decide`](crate::plan::decide) judges. It ends with the connection to the
//! driver, the VolumeAttachment, a change of the CSINode, or a publish to the target, so a restarted process starts without any.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use super::ControllerState;
use crate::model::{Driver, PublishTarget, Uid};
use crate::plan::reconcile::{ListVolumesResult, listed_handle};
use crate::plan::{self, Answers, DetachPlan, ListEvidence, NodeState, TargetEvidence, UnpublishResult};
use crate::workqueue::{Class, Key, Lane};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DetachEvidence {
    answers: HashMap<PublishTarget, Answers>,
    lists: HashMap<PublishTarget, ListEvidence>,
    /// Targets of running publish calls.
    publishing: HashSet<PublishTarget>,
    /// Targets of publish calls that ran since the last reconcile round began.
    published_in_round: HashSet<PublishTarget>,
}

// === impl DetachEvidence ===

impl DetachEvidence {
    /// The evidence rests on one session with the driver.
    pub(super) fn reconnected(&mut self) {
        self.answers.clear();
        self.lists.clear();
    }

    fn forget_target(&mut self, target: &PublishTarget) {
        self.answers.remove(target);
        self.lists.remove(target);
    }

    /// Forgets the answers about a VolumeAttachment that is gone, or whose node registered again.
    pub(super) fn forget(&mut self, uid: &Uid) {
        self.answers.retain(|_, answers| !answers.is_about(uid));
    }

    pub(super) fn forget_orphan(&mut self, target: &PublishTarget) {
        self.answers.remove(target);
    }
}

// === impl ControllerState ===

impl ControllerState {
    /// A publish call for the target begins.
    pub(crate) fn publish_begins(&mut self, target: &PublishTarget) {
        self.evidence.forget_target(target);
        self.evidence.publishing.insert(target.clone());
    }

    /// The publish call has ended, whatever its result.
    pub(crate) fn publish_ended(&mut self, target: &PublishTarget) {
        self.evidence.forget_target(target);
        self.evidence.publishing.remove(target);
        self.evidence.published_in_round.insert(target.clone());
    }

    /// Adds the result of an unpublish, in this session, to the evidence about the target.
    pub(crate) fn answered(
        &mut self,
        uid: &Uid,
        target: &PublishTarget,
        session: Instant,
        result: UnpublishResult,
    ) -> TargetEvidence {
        let before = self.evidence.answers.remove(target);
        let is_counted = matches!(
            result,
            UnpublishResult::NotFound | UnpublishResult::InvalidArgument
        );
        let answers =
            is_counted.then(|| Answers::after(before.as_ref(), uid, session, result, self.queue.now));
        if let Some(answers) = &answers {
            self.evidence.answers.insert(target.clone(), answers.clone());
        }
        TargetEvidence {
            result,
            answers,
            lists: self.evidence.lists.get(target).copied().unwrap_or_default(),
        }
    }

    /// Adds the targets of all detaches and orphans to a round that begins.
    pub(super) fn watch_targets(&mut self, result: &mut ListVolumesResult, driver: &Driver) {
        self.evidence.published_in_round = self.evidence.publishing.clone();
        let mut watch = |plan: &DetachPlan, attachment: Option<_>| {
            let present = plan.present_target();
            for target in std::iter::once(plan.target.clone()).chain(present) {
                if let Some(handle) = listed_handle(&target, driver) {
                    result.watch(target, Option::clone(&attachment), handle);
                }
            }
        };
        for attachment in self.index.attachments.iter() {
            let is_detached_again = plan::has_stale_status(attachment);
            if (attachment.deleting && attachment.finalizer || is_detached_again)
                && let Ok(plan) = plan::detach(&self.inputs(attachment), driver)
            {
                watch(&plan, Some(attachment.name.clone()));
            }
        }
        for orphan in self.abandoned.values() {
            let node = self.index.nodes.get(&orphan.attachment.node);
            let plan = DetachPlan {
                target: orphan.target.clone(),
                node: NodeState::of(node.map(|node| &**node), &orphan.target.node_id),
                secret: None,
                migrated: orphan.migrated,
            };
            watch(&plan, None);
        }
    }

    /// Adds a complete list with this number of entries to the evidence, and retries the detaches that it proves.
    pub(super) fn targets_listed(&mut self, result: &mut ListVolumesResult, entries: u64, began: Instant) {
        let before = std::mem::take(&mut self.evidence.lists);
        if result.connection != self.connection {
            return;
        }
        for watched in std::mem::take(&mut result.watched) {
            let target = watched.target;
            if self.evidence.published_in_round.contains(&target) {
                continue;
            }
            let before = before.get(&target).copied().unwrap_or_default();
            let lists = before.with(watched.listed_state, entries, began);
            if lists.is_proof() && !before.is_proof() {
                let key = watched
                    .attachment
                    .map_or_else(|| Key::Target(target.clone()), Key::Attachment);
                self.queue.enqueue_if_pending(&key, &Lane::ALL);
            }
            self.evidence.lists.insert(target, lists);
        }
    }

    /// The number of detaches and orphans that wait for a proof.
    pub(crate) fn unproven(&self) -> usize {
        let failures = self
            .queue
            .items()
            .filter_map(|(_, entry)| entry.failures.as_ref());
        failures
            .filter(|failures| failures.last.class == Class::Unproven)
            .count()
    }
}
