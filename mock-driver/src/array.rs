//! The array: a pure state machine of volumes, snapshots, nodes and attachments.
//!
//! It knows neither gRPC nor files nor clocks. Each operation looks at the state, refuses with an
//! [`Error`] or says what changes as a [`Change`], and has that change applied before it returns;
//! so applying the same changes to the same beginning gives the same array, which is how it comes
//! back after a restart.
//!
//! Invariants:
//! - a name belongs to at most one volume, at most one snapshot and at most one group;
//! - every attachment stands both in its volume and in its node's set;
//! - two nodes hold one volume only if their modes tolerate each other (`PublishParams::tolerates`);
//! - a node never gains a volume beyond its limit (it may stand above a limit that was lowered);
//! - a group is there with all of its snapshots or not at all;
//! - a pool never promises more than it has (it may stand above a capacity that was lowered);
//! - ids and attachment numbers are never used twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use siphasher::sip::SipHasher24;

pub use self::capability::{Access, AccessMode, Capability, PublishParams};
pub use self::change::{Change, Image};
pub(crate) use self::create::CreateOutcome;
pub use self::error::{Error, Kind};
pub use self::group::{CreateGroupParams, Group, GroupIds, Members};
pub use self::health::{HealthIssue, Severity, StorageHealthIssue, StorageSeverity, UnhealthyVolume};
pub use self::id::{GroupId, NodeId, PoolName, SnapshotId, VolumeId};
pub use self::listing::{Entry, Page};
pub use self::moment::UnixTime;
pub use self::node::{Node, NodeSettings};
pub use self::pool::{CapacityInfo, Pool, PoolUsage};
pub use self::publish::{PublishInfo, serial};
pub use self::qos::{InvalidQosRule, QosRule, Values};
pub(crate) use self::row::{Counters, RowId};
pub use self::snapshot::{CreateSnapshotParams, Snapshot, SnapshotFilter, Timing};
pub use self::topology::{Requirement, Segments};
pub use self::volume::{Attachment, CreateVolumeParams, SizeRange, SizeRule, Source, Spec, Volume};

pub(crate) mod quantity;

mod apply;
mod capability;
mod change;
mod create;
mod error;
mod group;
mod health;
mod id;
mod listing;
mod moment;
mod node;
mod pool;
mod publish;
mod qos;
mod row;
mod snapshot;
mod topology;
mod volume;

/// How an array is built. Not part of its state: another start may bring other settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The registered nodes.
    pub nodes: Vec<NodeId>,
    /// Where nodes are. Those not named stand beside the pools in turn, one by one.
    pub places: BTreeMap<NodeId, Segments>,
    /// Maximum number of attached volumes per node; `None` if unlimited.
    pub attach_limit: Option<usize>,
    /// How many volumes a node says it takes; none for the truth.
    pub advertised_limit: Option<usize>,
    /// Its space, in parts.
    pub pools: Vec<Pool>,
    /// The class parameter that names one.
    pub pool_parameter: &'static str,
    /// The sizes it can make.
    pub sizes: SizeRule,
    /// The mutable parameters it takes.
    pub qos: QosRule,
    /// What becomes of copies when what they were made of is deleted.
    pub copy_mode: CopyMode,
    /// Where it is laxer or stricter than CSI asks.
    pub deviations: SpecDeviations,
    /// The most entries in one page of a listing, whatever the caller asks; none for no bound.
    pub page_limit: Option<usize>,
}

/// What becomes of copies when what they were made of is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Copies stand alone.
    #[default]
    Independent,
    /// Copies share blocks with what they were made of, which so cannot be deleted before them.
    Linked,
}

/// Where an array differs from what CSI asks, as some do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecDeviations {
    /// A volume is deleted although nodes have it.
    pub delete_in_use: bool,
    /// Detaching a volume that is gone, or from a node that is gone, fails.
    pub unpublish_not_found: bool,
}

/// The volumes, snapshots and nodes of one storage array.
#[derive(Debug)]
pub struct Array {
    settings: Settings,
    /// Told apart from every other array by this number; keys its ids and its page tokens.
    epoch: u128,
    volumes: BTreeMap<VolumeId, Volume>,
    names: BTreeMap<String, VolumeId>,
    snapshots: BTreeMap<SnapshotId, Arc<Snapshot>>,
    snapshot_names: BTreeMap<String, SnapshotId>,
    /// The snapshots of each volume, also of volumes that are gone.
    taken_of: BTreeMap<VolumeId, BTreeSet<SnapshotId>>,
    groups: BTreeMap<GroupId, Arc<Group>>,
    group_names: BTreeMap<String, GroupId>,
    /// The volumes made from each snapshot or volume, also from such as are gone.
    made_from: MadeFrom,
    nodes: BTreeMap<NodeId, node::Entry>,
    /// What was changed for single nodes at run time.
    changed: BTreeMap<NodeId, NodeSettings>,
    /// The bytes promised in each pool.
    used: BTreeMap<PoolName, u64>,
    /// What pools were given at run time, whatever the settings say.
    resized: BTreeMap<PoolName, u64>,
    sick: BTreeMap<VolumeId, Vec<HealthIssue>>,
    /// Health issues of the storage behind a node; none for all nodes.
    storage: BTreeMap<Option<NodeId>, Vec<StorageHealthIssue>>,
    /// How many volumes were made on request, deleted ones included.
    created: u64,
    /// How many snapshots and groups were made, deleted ones included.
    made: u64,
    /// How many attachments there have been.
    attached: u64,
    /// How many volumes were put in at the start, deleted ones included.
    premade: u64,
}

