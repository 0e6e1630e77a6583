//! Whether a target is released, and what prevents an attach or detach.

use std::time::Duration;

use super::{Proof, Refusals, World};
use crate::observation::{Attachment, Name, Registration, Target};

// === impl World ===

impl World {
    /// The proof that the target is released, from the view of this attachment.
    pub fn proof(&self, attachment: &Attachment, target: &Target, now: Duration) -> Option<Proof> {
        let others = self.attachments.values().map(|state| &state.version);
        let mut others = others.filter(|other| other.uid != attachment.uid && other.finalizer);
        if others.any(|other| self.is_target_of(other, target)) {
            return Some(Proof::OtherAttachment);
        }
        let state = self.targets.get(target)?;
        if let Some(proof) = state.proof() {
            return Some(proof);
        }
        if state.orphaned && attachment.node_id.as_ref() != Some(&target.node) {
            return Some(Proof::Orphan);
        }
        let registration = self
            .nodes
            .get(&attachment.node)
            .and_then(|node| node.registration.as_ref())
            .map(|(registration, _)| registration);
        let present = match registration {
            Some(Registration::Id(id)) if *id != target.node => Some(Target {
                volume: target.volume.clone(),
                node: id.clone(),
            }),
            Some(Registration::Id(_) | Registration::NoDriver | Registration::NoCsiNode) | None => None,
        };
        // No CSINode of this node registers the recorded ID any more, and the volume is off the machine that has the name.
        if let Some(present) = present
            && state.refusals.last_for(Refusals::MINUTE)
            && self.is_released(attachment, &present)
        {
            return Some(Proof::Renamed);
        }
        let operator = self.operator?;
        let has_no_node = registration == Some(&Registration::NoCsiNode);
        let refused = state.refusals.last_for(operator) && (has_no_node || state.unlisted >= 2);
        (refused && now >= operator).then_some(Proof::Operator)
    }

    fn is_released(&self, attachment: &Attachment, target: &Target) -> bool {
        let others = self.attachments.values().map(|state| &state.version);
        let mut others = others.filter(|other| other.uid != attachment.uid && other.finalizer);
        others.any(|other| self.is_target_of(other, target))
            || self
                .targets
                .get(target)
                .is_some_and(|state| state.proof().is_some())
    }

    /// The attachment's volume on its node, under the node ID that the driver registers now.
    pub fn present_target_of(&self, attachment: &Attachment) -> Option<Target> {
        let (registration, _) = self.nodes.get(&attachment.node)?.registration.as_ref()?;
        match registration {
            Registration::Id(id) => Some(Target {
                volume: self.handle(attachment)?,
                node: id.clone(),
            }),
            Registration::NoDriver | Registration::NoCsiNode => None,
        }
    }

    /// Whether the controller force-detached the volume from the node with this node ID, and since when.
    pub fn forced(&self, target: &Target) -> Option<usize> {
        let mut forced = self.forced.iter();
        forced
            .find(|((volume, node), _)| *volume == target.volume && self.is_id_of(node, &target.node))
            .map(|(_, &since)| since)
    }

    /// Whether the node with this node ID is known to be ready and in service.
    pub fn is_healthy(&self, target: &Target) -> bool {
        let mut nodes = self.nodes.values();
        nodes.any(|node| node.ids.contains(&target.node) && node.healthy == Some(true))
    }

    /// Whether the driver said that the target is released after its last publish, or another client removed the finalizer.
    pub fn is_denied(&self, target: &Target) -> bool {
        let known = self.targets.get(target);
        known.is_some_and(|known| known.taken || known.publish_began.is_some() && known.proof().is_some())
    }

    /// Whether the target was published for another attachment, which will unpublish it.
    pub(crate) fn is_others(&self, target: &Target, uid: &Name) -> bool {
        let known = self.targets.get(target);
        let published_for = known.and_then(|known| known.published_for.as_ref());
        let mut attachments = self.attachments.values().map(|state| &state.version);
        published_for.is_some_and(|owner| {
            owner != uid && attachments.any(|other| other.uid == *owner && other.finalizer)
        })
    }

    /// Whether the driver refused a call for the attachment that began after the end of all faults.
    pub(crate) fn is_refused(&self, attachment: &Attachment) -> bool {
        let mut states = self.targets.iter().filter(|(target, _)| {
            self.handle(attachment).as_ref() == Some(&target.volume)
                && self.is_id_of(&attachment.node, &target.node)
        });
        states.any(|(_, state)| state.failed.is_some_and(|failed| Some(failed) > self.healed))
    }

    /// Whether the objects prevent the attach or detach for as long as they are as they are.
    pub(crate) fn has_obstacle(&self, attachment: &Attachment) -> bool {
        let registration = self
            .nodes
            .get(&attachment.node)
            .and_then(|node| node.registration.as_ref());
        let present = match registration {
            Some((Registration::Id(id), _)) => Some(id),
            Some((Registration::NoDriver | Registration::NoCsiNode, _)) | None => None,
        };
        let is_moved = attachment.node_id.is_some() && attachment.node_id.as_ref() != present;
        let mut others = self.attachments.values().map(|state| &state.version);
        // Another attachment of the volume and node uses it or was published, under another node ID or unguarded.
        let has_twin = others.any(|other| {
            let is_twin = other.uid != attachment.uid
                && (&other.node, &other.volume) == (&attachment.node, &attachment.volume);
            let may_use_it = (other.attached || other.finalizer) && other.deleting.is_none();
            is_twin && may_use_it && (other.node_id != attachment.node_id || !other.finalizer)
        });
        let volume = self.volumes.get(&attachment.volume);
        let lacks_volume = volume.is_none_or(|volume| {
            volume.deleting
                || volume.foreign
                || attachment
                    .handle
                    .as_ref()
                    .is_some_and(|handle| *handle != volume.handle)
        });
        let cannot_attach = attachment.deleting.is_none() && lacks_volume;
        is_moved || has_twin || cannot_attach || present.is_none() || !self.publishes
    }
}
