//! Lists as evidence that targets are unpublished, which [`plan::decide`](crate::plan::decide) judges.

use std::time::Instant;

use super::{ControllerState, key};
use crate::model::Driver;
use crate::plan::reconcile::{ListVolumesResult, ListedState, WatchedTarget, listed_handle};
use crate::plan::{self, DetachPlan, NodeState, Operation, Subject};
use crate::workqueue::{Class, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// Adds the targets of all detaches and orphans to a round that begins.
    pub(super) fn watch_targets(&mut self, result: &mut ListVolumesResult, driver: &Driver) {
        self.evidence.round_begins();
        let mut watch = |plan: &DetachPlan, waiting: &Subject| {
            let present = plan.present_target();
            for target in std::iter::once(plan.target.clone()).chain(present) {
                if let Some(handle) = listed_handle(&target, driver) {
                    result.watch(target, waiting.clone(), handle);
                }
            }
        };
        for attachment in self.index.attachments.iter() {
            let is_detached_again = plan::has_stale_status(attachment);
            if (attachment.deleting && attachment.finalizer || is_detached_again)
                && let Ok(plan) = plan::detach(&self.inputs(attachment), driver)
            {
                watch(&plan, &Subject::Attachment(Operation::Detach, attachment.clone()));
            }
        }
        for orphan in self.orphans.values() {
            let node = self.index.nodes.get(&orphan.attachment.node);
            let plan = DetachPlan {
                target: orphan.target.clone(),
                node: NodeState::of(node.map(|node| &**node), &orphan.target.node_id),
                secret: None,
                migrated: orphan.migrated,
            };
            watch(&plan, &Subject::Orphan(orphan.clone()));
        }
    }

    /// Adds a complete list with this number of entries to the evidence, and retries the detaches that it proves.
    pub(super) fn targets_listed(&mut self, result: &mut ListVolumesResult, entries: u64, began: Instant) {
        let before = self.evidence.take_lists();
        if result.connection != self.connection {
            return;
        }
        for watched in std::mem::take(&mut result.watched) {
            let mut state = watched.listed_state;
            if state == ListedState::Elsewhere && !self.knows_nodes(&watched) {
                state = ListedState::Unknown;
            }
            let WatchedTarget { target, waiting, .. } = watched;
            if self
                .evidence
                .listed(waiting.uid(), target, &before, state, entries, began)
            {
                // An orphan is enqueued under its own target, also if the list is about the node's present id.
                self.queue.enqueue_if_pending(&key(&waiting), &Lane::ALL);
            }
        }
    }

    /// Whether each node id that the list shows is recorded by another VolumeAttachment with our finalizer, which unpublishes it. Any
    /// other one may be the new form of the target's id, also if a CSINode registers it: that may be the target's own node, and
    /// may be gone when the lists are a proof.
    fn knows_nodes(&self, watched: &WatchedTarget) -> bool {
        let waiting = watched.waiting.uid();
        let others = self.index.by_handle.get(&watched.target.volume_id);
        let recorded: Vec<_> = others
            .filter_map(|name| self.index.attachments.get(name))
            .filter(|other| other.uid != waiting && other.finalizer)
            .filter_map(|other| other.recorded.node_id.as_ref())
            .collect();
        watched.listed_at.iter().all(|id| recorded.contains(&id))
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
