//! Safety invariants.
//!
//! - A single-node volume is published to at most one node.
//! - A volume is not unpublished from a node that has it mounted, unless the detach began while the node was unhealthy or
//!   out of service: then it was forced. A node that fails after the begin of the detach excuses nothing.
//! - A volume is not deleted while it is published.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use csi_mock_driver::driver::Driver;
use tokio::time::Instant;
use tonic::Code;

use crate::driver::{Mounts, VolumeCall};
use crate::timeline::Timeline;

/// The observer of one history. Clones share it.
#[derive(Clone)]
pub(crate) struct Invariants(Arc<Mutex<State>>);

struct State {
    timeline: Timeline,
    array: Arc<Driver>,
    /// The multi-node volumes.
    shared: BTreeSet<String>,
    /// Names of the provisioned volumes by handle, including deleted ones.
    names: BTreeMap<String, String>,
    /// The provisioned volumes, as of the last check.
    provisioned: BTreeSet<String>,
    /// Volume and node id, as of the last check.
    published: BTreeSet<(String, String)>,
    /// The running machines, by node id.
    machines: BTreeMap<String, Machine>,
    /// Since when the nodes are ready and in service in the API server, as far as the watch shows it.
    healthy: BTreeMap<String, Instant>,
    /// The begin of the latest detach of a volume from a node.
    deleting: BTreeMap<(String, String), Instant>,
    /// Volume and node of the detaches that began while the node was unhealthy.
    forced: BTreeSet<(String, String)>,
}

/// Longer than the watches of the controllers and of the observer lag behind: how far the begin of a detach and a change of the
/// node's health may seem apart.
const LAG: Duration = Duration::from_secs(30);

struct Machine {
    node: String,
    mounts: Mounts,
}

// === impl Invariants ===

impl Invariants {
    pub(crate) fn new(
        timeline: Timeline,
        array: Arc<Driver>,
        shared: impl IntoIterator<Item = String>,
    ) -> Self {
        Self(Arc::new(Mutex::new(State {
            timeline,
            array,
            shared: shared.into_iter().collect(),
            names: BTreeMap::new(),
            provisioned: BTreeSet::new(),
            published: BTreeSet::new(),
            machines: BTreeMap::new(),
            healthy: BTreeMap::new(),
            deleting: BTreeMap::new(),
            forced: BTreeSet::new(),
        })))
    }

    /// A machine starts: nothing is mounted.
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

    /// A Node changed in the API server.
    pub(crate) fn node_changed(&self, node: &str, is_healthy: bool) {
        let healthy = &mut self.lock().healthy;
        if is_healthy {
            healthy.entry(node.to_owned()).or_insert_with(Instant::now);
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
            state.deleting.remove(&key);
            return;
        }
        let began = *state.deleting.entry(key.clone()).or_insert_with(Instant::now);
        let is_healthy = state.healthy.get(node).is_some_and(|since| since.elapsed() > LAG);
        if !is_healthy && began.elapsed() <= LAG {
            state.forced.insert(key);
        }
    }

    /// A VolumeAttachment that is not being deleted has attached=true.
    pub(crate) fn reported_as_attached(&self, volume: &str, node: &str) {
        let mut state = self.lock();
        state.check();
        // A machine's id consists of its node's name and a generation.
        let on_node = |id: &str| id.rsplit_once('-').is_some_and(|(name, _)| name == node);
        if !state.published.iter().any(|(of, id)| of == volume && on_node(id)) {
            let text = format!("the VolumeAttachment for {node} says attached, and the array does not");
            state.timeline.violated(Some(volume), text);
        }
    }

    /// A driver process responded.
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

    /// The timeline's name of the volume with this handle: for a provisioned one, the name of its PersistentVolume.
    pub(crate) fn name_of(&self, handle: &str) -> String {
        let mut state = self.lock();
        state.check();
        state.names.get(handle).map_or(handle, String::as_str).to_owned()
    }

    /// The provisioned volumes of the array.
    pub(crate) fn provisioned(&self) -> BTreeSet<String> {
        let mut state = self.lock();
        state.check();
        state.provisioned.clone()
    }

    /// Volume and node id of all attachments of the array.
    pub(crate) fn published(&self) -> BTreeSet<(String, String)> {
        let mut state = self.lock();
        state.check();
        state.published.clone()
    }

    /// The machines with mounts.
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
        let mut provisioned = BTreeSet::new();
        let mut published = BTreeSet::new();
        self.array.store.peek(|array| {
            for volume in array.volumes() {
                let (id, mut name) = (volume.spec.id.to_string(), volume.spec.name.clone());
                // An initial volume has no name.
                if name.is_empty() {
                    name = id;
                } else {
                    self.names.insert(id, name.clone());
                    provisioned.insert(name.clone());
                }
                let nodes = volume.attachments.keys();
                published.extend(nodes.map(|node| (name.clone(), node.to_string())));
            }
        });
        for volume in self.provisioned.difference(&provisioned) {
            if let Some((_, id)) = self.published.iter().find(|(of, _)| of == volume) {
                let text = format!("deleted while it is published to {id}");
                self.timeline.violated(Some(volume), text);
            }
        }
        self.provisioned = provisioned;
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
        let pairs = published.iter().zip(published.iter().skip(1));
        for ((volume, one), (next, other)) in pairs {
            if volume == next && !self.shared.contains(volume) {
                let text = format!("published to {one} and {other}");
                self.timeline.violated(Some(volume), text);
            }
        }
        self.published = published;
    }
}
