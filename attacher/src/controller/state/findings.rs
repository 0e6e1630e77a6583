//! Situations that Events, metrics and the log name. Only an administrator can end them, except drifts, and the
//! attacher calls nothing for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ControllerState;
use crate::model::{Attachment, PublishTarget, Volume};
use crate::plan::Operation;
use crate::workqueue::Key;

/// What was found, for the log and an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// A drift that is being repaired.
    Drift {
        attachment: Arc<Attachment>,
        target: PublishTarget,
        /// The repair: an attach if the volume is attached but not listed on its node, a detach if it is listed there although
        /// its VolumeAttachment is being deleted without our finalizer.
        repair: Operation,
        /// Whether the repair was refused, and waits until one of its objects changes.
        waits: bool,
        /// Number of consecutive repairs without a matching list in between.
        times: u32,
    },
    /// Another CSINode has the same node id, so the driver cannot tell the two nodes apart.
    NodeIdNotUnique {
        attachment: Arc<Attachment>,
        node_id: Arc<str>,
        /// Name of the other CSINode.
        other: Arc<str>,
    },
    /// Another VolumeAttachment of this single-node volume says attached to another node, and neither has a record, so at
    /// least one of them is wrong and nothing tells which.
    AttachedTwice {
        attachment: Arc<Attachment>,
        other: Arc<Attachment>,
    },
    /// Two complete lists show the volume published on the node, without any VolumeAttachment.
    PublishedWithoutAttachment {
        volume: Arc<Volume>,
        target: PublishTarget,
        /// Name of the CSINode.
        node: Arc<str>,
        /// Whether the lists before did not show it.
        is_new: bool,
    },
}

// === impl ControllerState ===

impl ControllerState {
    pub(crate) fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.findings)
    }

    /// The number of volumes that lists show on a node without any VolumeAttachment.
    pub(crate) fn unattached(&self) -> usize {
        self.rounds
            .unattached
            .values()
            .filter(|confirmed| **confirmed)
            .count()
    }

    /// Checks a VolumeAttachment that is new or has changed.
    pub(super) fn check_attachment(&mut self, before: Option<&Attachment>, after: &Arc<Attachment>) {
        let before = before.filter(|before| before.uid == after.uid);
        if before.is_none()
            && let Some(id) = self.index.node_id(&after.node).cloned()
        {
            self.find_shared_node_id(&id, &after.node, |attachment| attachment.uid == after.uid);
        }
        if is_attached_without_record(after)
            && !before.is_some_and(is_attached_without_record)
            && let Some(volume) = after.volume_name()
        {
            self.check_attached_twice(volume);
        }
    }

    /// Checks the id that a CSINode has now. The first two nodes of an id are both reported, further ones by themselves.
    pub(super) fn check_node_id(&mut self, id: &Arc<str>, node: &Arc<str>) {
        let nodes: Vec<_> = self.index.by_node_id.get(id).take(3).cloned().collect();
        let reported = if nodes.len() == 2 {
            &nodes
        } else {
            std::slice::from_ref(node)
        };
        for node in reported {
            self.find_shared_node_id(id, node, |_| true);
        }
    }

    fn find_shared_node_id(
        &mut self,
        id: &Arc<str>,
        node: &Arc<str>,
        concerned: impl Fn(&Attachment) -> bool,
    ) {
        let Some(other) = self.index.by_node_id.get(id).find(|other| *other != node) else {
            return;
        };
        let findings = self
            .index
            .on_node(node)
            .filter(|attachment| concerned(attachment));
        self.findings
            .extend(findings.map(|attachment| Finding::NodeIdNotUnique {
                attachment: attachment.clone(),
                node_id: id.clone(),
                other: other.clone(),
            }));
    }

    /// The number of volumes with [`Finding::AttachedTwice`].
    pub(crate) fn attached_twice(&self) -> usize {
        let suspects = self
            .index
            .attachments
            .iter()
            .filter(|a| is_attached_without_record(a));
        let volumes: BTreeSet<_> = suspects.filter_map(|a| a.volume_name()).collect();
        let is_twice = |volume: &&Arc<str>| {
            let attached = self.attached_without_record(volume);
            attached.iter().any(|a| a.node != attached[0].node)
        };
        volumes.into_iter().filter(is_twice).count()
    }

    pub(super) fn check_attached_twice(&mut self, volume: &str) {
        let attached = self.attached_without_record(volume);
        let twice = |attachment: &&Arc<Attachment>| {
            let other = attached.iter().find(|other| other.node != attachment.node)?;
            Some(Finding::AttachedTwice {
                attachment: (*attachment).clone(),
                other: (*other).clone(),
            })
        };
        let findings: Vec<_> = attached.iter().filter_map(twice).collect();
        self.findings.extend(findings);
    }

    /// The VolumeAttachments of a single-node volume that say attached without a record.
    fn attached_without_record(&self, volume: &str) -> Vec<&Arc<Attachment>> {
        let volume_object = self.index.volumes.get(volume);
        if volume_object.is_none_or(|volume| volume.spec.is_multi_node()) {
            return Vec::new();
        }
        let attachments = self.index.of_volume(volume);
        attachments.filter(|a| is_attached_without_record(a)).collect()
    }

    /// Compares where a complete list shows our volumes with the VolumeAttachments that exist now.
    pub(super) fn find_unattached(&mut self, listed: BTreeMap<PublishTarget, Arc<str>>) {
        let before = std::mem::take(&mut self.rounds.unattached);
        for (target, name) in listed {
            let node = self.index.by_node_id.get(&target.node_id).next().cloned();
            let volume = self.index.volumes.get(&name).cloned();
            // Other machines may use the array, too.
            let (Some(node), Some(volume)) = (node, volume) else {
                continue;
            };
            if self.may_be_attached(&name, &target) {
                continue;
            }
            let seen = before.get(&target);
            self.rounds.unattached.insert(target.clone(), seen.is_some());
            if let Some(confirmed) = seen {
                self.findings.push(Finding::PublishedWithoutAttachment {
                    volume,
                    target,
                    node,
                    is_new: !confirmed,
                });
            }
        }
    }

    /// Whether a VolumeAttachment or a running operation may be the reason that the volume is published.
    fn may_be_attached(&self, volume: &Arc<str>, target: &PublishTarget) -> bool {
        let of_volume = self.index.of_volume(volume);
        let mut attachments = of_volume.chain(self.index.of_handle(&target.volume_id));
        let is_there = |attachment: &Arc<Attachment>| {
            let ids = [
                attachment.recorded.node_id.as_ref(),
                self.index.node_id(&attachment.node),
            ];
            ids == [None, None] || ids.contains(&Some(&target.node_id))
        };
        attachments.any(is_there)
            || self.orphans.contains_key(target)
            || self.queue.is_running(&Key::Target(target.clone()))
    }
}

fn is_attached_without_record(attachment: &Attachment) -> bool {
    attachment.attached && !attachment.deleting && attachment.recorded.node_id.is_none()
}

#[cfg(test)]
mod tests;
