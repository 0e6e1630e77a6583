//! The array, which loses publishes, and whose driver lists wrong states and loses its publish capability.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use attacher_contract::Observation;
use csi_attacher::controller::state::Event;
use csi_attacher::csi::CallError;
use csi_attacher::model::{Attachment, Capabilities, PublishTarget};
use csi_proto::v1::list_volumes_response::{Entry, VolumeStatus};
use csi_proto::v1::{self, ListVolumesRequest, ListVolumesResponse};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{Bug, Lie, State, World, recorded};

pub(super) struct Array {
    has_publish_capability: bool,
    /// When the present session was opened: the driver reconnects to change its capability.
    session: watch::Sender<Instant>,
    /// From when on no write is executed that was sent without the publish capability.
    pub(super) publishes_from: Option<Instant>,
    /// Handles of all volumes, which the array keeps.
    pub(super) handles: BTreeSet<Arc<str>>,
    lists: usize,
    /// The entries of the current list; each page has one.
    pub(super) list: Vec<Entry>,
    /// The publishes at the time of the previous list.
    previous: HashSet<PublishTarget>,
}

/// Longer than the API server takes to execute a write that was sent before the driver changed.
const WRITE_TIME: Duration = Duration::from_millis(250);

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

    /// Ends the faults that prevent progress: all, or all except one node's fabric, wrong lists, repeated watch events, and
    /// a wall clock that jumps.
    pub(in super::super) fn heal(&self, all: bool) {
        let mut state = self.state();
        let rest = super::Faults {
            list: state.faults.list,
            lies: state.faults.lies & (Lie::RepeatedEvents.bit() | Lie::ClockJumps.bit()),
            ..super::Faults::NONE
        };
        state.faults = if all { super::Faults::NONE } else { rest };
        let broken = state.random.usize(0..super::NODES);
        state.broken_node = (!all).then(|| format!("node-{broken}").as_str().into());
        state.secret_forbidden_until = None;
        for node in 0..super::NODES {
            state.restore_registration(node);
        }
        state.late.clear();
        state.choices = None;
        state.late_writes.clear();
        state.set_publish_capability(true);
        state.observe(Observation::Healed);
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

    pub(super) fn session(&self) -> watch::Receiver<Instant> {
        self.session.subscribe()
    }

    pub(super) fn previous(&mut self) -> &mut HashSet<PublishTarget> {
        &mut self.previous
    }
}

impl Default for Array {
    fn default() -> Self {
        Self {
            has_publish_capability: true,
            session: watch::Sender::new(Instant::now()),
            publishes_from: None,
            handles: BTreeSet::new(),
            lists: 0,
            list: Vec::new(),
            previous: HashSet::new(),
        }
    }
}

// === impl State ===

impl State {
    pub(super) fn act_outside_kubernetes(&mut self) {
        if self.faults.array && self.percent(50) {
            self.lose_publish();
        }
        if self.faults.fickle && self.percent(30) {
            self.set_publish_capability(!self.array.has_publish_capability);
        }
    }

    /// What an attacher does that takes the loss of publish calls for a conversion of the driver.
    fn strip_finalizers(&mut self) {
        let all: Vec<_> = self.attachments.values().cloned().collect();
        for attachment in all {
            self.put_attachment(Attachment {
                finalizer: false,
                ..attachment
            });
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
        self.observe_array();
        true
    }

    pub(super) fn set_publish_capability(&mut self, present: bool) {
        if self.array.has_publish_capability != present {
            self.array.has_publish_capability = present;
            self.array.session.send_replace(Instant::now());
            self.array.publishes_from = present.then(|| Instant::now() + WRITE_TIME);
            if !present {
                self.observe(Observation::PublishCapability(false));
            }
            self.emit(Event::DriverConnected(self.array.capabilities()));
            if !present && self.bug == Some(Bug::CapabilityIsProof) {
                self.strip_finalizers();
            }
        }
    }

    /// Returns one page. A request for the first page creates the list.
    pub(super) fn page(&mut self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, CallError> {
        let failed = self.faults.list / 4;
        if self.choices.is_some() || self.percent(failed) {
            return Err(Status::new(Code::Internal, "no list today").into());
        }
        let number: usize = request.starting_token.parse().unwrap_or(0);
        if number == 0 {
            self.make_list();
            self.observe(Observation::ListBegan(self.array.lists as u64));
        }
        let is_last = number + 1 >= self.array.list.len();
        if is_last {
            self.observe_list(self.array.lists as u64);
        }
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
