//! What can happen to an array, as data: the unit of its durability.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::group::Group;
use super::health::{StorageHealthIssue, UnhealthyVolume};
use super::node::NodeSettings;
use super::snapshot::Snapshot;
use super::volume::{Attachment, Spec, Volume};
use super::{Array, GroupId, NodeId, PoolName, Settings, SnapshotId, VolumeId};

/// One step of the array's state. Applying it never fails and needs nothing but the state before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A volume came to be.
    Created {
        /// The volume.
        spec: Arc<Spec>,
    },
    /// A volume is gone.
    Deleted {
        /// The volume.
        volume: VolumeId,
    },
    /// A node got hold of a volume.
    Attached {
        /// The volume.
        volume: VolumeId,
        /// The node.
        node: NodeId,
        /// How.
        attachment: Attachment,
    },
    /// Nodes lost hold of a volume.
    Detached {
        /// The volume.
        volume: VolumeId,
        /// The nodes.
        nodes: Vec<NodeId>,
    },
    /// A volume became larger.
    Expanded {
        /// The volume.
        volume: VolumeId,
        /// Its size from now on.
        capacity_bytes: u64,
    },
    /// A volume got other mutable parameters.
    Modified {
        /// The volume.
        volume: VolumeId,
        /// All it has from now on.
        qos: BTreeMap<String, String>,
    },
    /// A volume fell ill or became well.
    VolumeHealth(UnhealthyVolume),
    /// The storage behind a node, or behind all of them, fell ill or became well.
    StorageHealth {
        /// The node; none for all.
        node: Option<NodeId>,
        /// Empty for healthy storage.
        #[serde(rename = "ailments")]
        issues: Vec<StorageHealthIssue>,
    },
    /// A snapshot was taken.
    Snapshotted {
        /// The snapshot.
        snapshot: Arc<Snapshot>,
    },
    /// A snapshot is gone.
    SnapshotDeleted {
        /// The snapshot.
        snapshot: SnapshotId,
    },
    /// A group of snapshots was taken.
    Grouped {
        /// The group.
        group: Arc<Group>,
        /// Its snapshots.
        snapshots: Vec<Arc<Snapshot>>,
    },
    /// A group is gone with its snapshots.
    GroupDeleted {
        /// The group.
        group: GroupId,
        /// Its snapshots; empty in a log of an earlier version.
        #[serde(default)]
        snapshots: Vec<SnapshotId>,
    },
    /// A pool became larger or smaller.
    PoolResized {
        /// The pool.
        pool: PoolName,
        /// The bytes it has from now on.
        capacity: u64,
    },
    /// A node was registered or changed, or taken out of the register.
    NodeSet {
        /// The node.
        node: NodeId,
        /// All that is set for it from now on.
        settings: NodeSettings,
    },
    /// A machine got another id.
    NodeRenamed {
        /// The id it had.
        from: NodeId,
        /// The id it has from now on.
        to: NodeId,
        /// All that is set for it from now on.
        settings: NodeSettings,
    },
}

/// The whole state of an array, as it is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Which array this is.
    pub epoch: u128,
    /// How many volumes were made on request, deleted ones included.
    pub created: u64,
    /// How many attachments there have been.
    pub attached: u64,
    /// How many volumes were put in at the start, deleted ones included.
    pub premade: u64,
    /// The volumes, sorted by id.
    pub volumes: Vec<Volume>,
    /// How many snapshots and groups were made, deleted ones included.
    #[serde(default)]
    pub made: u64,
    /// The snapshots, sorted by id.
    #[serde(default)]
    pub snapshots: Vec<Arc<Snapshot>>,
    /// The groups, sorted by id.
    #[serde(default)]
    pub groups: Vec<Arc<Group>>,
    /// The sick volumes, sorted by id.
    #[serde(default)]
    pub sick: Vec<UnhealthyVolume>,
    /// Health issues of the storage behind a node; none for all nodes.
    #[serde(default)]
    pub storage: Vec<(Option<NodeId>, Vec<StorageHealthIssue>)>,
    /// What was changed for single nodes.
    #[serde(default)]
    pub nodes: Vec<(NodeId, NodeSettings)>,
    /// The pools whose size was changed, and what they have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<(PoolName, u64)>,
}

// === impl Array ===

impl Array {
    /// An array in the state of an image.
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
        array.sick = image
            .sick
            .into_iter()
            .map(|sick| (sick.volume, sick.issues))
            .collect();
        array.storage = image.storage.into_iter().collect();
        array
    }

    /// The state as data; [`Array::from_image`] is the way back.
    pub fn image(&self) -> Image {
        let sick = self.sick.iter().map(|(volume, issues)| UnhealthyVolume {
            volume: volume.clone(),
            issues: issues.clone(),
        });
        Image {
            epoch: self.epoch,
            created: self.created,
            attached: self.attached,
            premade: self.premade,
            volumes: self.volumes.values().cloned().collect(),
            made: self.made,
            snapshots: self.snapshots.values().cloned().collect(),
            groups: self.groups.values().cloned().collect(),
            sick: sick.collect(),
            storage: self.storage.clone().into_iter().collect(),
            nodes: self.changed.clone().into_iter().collect(),
            pools: self.resized.clone().into_iter().collect(),
        }
    }

    /// An array in the same state with the same settings, which goes its own way from here.
    pub fn copy(&self) -> Self {
        Self::from_image(self.settings.clone(), self.image())
    }
}
