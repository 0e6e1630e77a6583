//! Reconcile: compares our VolumeAttachments with ListVolumes.
//!
//! A [`ListVolumesResult`] is made before the call and takes its entries one by one, so that its size follows from our
//! objects and not from the array. The list is a hint: it takes time, drivers list from caches, and some leave out volumes. So
//! what follows from one list is an idempotent call or a warning, which is harmless if the list was wrong; the proof of detach
//! needs two (`ListEvidence`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{AttachInputs, DetachPlan, NodeState, Subject, detach, spec};
use crate::migration::{self, Irreparable};
use crate::model::{Attachment, Driver, PublishTarget};

/// The candidates of one round, and the listed state of each.
#[derive(Clone, Debug, Default)]
pub struct ListVolumesResult {
    pub(crate) candidates: Vec<Candidate>,
    by_handle: HashMap<Arc<str>, Vec<usize>>,
    /// Targets of detaches, whose listed state is evidence.
    pub(crate) watched: Vec<WatchedTarget>,
    watched_by_handle: HashMap<Arc<str>, Vec<usize>>,
    /// Number of the connection to the driver, at the beginning of the round.
    pub(crate) connection: u64,
    /// PersistentVolumes of the driver by handle.
    volumes: HashMap<Arc<str>, Arc<str>>,
    /// Where the driver lists them and no candidate is expected, with the name of the PersistentVolume.
    pub(crate) unexpected: BTreeMap<PublishTarget, Arc<str>>,
}

/// One target of a detach in a round.
#[derive(Clone, Debug)]
pub(crate) struct WatchedTarget {
    pub(crate) target: PublishTarget,
    /// What waits for the evidence.
    pub(crate) waiting: Subject,
    /// Its state in the list so far.
    pub(crate) listed_state: ListedState,
    /// The node ids under which the list shows the volume.
    pub(crate) listed_at: BTreeSet<Arc<str>>,
}

/// One VolumeAttachment in a round.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// As of the beginning of the round.
    pub(crate) attachment: Arc<Attachment>,
    /// The target under which its volume must be listed. A driver that changed the form of its ids lists the volume under the
    /// node's present one.
    pub(crate) expected: DetachPlan,
    /// Its state in the list so far.
    pub(crate) listed_state: ListedState,
}

/// The state of one VolumeAttachment's volume in a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListedState {
    /// The list does not contain the volume.
    #[default]
    Absent,
    /// The list contains the volume but not its nodes: an entry without status, or two contradicting entries.
    Unknown,
    /// The volume is not on the node.
    Elsewhere,
    /// The volume is on the node.
    Published,
}

/// The difference between a list and one VolumeAttachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drift {
    /// List and VolumeAttachment agree, or the list has no information.
    InSync,
    /// The volume may be lost, but the evidence is weak: it counts if the next list repeats it.
    Suspected,
    /// The volume is not published: publish it again.
    Lost,
    /// The volume is published although its VolumeAttachment is being deleted without our finalizer.
    StillPublished,
    /// A retry may succeed at once, as the driver has completed the call.
    RetryMaySucceed,
}

// === impl ListVolumesResult ===

impl ListVolumesResult {
    /// Adds a candidate, whose volume the driver lists under `handle`.
    pub(crate) fn add(&mut self, attachment: Arc<Attachment>, expected: DetachPlan, handle: Arc<str>) {
        let number = self.candidates.len();
        self.by_handle.entry(handle).or_default().push(number);
        self.candidates.push(Candidate {
            attachment,
            expected,
            listed_state: ListedState::Absent,
        });
    }

    /// Adds a target of a detach, whose volume the driver lists under `handle`.
    pub(crate) fn watch(&mut self, target: PublishTarget, waiting: Subject, handle: Arc<str>) {
        let number = self.watched.len();
        self.watched_by_handle.entry(handle).or_default().push(number);
        self.watched.push(WatchedTarget {
            target,
            waiting,
            listed_state: ListedState::Absent,
            listed_at: BTreeSet::new(),
        });
    }

    pub(crate) fn add_volume(&mut self, name: &Arc<str>, handle: &Arc<str>) {
        self.volumes.insert(handle.clone(), name.clone());
    }

    /// Whether the list would be of no use.
    pub(crate) fn is_empty(&self) -> bool {
        self.candidates.is_empty() && self.watched.is_empty() && self.volumes.is_empty()
    }

