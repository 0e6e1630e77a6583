//! What happens behind everybody's back: the array loses what was published, the driver lists what is not
//! so, and comes back without publish calls.

use std::collections::{BTreeMap, HashSet};
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

/// The array and what its driver can do.
pub(super) struct Array {
    /// Published once, and lost since.
    lost: HashSet<PublishTarget>,
    /// Published for attachments that were deleted when the driver had no calls, or had just got them back.
    pub(super) abandoned: HashSet<PublishTarget>,
    has_calls: bool,
    /// Since when, unless it always had them.
    switched: Option<Instant>,
    lists: usize,
    /// The list that is being read, one volume a page.
    list: Vec<Entry>,
    /// What was published when the list before was made.
    before: HashSet<PublishTarget>,
}

/// A job that began before the driver changed is over by then.
const A_JOB: Duration = Duration::from_secs(2);

/// Whether the attachment is attached with the handle of an earlier PersistentVolume of the name. The attacher cannot
/// republish it: attributes and Secret of the earlier PersistentVolume are not stored.
fn is_replaced(attachment: &Attachment, volume: &Volume) -> bool {
    let present = volume.spec.csi().map(|csi| &csi.handle);
    let recorded = attachment.recorded.handle.as_ref();
    attachment.attached && recorded.is_some_and(|recorded| present != Some(recorded))
}

// === impl World ===

impl World {
    /// The array loses up to so many volumes that are attached. Says how many.
    pub(in super::super) fn lose(&self, volumes: usize) -> usize {
        let mut state = self.state();
        (0..volumes).filter(|_| state.lose_one()).count()
    }

    /// The driver comes back with publish calls, or without.
    pub(in super::super) fn switch(&self, has_calls: bool) {
        self.state().switch(has_calls);
    }

    /// Waits for so many more lists to be read to their end.
    pub(in super::super) async fn lists(&self, lists: usize) {
        let wanted = self.state().array.lists + lists + 1;
        self.until(|state| state.array.lists >= wanted).await;
    }

    /// From here on everybody tells the truth and does what he is asked for.
    pub(in super::super) fn no_more_faults(&self) {
        let mut state = self.state();
        state.faults = super::Faults::NONE;
        state.switch(true);
    }

    /// Waits until every attachment that can be attached is, and is published and guarded as it says, and no
    /// VolumeAttachment without our finalizer has attached=true, except one whose error names the one it waits for.
    pub(in super::super) async fn in_order(&self) {
        self.until(|state| {
            state.attachments.values().all(|attachment| {
                let can_be_attached = attachment
                    .volume_name()
                    .and_then(|name| state.volumes.get(&**name))
                    .is_some_and(|volume| !volume.deleting && !is_replaced(attachment, volume));
                let is_published = recorded(attachment).is_some_and(|target| {
                    let target = state.present(&target);
                    // Another one may have brought it to the machine under its present id, where it is listed.
                    let today = PublishTarget {
                        node_id: state
                            .id_today(attachment)
                            .unwrap_or_else(|| target.node_id.clone()),
                        ..target.clone()
                    };
                    state.published.contains(&target) || state.published.contains(&today)
                });
                let is_let_go = attachment.deleting && !attachment.finalizer;
                if is_let_go && attachment.says_attached() {
                    return state.waits_for_other(attachment);
                }
                attachment.deleting
                    || !can_be_attached
                    || state.undo_waits_for_other_attachment(attachment)
                    || attachment.attached && attachment.finalizer && is_published
            })
        })
        .await;
    }

    /// Waits until no attachment and no volume has our finalizer.
    pub(in super::super) async fn no_finalizers(&self) {
        self.until(|state| {
            state.attachments.values().all(|attachment| !attachment.finalizer)
                && state.volumes.values().all(|volume| !volume.finalizer)
        })
        .await;
    }
}

// === impl Array ===

impl Array {
    pub(super) fn capabilities(&self) -> Capabilities {
        Capabilities {
            publish: self.has_calls,
            list_published: true,
            ..Capabilities::default()
        }
    }

