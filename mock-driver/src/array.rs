//! The array: a pure state machine of volumes, snapshots, nodes and attachments.
//!
//! It has no gRPC, files or clocks. Each operation reads the state and returns an [`Error`], or decides on new [`Row`]s and
//! applies them before it returns. The same rows give the same array, which is how it is restored after a restart.
//!
//! Invariants:
//! - a name belongs to at most one volume, at most one snapshot and at most one group;
//! - every attachment is in both its volume and its node's set;
//! - two nodes have one volume attached only if their modes allow it (`PublishParams::tolerates`);
//! - no attach exceeds a node's limit (a lowered limit may be below the number of attached volumes);
//! - a group exists with all of its snapshots or not at all;
//! - a pool never allocates more than its capacity (a lowered capacity may be below the allocated bytes);
//! - ids and attachment numbers are never reused.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use siphasher::sip::SipHasher24;

pub use self::capability::{Access, AccessMode, Capability, PublishParams};
pub(crate) use self::create::CreateOutcome;
pub use self::error::Error;
pub use self::group::CreateGroupParams;
pub(crate) use self::group::{Group, GroupIds, Members};
pub use self::health::{HealthIssue, Severity, StorageHealthIssue, StorageSeverity};
pub(crate) use self::id::{GroupId, SnapshotId, VolumeId};
pub use self::id::{NodeId, PoolName};
pub use self::image::Image;
pub(crate) use self::listing::{Entry, Page};
pub use self::node::{Node, NodeSettings};
pub use self::pool::Pool;
pub(crate) use self::pool::PoolUsage;
use self::promise::Promises;
pub(crate) use self::publish::serial;
pub(crate) use self::qos::{QosRule, Values};
pub(crate) use self::row::json;
pub use self::row::{Counters, Done, Row};
pub(crate) use self::snapshot::Snapshot;
pub use self::snapshot::{CreateSnapshotParams, SnapshotFilter, Timing};
pub(crate) use self::topology::Requirement;
pub use self::topology::Segments;
pub(crate) use self::volume::{Attachment, Spec, Volume};
pub use self::volume::{CreateVolumeParams, SizeRange, SizeRule, Source};

pub(crate) mod quantity;

mod apply;
mod capability;
mod create;
mod error;
mod group;
mod health;
mod id;
mod image;
mod listing;
mod node;
mod pool;
mod promise;
mod publish;
mod qos;
mod row;
mod snapshot;
mod topology;
mod volume;

/// Settings of an array. Not part of its state: the next start may have others.
#[derive(Clone, Debug)]
pub struct Settings {
    pub nodes: Vec<NodeId>,
    /// Topology segments by node. The other nodes are assigned to pools round-robin.
    pub node_topology: BTreeMap<NodeId, Segments>,
    /// Maximum number of attached volumes per node; `None` if unlimited.
    pub attach_limit: Option<usize>,
    /// `max_volumes_per_node` of NodeGetInfo; `None` for the attach limit.
    pub advertised_limit: Option<usize>,
    pub pools: Vec<Pool>,
    /// The class parameter that selects a pool.
    pub pool_parameter: &'static str,
    pub sizes: SizeRule,
    pub qos: QosRule,
    /// Whether copies depend on their source.
    pub copy_mode: CopyMode,
    pub deviations: SpecDeviations,
    /// Maximum number of entries per page; `None` for no limit.
    pub page_limit: Option<usize>,
}

/// Whether copies depend on their source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    #[default]
    Independent,
    /// Copies share blocks with their source, which cannot be deleted before them.
    Linked,
}

/// Deviations from the CSI specification that some arrays have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecDeviations {
    /// Attached volumes can be deleted.
    pub delete_in_use: bool,
    /// Detaching a volume or node that does not exist fails.
    pub unpublish_not_found: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Array {
    settings: Settings,
    counters: Counters,
    volumes: BTreeMap<VolumeId, Volume>,
    names: BTreeMap<String, VolumeId>,
    snapshots: BTreeMap<SnapshotId, Arc<Snapshot>>,
    snapshot_names: BTreeMap<String, SnapshotId>,
    /// The snapshots of each volume, also of deleted volumes.
    taken_of: BTreeMap<VolumeId, BTreeSet<SnapshotId>>,
    groups: BTreeMap<GroupId, Arc<Group>>,
    group_names: BTreeMap<String, GroupId>,
    /// The volumes created from each snapshot or volume, also from deleted ones.
    made_from: BTreeMap<Source, BTreeSet<VolumeId>>,
    nodes: BTreeMap<NodeId, Node>,
    /// Settings of single nodes that were changed at run time.
    changed: BTreeMap<NodeId, NodeSettings>,
    /// Allocated bytes of each pool.
    used: BTreeMap<PoolName, u64>,
    /// Capacities changed at run time, which override the settings.
    resized: BTreeMap<PoolName, u64>,
    /// Health issues of the storage behind a node; `None` for all nodes.
    storage: BTreeMap<Option<NodeId>, Vec<StorageHealthIssue>>,
    promises: Promises,
}

/// The objects that have a name beside their id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Volume,
    Snapshot,
    Group,
}

// === impl Settings ===

