//! Safety invariants.
//!
//! - A volume for one node is published to one node.
//! - A volume is not unpublished from a node that has it mounted, unless the detach began while the node was unhealthy or
//!   out of service: then it was forced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use csi_mock_driver::driver::Driver;
use tonic::Code;

use crate::driver::{Mounts, VolumeCall};
use crate::timeline::Timeline;

/// The observer of one history. Clones share it.
#[derive(Clone)]
pub(crate) struct Invariants(Arc<Mutex<State>>);

struct State {
    timeline: Timeline,
    array: Arc<Driver>,
    /// Handles of the volumes for one node.
    single_node: BTreeSet<String>,
    /// Handle and node id, as of the last check.
    published: BTreeSet<(String, String)>,
    /// The machines that are switched on, by node id.
    machines: BTreeMap<String, Machine>,
    /// The nodes that are ready and in service, as the API server has them.
    healthy: BTreeSet<String>,
    /// Handle and node of the detaches that began while the node was not healthy.
    forced: BTreeSet<(String, String)>,
}

struct Machine {
    node: String,
    mounts: Mounts,
}

// === impl Invariants ===

impl Invariants {
    pub(crate) fn new(
        timeline: Timeline,
        array: Arc<Driver>,
        single_node: impl IntoIterator<Item = String>,
    ) -> Self {
        Self(Arc::new(Mutex::new(State {
            timeline,
            array,
            single_node: single_node.into_iter().collect(),
            published: BTreeSet::new(),
            machines: BTreeMap::new(),
            healthy: BTreeSet::new(),
            forced: BTreeSet::new(),
        })))
    }

    /// A machine is switched on: nothing is mounted.
    pub(crate) fn machine_on(&self, id: &str, node: &str) {
        let machine = Machine {
            node: node.to_owned(),
            mounts: Mounts::default(),
        };
        self.lock().machines.insert(id.to_owned(), machine);
    }

    pub(crate) fn machine_off(&self, id: &str) {
        self.lock().machines.remove(id);
    }

    /// The API server has another Node.
    pub(crate) fn node_changed(&self, node: &str, is_healthy: bool) {
        let healthy = &mut self.lock().healthy;
        if is_healthy {
            healthy.insert(node.to_owned());
        } else {
            healthy.remove(node);
        }
    }

    /// A VolumeAttachment is new (`deleting` is false), or its deletion began.
    pub(crate) fn attachment_changed(&self, volume: &str, node: &str, deleting: bool) {
        let mut state = self.lock();
        let key = (volume.to_owned(), node.to_owned());
        if !deleting {
            state.forced.remove(&key);
        } else if !state.healthy.contains(node) {
            state.forced.insert(key);
        }
    }

    /// A VolumeAttachment that is not being deleted says that the volume is attached.
    pub(crate) fn reported_as_attached(&self, volume: &str, node: &str) {
        let mut state = self.lock();
        state.check();
        // A machine's id is the name of its node and a generation.
        let on_node = |id: &str| id.rsplit_once('-').is_some_and(|(name, _)| name == node);
        if !state.published.iter().any(|(of, id)| of == volume && on_node(id)) {
            let text = format!("the VolumeAttachment for {node} says attached, and the array does not");
            state.timeline.violated(Some(volume), text);
        }
    }

    /// A driver process answered.
    pub(crate) fn called(&self, process: &str, call: &VolumeCall, code: Code) {
        let mut state = self.lock();
        if let (Some(machine), Code::Ok) = (state.machines.get_mut(process), code) {
            machine.mounts.apply(call);
        }
        state.check();
    }

    pub(crate) fn check(&self) {
        self.lock().check();
    }

    /// Handle and node id of all attachments of the array.
    pub(crate) fn published(&self) -> BTreeSet<(String, String)> {
        let mut state = self.lock();
        state.check();
        state.published.clone()
    }

    /// The machines that have something mounted.
    pub(crate) fn mounted(&self) -> Vec<(String, Mounts)> {
        let state = self.lock();
        let mounted = state
            .machines
            .iter()
            .filter(|(_, machine)| !machine.mounts.is_empty());
        mounted
            .map(|(id, machine)| (id.clone(), machine.mounts.clone()))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn check(&mut self) {
        let published = self.array.store.peek(|array| {
            let pairs = array.volumes().flat_map(|volume| {
                let nodes = volume.attachments.keys();
                nodes.map(|node| (volume.spec.id.to_string(), node.to_string()))
            });
            pairs.collect::<BTreeSet<_>>()
        });
        if published == self.published {
            return;
        }
        for (volume, id) in self.published.difference(&published) {
            let Some(machine) = self.machines.get(id).filter(|machine| machine.mounts.has(volume)) else {
                continue;
            };
            if !self.forced.contains(&(volume.clone(), machine.node.clone())) {
                let text = format!("unpublished from {id}, which has it mounted");
                self.timeline.violated(Some(volume), text);
            }
        }
        for volume in &self.single_node {
            let nodes: Vec<_> = published.iter().filter(|(of, _)| of == volume).collect();
            if nodes.len() > 1 {
                self.timeline
                    .violated(Some(volume), format!("published to {nodes:?}"));
            }
        }
        self.published = published;
    }
}
