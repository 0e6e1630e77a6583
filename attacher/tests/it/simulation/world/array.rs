//! Changes outside Kubernetes: the array loses publishes, the driver lists wrong states, and loses its publish capability.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use csi_attacher::controller::state::Event;
use csi_attacher::csi::CallError;
use csi_attacher::model::{Attachment, Capabilities, PublishTarget, Volume};
use csi_proto::v1::list_volumes_response::{Entry, VolumeStatus};
use csi_proto::v1::{self, ListVolumesRequest, ListVolumesResponse};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{State, World, recorded};

pub(super) struct Array {
    /// Publishes that the array lost.
    lost: HashSet<PublishTarget>,
    /// Publishes of attachments that were deleted when the driver did not have the capability, or had just regained it.
    pub(super) abandoned: HashSet<PublishTarget>,
    has_publish_capability: bool,
    /// When the present session was opened: the driver reconnects to change its capability.
    session: Instant,
    is_session_first: bool,
    /// Handles of all volumes, which the array keeps.
    pub(super) handles: BTreeSet<Arc<str>>,
    lists: usize,
    /// The entries of the current list; each page has one.
    list: Vec<Entry>,
    /// The publishes at the time of the previous list.
    previous: HashSet<PublishTarget>,
}

/// Longer than a sync that began before the driver changed.
const SYNC_TIME: Duration = Duration::from_secs(2);

/// Whether the attachment is attached with the handle of an earlier PersistentVolume of the same name. The attacher cannot
/// republish it: attributes and Secret of the earlier PersistentVolume are not stored.
fn is_replaced(attachment: &Attachment, volume: &Volume) -> bool {
    let present = volume.spec.csi().map(|csi| &csi.handle);
    let recorded = attachment.recorded.handle.as_ref();
    attachment.attached && recorded.is_some_and(|recorded| present != Some(recorded))
}

// === impl World ===

impl World {
    /// Loses publishes of up to `volumes` attached volumes. Returns their number.
    pub(in super::super) fn lose_publishes(&self, volumes: usize) -> usize {
        let mut state = self.state();
        (0..volumes).filter(|_| state.lose_publish()).count()
    }

    /// Reconnects the driver with or without the publish capability.
    pub(in super::super) fn set_publish_capability(&self, present: bool) {
        self.state().set_publish_capability(present);
    }

    /// Waits for the complete reads of `lists` further lists.
    pub(in super::super) async fn await_lists(&self, lists: usize) {
        let wanted = self.state().array.lists + lists + 1;
        self.until(|state| state.array.lists >= wanted).await;
    }

    /// Disables all faults and restores the publish capability.
    pub(in super::super) fn stop_faults(&self) {
        let mut state = self.state();
        state.faults = super::Faults::NONE;
        for node in 0..super::NODES {
            if state.unregistered.contains_key(&format!("node-{node}")) {
                state.unregister_driver(node);
            }
        }
        state.set_publish_capability(true);
    }

    /// Waits until every attachable VolumeAttachment is attached, published and has our finalizer, and no deleting
    /// VolumeAttachment without our finalizer has attached=true, except one whose error names the VolumeAttachment that it
    /// waits for.
    pub(in super::super) async fn reattached(&self) {
        self.until(|state| {
            state.attachments.values().all(|attachment| {
                let can_be_attached = attachment
                    .volume_name()
                    .and_then(|name| state.volumes.get(&**name))
                    .is_some_and(|volume| !volume.deleting && !is_replaced(attachment, volume));
                let is_published = recorded(attachment).is_some_and(|target| {
                    let target = state.present(&target);
                    // Another attachment may have published it under the machine's present ID, which ListVolumes returns.
                    let by_present_id = PublishTarget {
                        node_id: state
                            .present_node_id(attachment)
                            .unwrap_or_else(|| target.node_id.clone()),
                        ..target.clone()
                    };
                    state.published.contains(&target) || state.published.contains(&by_present_id)
                });
                let is_deleting_without_finalizer = attachment.deleting && !attachment.finalizer;
                if is_deleting_without_finalizer && attachment.has_attached_status() {
                    return state.waits_for_other(attachment);
                }
                attachment.deleting
                    || !can_be_attached
                    || state.undo_waits_for_other_attachment(attachment)
                    || state.is_stranded(attachment)
                    || attachment.attached && attachment.finalizer && is_published
            })
        })
        .await;
    }