/// What an operation answers, and what it changed, if anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The answer.
    pub reply: T,
    /// What changed; none for a repeat of what was done before.
    pub change: Option<Change>,
}

type MadeFrom = BTreeMap<Source, BTreeSet<VolumeId>>;

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
    /// No nodes, no limits, and one pool that is everywhere.
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            places: BTreeMap::new(),
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
    /// An empty array. `epoch` must differ from that of every other array.
    pub fn new(settings: Settings, epoch: u128) -> Self {
        let registered = |(number, id): (usize, &NodeId)| {
            let entry = node::Entry {
                registered: true,
                number,
                attached: BTreeSet::new(),
            };
            (id.clone(), entry)
        };
        Self {
            nodes: settings.nodes.iter().enumerate().map(registered).collect(),
            settings,
            epoch,
            volumes: BTreeMap::new(),
            names: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            snapshot_names: BTreeMap::new(),
            taken_of: BTreeMap::new(),
            groups: BTreeMap::new(),
            group_names: BTreeMap::new(),
            made_from: BTreeMap::new(),
            changed: BTreeMap::new(),
            used: BTreeMap::new(),
            resized: BTreeMap::new(),
            sick: BTreeMap::new(),
            storage: BTreeMap::new(),
            created: 0,
            made: 0,
            attached: 0,
            premade: 0,
        }
    }

    /// Puts volumes `vol-0` up to `count` in, as if they had always been there, into the pools in turn.
    ///
    /// Only the numbers that were never put in before: what was deleted stays deleted.
    pub fn premake(&mut self, count: u64) {
        let pools: Vec<PoolName> = self.settings.pools.iter().map(|pool| pool.name.clone()).collect();
        let mut turn = pools.iter().cycle();
        for number in 0..count {
            let pool = turn.next().cloned().unwrap_or_default();
            if number < self.premade {
                continue;
            }
            let spec = Spec {
                id: VolumeId::from(format!("vol-{number}")),
                name: String::new(),
                capacity_bytes: self.settings.sizes.default,
                capabilities: Vec::new(),
                parameters: BTreeMap::new(),
                mutable_parameters: BTreeMap::new(),
                source: None,
                pool,
            };
            self.insert(Volume::from(Arc::new(spec)));
        }
        self.premade = self.premade.max(count);
    }

    /// Looks a volume up.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn volume(&self, id: &str) -> Result<&Volume, Error> {
        self.volumes.get(id).ok_or_else(|| Error::VolumeNotFound {
            volume: id.to_owned(),
        })
    }

    /// The volume that was made under a name; none if there is none.
    pub(crate) fn volume_named(&self, name: &str) -> Option<&Volume> {
        self.names.get(name).and_then(|id| self.volumes.get(id))
    }

    /// All volumes, sorted by id.
    pub fn volumes(&self) -> impl ExactSizeIterator<Item = &Volume> {
        self.volumes.values()
    }

    /// The volumes attached to a node, sorted by id; none for a node that is not known.
    pub fn attached_to(&self, node: &str) -> impl Iterator<Item = &VolumeId> {
        self.nodes.get(node).into_iter().flat_map(|node| &node.attached)
    }

    /// How it is built.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn done<T>(&mut self, reply: T, change: Change) -> Done<T> {
        self.apply(change.clone());
        Done {
            reply,
            change: Some(change),
        }
    }

    /// An id that depends on this very array, on what it made before and on a name.
    fn fresh(
        &self,
        kind: &str,
        prefix: &str,
        before: u64,
        name: &str,
        taken: impl Fn(&str) -> bool,
    ) -> String {
        let mut salt = 0_u32;
        loop {
            let mark = self.mark(&format!("{kind}/{before}/{salt}/{name}"));
            let id = format!("{prefix}-{mark:016x}");
            if !taken(&id) {
                return id;
            }
            salt += 1;
        }
    }

    /// A number only this array makes of a text.
    fn mark(&self, text: &str) -> u64 {
        SipHasher24::new_with_key(&self.epoch.to_le_bytes()).hash(text.as_bytes())
    }
}

#[cfg(test)]
mod tests;
