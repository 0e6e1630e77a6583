//! The whole state of an array in its stored form.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::group::Group;
use super::health::{StorageHealthIssue, UnhealthyVolume};
use super::id::{NodeId, PoolName};
use super::node::NodeSettings;
use super::snapshot::Snapshot;
use super::volume::Volume;
use super::{Array, Settings};

/// The whole state of an array in its stored form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// The array's epoch.
    pub epoch: u128,
    /// Number of volumes created by requests, deleted ones included.
    pub created: u64,
    /// Number of attachments so far.
    pub attached: u64,
    /// Number of initial volumes, deleted ones included.
    pub premade: u64,
    /// The volumes, sorted by id.
    pub volumes: Vec<Volume>,
    /// Number of created snapshots and groups, deleted ones included.
    pub made: u64,
    /// The snapshots, sorted by id.
    pub snapshots: Vec<Arc<Snapshot>>,
    /// The groups, sorted by id.
    pub groups: Vec<Arc<Group>>,
    /// Volumes with health issues, sorted by id.
    pub unhealthy: Vec<UnhealthyVolume>,
    /// Health issues of the storage behind a node; `None` for all nodes.
    pub storage: Vec<(Option<NodeId>, Vec<StorageHealthIssue>)>,
    /// Settings of single nodes.
    pub nodes: Vec<(NodeId, NodeSettings)>,
    /// Changed capacities of pools.
    pub pools: Vec<(PoolName, u64)>,
}

// === impl Array ===

impl Array {
    /// Restores an array from an image.
    pub fn from_image(settings: Settings, image: Image) -> Self {
        let mut array = Self::new(settings, image.epoch);
        array.created = image.created;
        array.attached = image.attached;
        array.premade = image.premade;
        array.made = image.made;
        for (node, settings) in image.nodes {
            array.apply_node(node, settings);
        }
        for (pool, capacity) in image.pools {
            array.apply_pool(pool, capacity);
        }
        for volume in image.volumes {
            array.insert(volume);
        }
        for snapshot in image.snapshots {
            array.insert_snapshot(snapshot);
        }
        for group in image.groups {
            array.insert_group(group);
        }
        array.unhealthy = image
            .unhealthy
            .into_iter()
            .map(|unhealthy| (unhealthy.volume.clone(), unhealthy))
            .collect();
        array.storage = image.storage.into_iter().collect();
        array
    }

    /// The state as an image; see [`Array::from_image`].
    pub fn image(&self) -> Image {
        Image {
            epoch: self.epoch,
            created: self.created,
            attached: self.attached,
            premade: self.premade,
            volumes: self.volumes.values().cloned().collect(),
            made: self.made,
            snapshots: self.snapshots.values().cloned().collect(),
            groups: self.groups.values().cloned().collect(),
            unhealthy: self.unhealthy.values().cloned().collect(),
            storage: self.storage.clone().into_iter().collect(),
            nodes: self.changed.clone().into_iter().collect(),
            pools: self.resized.clone().into_iter().collect(),
        }
    }
}