    /// The number of attachments with our finalizer.
    pub(in super::super) fn with_finalizer(&self) -> usize {
        let state = self.state();
        let attachments = state.attachments.values();
        attachments.filter(|attachment| attachment.finalizer).count()
    }
}

// === impl Array ===

impl Array {
    pub(super) fn capabilities(&self) -> Capabilities {
        Capabilities {
            publish: self.has_publish_capability,
            list_published: true,
            ..Capabilities::default()
        }
    }

    pub(super) fn has_publish_capability(&self) -> bool {
        self.has_publish_capability
    }

    pub(super) fn session(&self) -> std::time::Instant {
        self.session.into_std()
    }

    pub(super) fn all_targets(&mut self) -> [&mut HashSet<PublishTarget>; 3] {
        [&mut self.lost, &mut self.abandoned, &mut self.previous]
    }

    /// Whether a running sync may have been planned for a driver without the publish capability.
    pub(super) fn may_lack_publish_capability(&self) -> bool {
        !self.has_publish_capability || !self.is_session_first && self.session.elapsed() < SYNC_TIME
    }
}

impl Default for Array {
    fn default() -> Self {
        Self {
            lost: HashSet::new(),
            abandoned: HashSet::new(),
            has_publish_capability: true,
            session: Instant::now(),
            is_session_first: true,
            handles: BTreeSet::new(),
            lists: 0,
            list: Vec::new(),
            previous: HashSet::new(),
        }
    }
}

// === impl State ===

impl State {
    pub(super) fn present_node_id(&self, attachment: &Attachment) -> Option<Arc<str>> {
        self.nodes.get(&*attachment.node)?.id.clone()
    }

    /// Whether an attachment waits, with a detachError, for another one that uses the volume on the node without our finalizer,
    /// and cannot get the finalizer again because the PersistentVolume is gone or deleting. An unpublish would detach the other one's volume.
    fn waits_for_other(&self, attachment: &Attachment) -> bool {
        let uses_it = |other: &&Attachment| {
            (&other.node, &other.source) == (&attachment.node, &attachment.source)
                && (other.attached, other.deleting, other.finalizer) == (true, false, false)
        };
        let is_gone = |other: &Attachment| {
            let name = other.volume_name();
            let volume = name.and_then(|name| self.volumes.get(&**name));
            volume.is_none_or(|volume| volume.deleting)
        };
        attachment.detach_error.is_some() && self.attachments.values().find(uses_it).is_some_and(is_gone)
    }

    /// Whether an attached volume cannot be republished, because its machine is gone and another one has the node's name. The
    /// attacher does not move it under its pod.
    fn is_stranded(&self, attachment: &Attachment) -> bool {
        let error = attachment.attach_error.as_ref();
        let present = self.present_node_id(attachment);
        attachment.attached
            && attachment.finalizer
            && present != attachment.recorded.node_id
            && error.is_some_and(|error| error.message.contains("the node registers"))
    }

    /// Whether an attach that must first unpublish an old node id waits, with an attachError, for another VolumeAttachment
    /// of the same volume and node under another node id.
    fn undo_waits_for_other_attachment(&self, attachment: &Attachment) -> bool {
        let may_use_it = |other: &Attachment| {
            other.uid != attachment.uid
                && (&other.node, &other.source) == (&attachment.node, &attachment.source)
                && other.attached
                && !other.deleting
                && other.recorded.node_id != attachment.recorded.node_id
        };
        let error = attachment.attach_error.as_ref();
        error.is_some_and(|error| error.message.contains("under another node id"))
            && self.attachments.values().any(may_use_it)
    }

    pub(super) fn publish(&mut self, target: &PublishTarget) {
        self.array.lost.remove(target);
        self.array.abandoned.remove(target);
        self.published.insert(target.clone());
    }

    pub(super) fn was_lost(&self, target: &PublishTarget) -> bool {
        self.array.lost.contains(target)
    }

