//! Lists as evidence that targets are unpublished, which [`plan::decide`](crate::plan::decide) judges.

use std::sync::Arc;
use std::time::Instant;

use super::{ControllerState, key};
use crate::model::{Attachment, Driver, PublishTarget};
use crate::plan::reconcile::{ListVolumesResult, ListedState, WatchedTarget, listed_handle};
use crate::plan::{self, DetachPlan, Operation, Subject};
use crate::workqueue::{Class, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// Adds the targets of all detaches and orphans to a round that begins.
    pub(super) fn watch_targets(&mut self, result: &mut ListVolumesResult, driver: &Driver) {
        self.evidence.begin_round();
        let mut watch = |plan: &DetachPlan, waiting: &Subject| {
            let present = plan.present_target();
            for target in std::iter::once(plan.target.clone()).chain(present) {
                if let Some(handle) = listed_handle(&target, driver) {
                    result.watch(target, waiting.clone(), handle);
                }
            }
        };
        for attachment in self.index.attachments.iter() {
            let is_detached_again = plan::has_outdated_status(attachment);
            if (attachment.deleting && attachment.finalizer || is_detached_again)
                && let Ok(plan) = plan::detach(&self.inputs(attachment), driver)
            {
                watch(&plan, &Subject::Attachment(Operation::Detach, attachment.clone()));
            }
        }
        for orphan in self.orphans.values() {
            let node = self.index.nodes.get(&orphan.attachment.node);
            let plan = orphan.plan(node.map(|node| &**node));
            watch(&plan, &Subject::Orphan(orphan.clone()));
        }
    }

    /// Adds a complete list with this number of entries to the evidence, and retries the detaches that it proves. Without
    /// `lists_nodes` it says nothing about targets that it lacks.
    pub(super) fn targets_listed(
        &mut self,
        result: &mut ListVolumesResult,
        entries: u64,
        began: Instant,
        lists_nodes: bool,
    ) {
        let before = self.evidence.take_lists();
        if result.connection != self.connection {
            return;
        }
        for watched in std::mem::take(&mut result.watched) {
            let mut state = watched.listed_state;
            let is_known = match state {
                ListedState::Elsewhere => lists_nodes && self.knows_nodes(&watched),
                ListedState::Absent => lists_nodes,
                ListedState::Unknown | ListedState::Published => true,
            };
            if !is_known {
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

    /// Whether each node id that the list shows is another node's: another VolumeAttachment with our finalizer records it, which
    /// unpublishes it, or only CSINodes of other nodes register it that are older than the VolumeAttachment. Any other one may be the
    /// new form of the target's id: the target's own node registers it, whose entry may be gone when the lists are a proof, or the
    /// machine was renamed in place, and registers a CSINode of its new name.
    fn knows_nodes(&self, watched: &WatchedTarget) -> bool {
        let volume_id = &watched.target.volume_id;
        let waiting = watched.waiting.uid();
        let others = self.index.of_handle(volume_id);
        let others = others.filter(|other| other.uid != waiting && other.finalizer);
        let recorded = others.filter_map(|other| {
            let node_id = other.recorded.node_id.as_ref()?;
            let target = PublishTarget {
                volume_id: self.index.handle(other)?.clone(),
                node_id: node_id.clone(),
            };
            (target == target.with_volume(volume_id)).then_some(node_id)
        });
        let recorded: Vec<_> = recorded.collect();
        let Attachment {
            node: own, created, ..
        } = &**watched.waiting.attachment();
        let is_older = |node: &Arc<str>| {
            let node = self.index.nodes.get(node).and_then(|node| node.created);
            node.zip(*created).is_some_and(|(node, created)| node < created)
        };
        let is_of_other_node = |id| {
            let mut nodes = self.index.by_node_id.get(id).peekable();
            nodes.peek().is_some() && nodes.all(|node| node != own && is_older(node))
        };
        watched
            .listed_at
            .iter()
            .all(|id| recorded.contains(&id) || is_of_other_node(id))
    }

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