impl Settings {
    /// The ids `node-0` up to `count`.
    pub fn numbered_nodes(count: usize) -> Vec<NodeId> {
        (0..count)
            .map(|number| NodeId::from(format!("node-{number}")))
            .collect()
    }
}

impl Default for Settings {
    /// No nodes, no limits, and one pool that all nodes can access.
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            node_topology: BTreeMap::new(),
            attach_limit: None,
            advertised_limit: None,
            pools: vec![Pool {
                name: PoolName::from("pool-0"),
                segments: Segments::default(),
                capacity: Pool::DEFAULT_CAPACITY,
            }],
            pool_parameter: Pool::PARAMETER,
            sizes: SizeRule::default(),
            qos: QosRule::default(),
            copy_mode: CopyMode::default(),
            deviations: SpecDeviations::default(),
            page_limit: None,
        }
    }
}

// === impl Array ===

impl Array {
    /// An empty array. `id_seed` must differ from that of every other array.
    pub fn new(settings: Settings, id_seed: u128) -> Self {
        let registered = settings.nodes.clone();
        let mut array = Self {
            settings,
            ..Self::default()
        };
        array.counters.id_seed = id_seed;
        for id in registered {
            // That of its first entry for a node that is listed twice, such as the one of `--node-id=node-0`.
            let node = Node {
                registered: true,
                number: array.number(&id),
                ..Node::unregistered(id.clone())
            };
            array.nodes.insert(id, array.derived(node));
        }
        array
    }

    /// Creates initial volumes `vol-0` up to `count`, distributed over the pools round-robin.
    ///
    /// Only numbers that were never created before: a deleted initial volume stays deleted, and one of a fixture stays as it is.
    pub fn add_initial_volumes(&mut self, count: u64) {
        let pools: Vec<PoolName> = self.settings.pools.iter().map(|pool| pool.name.clone()).collect();
        let mut pools_in_turn = pools.iter().cycle();
        for number in 0..count {
            let pool = pools_in_turn.next().cloned().unwrap_or_default();
            let id = VolumeId::from(format!("vol-{number}"));
            if number < self.counters.initial_volumes || self.volumes.contains_key(&id) {
                continue;
            }
            let spec = Spec {
                id: id.clone(),
                name: String::new(),
                capacity_bytes: self.settings.sizes.default,
                capabilities: Vec::new(),
                parameters: BTreeMap::new(),
                mutable_parameters: BTreeMap::new(),
                source: None,
                pool,
            };
            self.apply(Row::Volume(id, Some(Volume::from(Arc::new(spec)))));
        }
        self.counters.initial_volumes = self.counters.initial_volumes.max(count);
    }

    /// # Errors
    /// It does not exist.
    pub fn volume(&self, id: &str) -> Result<&Volume, Error> {
        self.volumes.get(id).ok_or_else(|| Error::VolumeNotFound {
            volume: id.to_owned(),
        })
    }

    pub(crate) fn volume_named(&self, name: &str) -> Option<&Volume> {
        self.names.get(name).and_then(|id| self.volumes.get(id))
    }

    /// The id of an object by its id or its name; the text itself for neither.
    pub(crate) fn id_of(&self, kind: Named, text: &str) -> String {
        let (is_id, named) = match kind {
            Named::Volume => (
                self.volumes.contains_key(text),
                self.names.get(text).map(VolumeId::as_str),
            ),
            Named::Snapshot => {
                let named = self.snapshot_names.get(text).map(SnapshotId::as_str);
                (self.snapshots.contains_key(text), named)
            }
            Named::Group => (
                self.groups.contains_key(text),
                self.group_names.get(text).map(GroupId::as_str),
            ),
        };
        named.filter(|_| !is_id).unwrap_or(text).to_owned()
    }

    /// All volumes, sorted by id.
    pub fn volumes(&self) -> impl ExactSizeIterator<Item = &Volume> {
        self.volumes.values()
    }

    /// The volumes attached to a node, sorted by id; empty for an unknown node.
    pub fn attached_to(&self, node: &str) -> impl Iterator<Item = &VolumeId> {
        self.nodes.get(node).into_iter().flat_map(|node| &node.attached)
    }

    pub(crate) fn id_seed(&self) -> u128 {
        self.counters.id_seed
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A unique id, derived from the id_seed, the number of earlier objects and the name.
    fn fresh(
        &self,
        kind: &'static str,
        prefix: &str,
        before: u64,
        name: &str,
        taken: impl Fn(&str) -> bool,
    ) -> String {
        let before = self.promises.get(kind, name).unwrap_or(before);
        let mut salt = 0_u32;
        loop {
            let hash = self.keyed_hash(&format!("{kind}/{before}/{salt}/{name}"));
            let id = format!("{prefix}-{hash:016x}");
            if !taken(&id) {
                return id;
            }
            salt += 1;
        }
    }

    fn keyed_hash(&self, text: &str) -> u64 {
        SipHasher24::new_with_key(&self.counters.id_seed.to_le_bytes()).hash(text.as_bytes())
    }
}

/// The name of the first field that is not the same.
fn first_difference(fields: &[(&'static str, bool)]) -> Option<&'static str> {
    fields
        .iter()
        .find(|(_, is_same)| !is_same)
        .map(|(field, _)| *field)
}

#[cfg(test)]
mod tests;
