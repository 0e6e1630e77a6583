//! Reconcile: what our attachments say, held against what the driver lists.
//!
//! A [`ListVolumesResult`] is taken before ListVolumes is asked and is fed with the answer entry by entry, so that
//! it grows with our attachments and not with the array. What it shows is a hint, never a fact: a list
//! takes time, drivers answer from caches, and some leave out what they do not care for. Hence nothing
//! that follows from it may do harm if the list was wrong: all of it is a call that can be repeated.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::{AttachInputs, csi, spec};
use crate::migration::{self, Irreparable};
use crate::model::{Attachment, Driver, PublishTarget};

/// What is to be looked up in a list of volumes.
#[derive(Clone, Debug, Default)]
pub struct ListVolumesResult {
    subjects: Vec<Subject>,
    by_handle: HashMap<Arc<str>, Vec<usize>>,
}

/// One attachment in a survey.
#[derive(Clone, Debug)]
pub struct Subject {
    /// As it was when the survey began.
    pub attachment: Arc<Attachment>,
    /// Where its volume is, or is to be.
    pub whereabouts: Whereabouts,
    /// What the list says so far.
    pub sight: ListedState,
}

/// Where an attachment's volume is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whereabouts {
    /// Where the publish call was sent, as far as that is recorded; else where it would be sent today.
    pub target: PublishTarget,
    /// The node's id of today, if it is another. A driver that changed the form of its ids lists the
    /// volume there.
    pub other_node_id: Option<Arc<str>>,
}

/// What a list says about one attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListedState {
    /// The list does not name the volume.
    #[default]
    Absent,
    /// The list names the volume and nobody knows where it is: an entry without status, or two entries
    /// that contradict each other.
    Unknown,
    /// The volume is not on the node.
    Elsewhere,
    /// The volume is on the node.
    Published,
}

/// What follows from a survey for one attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// List and attachment agree, or the list says nothing.
    InOrder,
    /// The volume seems to be lost, but the evidence is weak: it counts if the next list says so too.
    Doubtful,
    /// The volume is not where it must be: publish it again.
    Lost,
    /// The volume is where it must be, but our finalizer, which would get it detached one day, is not on
    /// the attachment: it was attached without a call to where an earlier call had brought it. Attach it.
    Unguarded,
    /// The volume is where nobody wants it, and our finalizer, which would get it detached, is gone.
    Leftover,
    /// The work that waits to be tried again may find that the driver has finished it meanwhile.
    Promising,
}

// === impl ListVolumesResult ===

impl ListVolumesResult {
    /// Adds an attachment, whose volume the driver lists under `handle`.
    pub fn add(&mut self, attachment: Arc<Attachment>, whereabouts: Whereabouts, handle: Arc<str>) {
        let number = self.subjects.len();
        self.by_handle.entry(handle).or_default().push(number);
        self.subjects.push(Subject {
            attachment,
            whereabouts,
            sight: ListedState::Absent,
        });
    }

    /// Takes in one entry of the list: where the volume is published, if the entry says.
    pub fn see(&mut self, handle: &str, published: Option<&[String]>) {
        let Some(numbers) = self.by_handle.get(handle) else {
            return;
        };
        for number in numbers {
            let subject = &mut self.subjects[*number];
            let seen = match published {
                None => ListedState::Unknown,
                Some(nodes) if nodes.iter().any(|node| subject.whereabouts.covers(node)) => {
                    ListedState::Published
                }
                Some(_) => ListedState::Elsewhere,
            };
            subject.sight = subject.sight.and(seen);
        }
    }

    /// Whether there is nothing to look up.
    pub fn is_empty(&self) -> bool {
        self.subjects.is_empty()
    }

    /// All attachments, with what the list said about each.
    pub fn into_subjects(self) -> Vec<Subject> {
        self.subjects
    }
}

// === impl Whereabouts ===

impl Whereabouts {
    fn covers(&self, node_id: &str) -> bool {
        *self.target.node_id == *node_id || self.other_node_id.as_deref() == Some(node_id)
    }
}

// === impl ListedState ===

impl ListedState {
    /// Whether the list says anything about the volume.
    pub fn is_known(self) -> bool {
        matches!(self, Self::Elsewhere | Self::Published)
    }

    /// A volume that is named twice, because pages changed while they were turned: only what both
    /// entries say is known.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Absent, other) => other,
            (same, other) if same == other => same,
            _ => Self::Unknown,
        }
    }
}

/// Where to look for the volume of `facts.attachment`. What was recorded before the publish call wins,
/// as it does when the attachment is detached. `None` if it cannot be known.
pub fn whereabouts(facts: &AttachInputs, driver: &Driver) -> Option<Whereabouts> {
    let attachment = &*facts.attachment;
    let ours = spec(facts)
        .ok()
        .and_then(|spec| csi(spec).ok())
        .filter(|csi| *csi.driver == *driver.name);
    let handle = match (&attachment.recorded.handle, ours) {
        (Some(handle), _) => handle.clone(),
        (None, csi) => csi?.handle.clone(),
    };
    let today = facts.node.as_ref().and_then(|node| node.id.clone());
    let (node_id, other_node_id) = match (attachment.recorded.node_id.clone(), today) {
        (Some(recorded), today) => {
            let other = today.filter(|id| *id != recorded);
            (recorded, other)
        }
        (None, today) => (today?, None),
    };
    Some(Whereabouts {
        target: PublishTarget {
            volume_id: handle,
            node_id,
        },
        other_node_id,
    })
}

/// The handle under which the driver lists the volume of `target`; `None` if that cannot be told, as the
/// handle leaves something open and the node id does not fill it in.
pub fn listed_handle(target: &PublishTarget, driver: &Driver) -> Option<Arc<str>> {
    match migration::repaired(&driver.name, &target.volume_id, &target.node_id) {
        // What is not made as a migrated volume's handle leaves nothing open.
        Ok(Cow::Borrowed(_)) | Err(Irreparable::Handle(_)) => Some(target.volume_id.clone()),
        Ok(Cow::Owned(repaired)) => Some(repaired.into()),
        Err(Irreparable::Scope(_) | Irreparable::NodeId(_) | Irreparable::Region { .. }) => None,
    }
}

/// What follows for one attachment. `doubted` tells that the list before this one made it
/// [`Drift::Doubtful`] too.
///
/// A volume that is absent from the list may have slipped between two pages, one whose node has got another id
/// since may be listed under either, and the list may be older than an attach of one that is `young`: that alone is
/// no reason to touch what people use, nor to alarm them.
pub fn verdict(subject: &Subject, doubted: bool, young: bool) -> Drift {
    let Subject {
        attachment,
        whereabouts,
        sight,
    } = subject;
    let published = match sight {
        ListedState::Unknown => return Drift::InOrder,
        ListedState::Absent | ListedState::Elsewhere => false,
        ListedState::Published => true,
    };
    match (attachment.deleting, attachment.attached) {
        (false, true) if published && attachment.finalizer => Drift::InOrder,
        (false, true) if published => Drift::Unguarded,
        (false, true) => {
            let weak = young || *sight == ListedState::Absent || whereabouts.other_node_id.is_some();
            if weak && !doubted {
                Drift::Doubtful
            } else {
                Drift::Lost
            }
        }
        (true, _) if published && !attachment.finalizer => Drift::Leftover,
        (true, attached)
            if attachment.finalizer && published != attached && *sight != ListedState::Absent =>
        {
            Drift::Promising
        }
        (false, false) if published => Drift::Promising,
        (true, _) | (false, false) => Drift::InOrder,
    }
}

#[cfg(test)]
mod tests;
