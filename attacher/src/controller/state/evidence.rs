//! Lists as evidence that targets are unpublished, which [`plan::decide`](crate::plan::decide) judges.

use std::sync::Arc;
use std::time::Instant;

use super::ControllerState;
use crate::model::{Driver, PublishTarget};
use crate::plan::reconcile::{ListVolumesResult, ListedState, WatchedTarget, listed_handle};
use crate::plan::{self, DetachPlan};
use crate::workqueue::{Class, Key, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// Adds the targets of all detaches and orphans to a round that begins.
    pub(super) fn watch_targets(&mut self, result: &mut ListVolumesResult, driver: &Driver) {
        self.evidence.round_begins();
        let mut watch = |plan: &DetachPlan, attachment: Option<_>| {
            let present = plan.present_target();
            for target in std::iter::once(plan.target.clone()).chain(present) {
                if let Some(handle) = listed_handle(&target, driver) {
                    result.watch(target, Option::clone(&attachment), handle);
                }
            }
        };
        for attachment in self.index.attachments.iter() {
            let is_detached_again = plan::has_outdated_status(attachment);
            if (attachment.deleting && attachment.finalizer || is_detached_again)
                && let Ok(plan) = plan::detach(&self.inputs(attachment), driver)
            {
                watch(&plan, Some(attachment.name.clone()));
            }
        }
        for orphan in self.orphans.values() {
            let node = self.index.nodes.get(&orphan.attachment.node);
            watch(&orphan.plan(node.map(|node| &**node)), None);
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
            let target = watched.target;
            let before = before.get(&target).copied().unwrap_or_default();
            if self
                .evidence
                .listed(target.clone(), before, state, entries, began)
            {
                let key = watched.attachment.map_or(Key::Target(target), Key::Attachment);
                self.queue.enqueue_if_pending(&key, &Lane::ALL);
            }
        }
    }

    /// Whether each node id that the list shows is a CSINode's or another VolumeAttachment's. Another one may be the new form of
    /// the target's id, on a node whose driver is not registered again yet.
    fn knows_nodes(&self, watched: &WatchedTarget) -> bool {
        let volume_id = &watched.target.volume_id;
        let others = self.index.of_handle(volume_id);
        let others = others.filter(|other| watched.attachment.as_ref() != Some(&other.name));
        let recorded = others.filter_map(|other| {
            let node_id = other.recorded.node_id.as_ref()?;
            let target = PublishTarget {
                volume_id: self.index.handle(other)?.clone(),
                node_id: node_id.clone(),
            };
            (target == target.with_volume(volume_id)).then_some(node_id)
        });
        let recorded: Vec<_> = recorded.collect();
        let is_known =
            |id: &Arc<str>| self.index.by_node_id.get(id).next().is_some() || recorded.contains(&id);
        watched.listed_at.iter().all(is_known)
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
