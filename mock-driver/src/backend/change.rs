//! What can happen to an array, as data: the unit of its durability.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::volume::{Attachment, Spec, Volume};
use super::{Array, NodeId, Settings, VolumeId};

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
}

// === impl Array ===

impl Array {
    /// An array in the state of an image.
    pub fn from_image(settings: Settings, image: Image) -> Self {
        let mut array = Self::new(settings, image.epoch);
        array.created = image.created;
        array.attached = image.attached;
        array.premade = image.premade;
        for volume in image.volumes {
            array.insert(volume);
        }
        array
    }

    /// The state as data; [`Array::from_image`] is the way back.
    pub fn image(&self) -> Image {
        Image {
            epoch: self.epoch,
            created: self.created,
            attached: self.attached,
            premade: self.premade,
            volumes: self.volumes.values().cloned().collect(),
        }
    }

    /// An array in the same state with the same settings, which goes its own way from here.
    pub fn twin(&self) -> Self {
        Self::from_image(self.settings.clone(), self.image())
    }

    /// Makes a change happen: one just decided, or one replayed.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Created { spec } => {
                self.created += 1;
                self.insert(Volume {
                    spec,
                    attachments: BTreeMap::new(),
                });
            }
            Change::Deleted { volume } => {
                if let Some(gone) = self.volumes.remove(&volume) {
                    self.names.remove(&gone.spec.name);
                    for node in gone.attachments.keys() {
                        self.release(node, &volume);
                    }
                }
            }
            Change::Attached {
                volume,
                node,
                attachment,
            } => {
                self.attached = self.attached.max(attachment.number);
                if let Some(held) = self.volumes.get_mut(&volume) {
                    held.attachments.insert(node.clone(), attachment);
                    self.nodes.entry(node).or_default().attached.insert(volume);
                }
            }
            Change::Detached { volume, nodes } => {
                for node in &nodes {
                    if let Some(held) = self.volumes.get_mut(&volume) {
                        held.attachments.remove(node);
                    }
                    self.release(node, &volume);
                }
            }
        }
    }

    pub(super) fn insert(&mut self, volume: Volume) {
        let id = volume.spec.id.clone();
        if !volume.spec.name.is_empty() {
            self.names.insert(volume.spec.name.clone(), id.clone());
        }
        for node in volume.attachments.keys() {
            self.nodes
                .entry(node.clone())
                .or_default()
                .attached
                .insert(id.clone());
        }
        self.volumes.insert(id, volume);
    }

    fn release(&mut self, node: &NodeId, volume: &VolumeId) {
        if let Some(holder) = self.nodes.get_mut(node) {
            holder.attached.remove(volume);
            if !holder.registered && holder.attached.is_empty() {
                self.nodes.remove(node);
            }
        }
    }
}

impl From<Spec> for Volume {
    fn from(spec: Spec) -> Self {
        Self {
            spec: Arc::new(spec),
            attachments: BTreeMap::new(),
        }
    }
}