    /// Accounts for a deleted attachment, which the attacher cannot have unpublished without the capability.
    pub(super) fn abandon_after_deletion(&mut self, attachment: &Attachment) {
        if !self.faults.fickle && !self.array.may_lack_publish_capability() {
            return;
        }
        self.abandon(attachment);
    }

    /// Accounts for a detached attachment that has finalizers of other controllers. If the driver did not have the capability, the
    /// attacher did not unpublish, even if the driver has the capability when the attachment is deleted.
    pub(super) fn abandon_after_release(&mut self, attachment: &Attachment) {
        if self.array.may_lack_publish_capability() && !self.is_left_to_another(attachment) {
            self.abandon(attachment);
        }
    }

    fn abandon(&mut self, attachment: &Attachment) {
        let target = recorded(attachment).map(|target| self.present(&target));
        if let Some(target) = target.filter(|target| self.published.contains(target)) {
            self.array.abandoned.insert(target);
        }
    }

    pub(super) fn act_outside_kubernetes(&mut self) {
        if self.faults.array && self.percent(50) {
            self.lose_publish();
        }
        if self.faults.fickle && self.percent(30) {
            self.set_publish_capability(!self.array.has_publish_capability);
        }
    }

    fn lose_publish(&mut self) -> bool {
        let mut attached: Vec<PublishTarget> = self
            .attachments
            .values()
            .filter(|attachment| attachment.attached)
            .filter_map(recorded)
            .map(|target| self.present(&target))
            .filter(|target| self.published.contains(target))
            .collect();
        attached.sort_by(|a, b| (&a.volume_id, &a.node_id).cmp(&(&b.volume_id, &b.node_id)));
        let Some(target) = self.random.choice(&attached).cloned() else {
            return false;
        };
        self.note(format_args!("the array loses {target:?}"));
        self.published.remove(&target);
        self.array.lost.insert(target)
    }

    fn set_publish_capability(&mut self, present: bool) {
        if self.array.has_publish_capability != present {
            self.note(format_args!("the driver has the publish capability: {present}"));
            self.array.has_publish_capability = present;
            self.array.session = Instant::now();
            self.array.is_session_first = false;
            self.log.push(Event::DriverConnected(self.array.capabilities()));
        }
    }

    /// Returns one page. A request for the first page creates the list.
    pub(super) fn page(&mut self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, CallError> {
        let failed = self.faults.list / 4;
        if self.percent(failed) {
            return Err(Status::new(Code::Internal, "no list today").into());
        }
        let number: usize = request.starting_token.parse().unwrap_or(0);
        if number == 0 {
            self.make_list();
        }
        let is_last = number + 1 >= self.array.list.len();
        let repeated = self.faults.list / 4;
        let next_token = if is_last {
            String::new()
        } else if number > 0 && self.percent(repeated) {
            number.to_string()
        } else {
            (number + 1).to_string()
        };
        Ok(ListVolumesResponse {
            entries: self.array.list.get(number).cloned().into_iter().collect(),
            next_token,
        })
    }

    fn make_list(&mut self) {
        self.array.lists += 1;
        let may_be_wrong = self.array.lists % 2 == 1;
        let faults = if may_be_wrong { self.faults.list } else { 0 };
        let now = self.published.clone();
        let previous = std::mem::replace(&mut self.array.previous, now.clone());
        let published = if self.percent(faults) { previous } else { now };
        let mut nodes: BTreeMap<Arc<str>, Vec<String>> = BTreeMap::new();
        for handle in &self.array.handles {
            nodes.entry(handle.clone()).or_default();
        }
        for target in published {
            nodes
                .entry(target.volume_id)
                .or_default()
                .push(target.node_id.to_string());
        }
        let mut list = Vec::new();
        for (handle, nodes) in nodes {
            if !self.percent(faults / 2) {
                let published = (!self.percent(faults / 2)).then_some(nodes);
                list.push(Entry {
                    volume: Some(v1::Volume {
                        volume_id: handle.to_string(),
                        ..v1::Volume::default()
                    }),
                    status: published.map(|published_node_ids| VolumeStatus { published_node_ids }),
                });
            }
        }
        self.array.list = list;
    }
}