    /// Handles one entry of the list. `published` are its node ids, if it has a status.
    pub(crate) fn add_entry(&mut self, handle: &str, published: Option<&[String]>) {
        let numbers = self.by_handle.get(handle).map_or(&[][..], Vec::as_slice);
        if let Some((handle, name)) = self.volumes.get_key_value(handle) {
            for node in published.unwrap_or_default() {
                let is_expected = |number: &usize| self.candidates[*number].expected.covers(node);
                if !numbers.iter().any(is_expected) {
                    let target = PublishTarget {
                        volume_id: handle.clone(),
                        node_id: node.as_str().into(),
                    };
                    self.unexpected.insert(target, name.clone());
                }
            }
        }
        for number in numbers {
            let Candidate {
                expected,
                listed_state,
                ..
            } = &mut self.candidates[*number];
            listed_state.add(published, |node| expected.covers(node));
        }
        for number in self.watched_by_handle.get(handle).into_iter().flatten() {
            let WatchedTarget {
                target,
                listed_state,
                listed_at,
                ..
            } = &mut self.watched[*number];
            listed_state.add(published, |node| *node == *target.node_id);
            listed_at.extend(
                published
                    .unwrap_or_default()
                    .iter()
                    .map(|node| Arc::from(&**node)),
            );
        }
    }
}

// === impl ListedState ===

impl ListedState {
    /// Whether the list shows the volume's nodes.
    pub(crate) fn is_known(self) -> bool {
        matches!(self, Self::Elsewhere | Self::Published)
    }

    /// Adds an entry of the volume. `published` are its node ids, if it has a status.
    fn add(&mut self, published: Option<&[String]>, is_node: impl Fn(&str) -> bool) {
        let seen = match published {
            None => Self::Unknown,
            Some(nodes) if nodes.iter().any(|node| is_node(node)) => Self::Published,
            Some(_) => Self::Elsewhere,
        };
        *self = self.and(seen);
    }

    /// Combines two entries of a volume, which changed between two pages: the state is known only if both agree.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Absent, other) => other,
            (same, other) if same == other => same,
            _ => Self::Unknown,
        }
    }
}

/// The target under which the volume of `inputs.attachment` must be listed: that of a detach, unless its handle may be another
/// driver's. `None` if unknown.
pub(crate) fn expected_target(inputs: &AttachInputs, driver: &Driver) -> Option<DetachPlan> {
    let csi = spec(inputs).ok().and_then(|spec| spec.csi());
    let is_ours = inputs.attachment.recorded.handle.is_some() || *csi?.driver == *driver.name;
    detach(inputs, driver).ok().filter(|_| is_ours)
}

/// The handle under which the driver lists the volume of `target`; `None` if the handle of a migrated volume is incomplete
/// and the node id does not complete it.
pub(crate) fn listed_handle(target: &PublishTarget, driver: &Driver) -> Option<Arc<str>> {
    match migration::repaired(&driver.name, &target.volume_id, &target.node_id) {
        // A handle in any other form is not that of a migrated volume.
        Ok(Cow::Borrowed(_)) | Err(Irreparable::Handle(_)) => Some(target.volume_id.clone()),
        Ok(Cow::Owned(repaired)) => Some(repaired.into()),
        Err(Irreparable::Scope(_) | Irreparable::NodeId(_) | Irreparable::Region(..)) => None,
    }
}

/// The drift of one candidate. `suspected` says that the previous list made it [`Drift::Suspected`], too.
///
/// A volume that the list lacks may have slipped between two pages, one whose node has another id now may be listed under
/// either, and the list may be older than a `newly_attached` volume: that alone is no reason for a call or an Event.
pub(crate) fn drift(candidate: &Candidate, suspected: bool, newly_attached: bool) -> Drift {
    let Candidate {
        attachment,
        expected,
        listed_state,
    } = candidate;
    let published = match listed_state {
        ListedState::Unknown => return Drift::InSync,
        ListedState::Absent | ListedState::Elsewhere => false,
        ListedState::Published => true,
    };
    match (attachment.deleting, attachment.attached) {
        (false, true) if published => Drift::InSync,
        (false, true) => {
            let weak = newly_attached
                || *listed_state == ListedState::Absent
                || matches!(expected.node, NodeState::OtherId(_));
            if weak && !suspected {
                Drift::Suspected
            } else {
                Drift::Lost
            }
        }
        (true, _) if published && !attachment.finalizer => Drift::StillPublished,
        (true, attached)
            if attachment.finalizer && published != attached && *listed_state != ListedState::Absent =>
        {
            Drift::RetryMaySucceed
        }
        (false, false) if published => Drift::RetryMaySucceed,
        (true, _) | (false, false) => Drift::InSync,
    }
}

#[cfg(test)]
mod tests;