    pub(super) fn has_calls(&self) -> bool {
        self.has_calls
    }

    pub(super) fn all_targets(&mut self) -> [&mut HashSet<PublishTarget>; 3] {
        [&mut self.lost, &mut self.abandoned, &mut self.before]
    }

    /// Whether a job under way may have been decided for a driver without calls.
    pub(super) fn may_be_served_without_calls(&self) -> bool {
        !self.has_calls || self.switched.is_some_and(|at| at.elapsed() < A_JOB)
    }
}

impl Default for Array {
    fn default() -> Self {
        Self {
            lost: HashSet::new(),
            abandoned: HashSet::new(),
            has_calls: true,
            switched: None,
            lists: 0,
            list: Vec::new(),
            before: HashSet::new(),
        }
    }
}

// === impl State ===

impl State {
    pub(super) fn id_today(&self, attachment: &Attachment) -> Option<Arc<str>> {
        self.nodes.get(&*attachment.node)?.id.clone()
    }

    /// Whether an attachment waits, and says so, for another one that uses the volume on the node without our finalizer, and
    /// cannot get it back because the PersistentVolume is gone. To unpublish would take the volume away from the other.
    fn waits_for_other(&self, attachment: &Attachment) -> bool {
        let uses_it = |other: &&Attachment| {
            (&other.node, &other.source) == (&attachment.node, &attachment.source)
                && (other.attached, other.deleting, other.finalizer) == (true, false, false)
        };
        let is_gone = |other: &Attachment| {
            let name = other.volume_name();
            name.is_none_or(|name| !self.volumes.contains_key(&**name))
        };
        attachment.detach_error.is_some() && self.attachments.values().find(uses_it).is_some_and(is_gone)
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

    /// An attachment is gone for good. Without a finalizer, nobody was asked.
    pub(super) fn abandoned_by(&mut self, attachment: &Attachment) {
        if !self.faults.fickle && !self.array.may_be_served_without_calls() {
            return;
        }
        self.abandon(attachment);
    }

    /// An attachment is detached, and other finalizers keep it. If the driver had no calls, nothing was unpublished, whatever
    /// calls it has when the attachment is gone.
    pub(super) fn let_go_of(&mut self, attachment: &Attachment) {
        if self.array.may_be_served_without_calls() && !self.is_left_to_another(attachment) {
            self.abandon(attachment);
        }
    }

    fn abandon(&mut self, attachment: &Attachment) {
        let target = recorded(attachment).map(|target| self.present(&target));
        if let Some(target) = target.filter(|target| self.published.contains(target)) {
            self.array.abandoned.insert(target);
        }
    }

    pub(super) fn act_behind_everybodys_back(&mut self) {
        if self.faults.array && self.percent(50) {
            self.lose_one();
        }
        if self.faults.fickle && self.percent(30) {
            self.switch(!self.array.has_calls);
        }
    }

    fn lose_one(&mut self) -> bool {
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

    fn switch(&mut self, has_calls: bool) {
        if self.array.has_calls != has_calls {
            self.note(format_args!("the driver has calls: {has_calls}"));
            self.array.has_calls = has_calls;
            self.array.switched = Some(Instant::now());
            self.log.push(Event::DriverConnected(self.array.capabilities()));
        }
    }

    /// One page, of a list that is made when its first page is asked for.
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
        let may_lie = self.array.lists % 2 == 1;
        let faults = if may_lie { self.faults.list } else { 0 };
        let now = self.published.clone();
        let before = std::mem::replace(&mut self.array.before, now.clone());
        let published = if self.percent(faults) { before } else { now };
        let mut nodes: BTreeMap<Arc<str>, Vec<String>> = BTreeMap::new();
        for volume in self.volumes.values() {
            if let Ok(csi) = &volume.spec.csi {
                nodes.entry(csi.handle.clone()).or_default();
            }
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
