//! The array: a pure state machine of volumes, nodes and who holds what.
//!
//! It knows neither gRPC nor files nor clocks. Each operation looks at the state, refuses with an
//! [`Error`] or says what changes as a [`Change`], and has that change applied before it returns;
//! so applying the same changes to the same beginning gives the same array, which is how it comes
//! back after a restart.
//!
//! Invariants:
//! - a name belongs to at most one volume;
//! - every attachment stands both in its volume and in its node's set;
//! - two nodes hold one volume only if their modes tolerate each other ([`Hold::tolerates`]);
//! - a node never gains a volume beyond its limit (it may stand above a limit that was lowered);
//! - ids and attachment numbers are never used twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use siphasher::sip::SipHasher24;

pub use self::capability::{Access, AccessMode, Capability, Hold};
pub use self::change::{Change, Image};
pub use self::error::Error;
pub use self::id::{NodeId, VolumeId};
pub use self::listing::{Entry, Page};
pub use self::publish::Publication;
pub use self::volume::{Attachment, SizeRange, SizeRule, Spec, Volume, Wanted};

mod capability;
mod change;
mod error;
mod id;
mod listing;
mod publish;
mod volume;

/// How an array is built. Not part of its state: another start may bring other settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The registered nodes.
    pub nodes: Vec<NodeId>,
    /// How many volumes a node takes; none for as many as come.
    pub attach_limit: Option<usize>,
    /// The sizes it can make.
    pub sizes: SizeRule,
    /// The most entries in one page of a listing, whatever the caller asks; none for no bound.
    pub page_limit: Option<usize>,
}

/// The volumes and nodes of one storage array.
#[derive(Debug)]
pub struct Array {
    settings: Settings,
    /// Told apart from every other array by this number; keys its ids and its page tokens.
    epoch: u128,
    volumes: BTreeMap<VolumeId, Volume>,
    names: BTreeMap<String, VolumeId>,
    nodes: BTreeMap<NodeId, Node>,
    /// How many volumes were made on request, deleted ones included.
    created: u64,
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

#[derive(Debug, Default)]
struct Node {
    /// A node the array knows. Others appear here only while volumes are still attached to them,
    /// after a restart with fewer nodes.
    registered: bool,
    attached: BTreeSet<VolumeId>,
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

// === impl Array ===

impl Array {
    /// An empty array. `epoch` must differ from that of every other array.
    pub fn new(settings: Settings, epoch: u128) -> Self {
        let nodes = settings
            .nodes
            .iter()
            .map(|id| {
                (
                    id.clone(),
                    Node {
                        registered: true,
                        attached: BTreeSet::new(),
                    },
                )
            })
            .collect();
        Self {
            settings,
            epoch,
            volumes: BTreeMap::new(),
            names: BTreeMap::new(),
            nodes,
            created: 0,
            attached: 0,
            premade: 0,
        }
    }

    /// Puts volumes `vol-0` up to `count` in, as if they had always been there.
    ///
    /// Only the numbers that were never put in before: what was deleted stays deleted.
    pub fn premake(&mut self, count: u64) {
        for number in self.premade..count {
            let spec = Spec {
                id: VolumeId::from(format!("vol-{number}")),
                name: String::new(),
                capacity_bytes: self.settings.sizes.default,
                capabilities: Vec::new(),
                parameters: BTreeMap::new(),
            };
            self.insert(spec.into());
        }
        self.premade = self.premade.max(count);
    }

    /// Makes a volume, or finds the one made for the same request before.
    pub fn create_volume(&mut self, wanted: &Wanted) -> Result<Done<Arc<Spec>>, Error> {
        if let Some(existing) = self.names.get(&wanted.name).and_then(|id| self.volumes.get(id)) {
            return match wanted.difference(&existing.spec) {
                None => Ok(Done {
                    reply: existing.spec.clone(),
                    change: None,
                }),
                Some(field) => Err(Error::NameTaken {
                    name: wanted.name.clone(),
                    volume: existing.spec.id.clone(),
                    field,
                }),
            };
        }
        let spec = Arc::new(Spec {
            id: self.fresh_id(&wanted.name),
            name: wanted.name.clone(),
            capacity_bytes: self.settings.sizes.choose(wanted.size)?,
            capabilities: wanted.sorted_capabilities(),
            parameters: wanted.parameters.clone(),
        });
        Ok(self.done(spec.clone(), Change::Created { spec }))
    }

    /// Deletes a volume. One that is gone already is no error; one in use is.
    pub fn delete_volume(&mut self, id: &str) -> Result<Done<()>, Error> {
        let Some(volume) = self.volumes.get(id) else {
            return Ok(Done {
                reply: (),
                change: None,
            });
        };
        let id = volume.spec.id.clone();
        if !volume.attachments.is_empty() {
            let nodes = volume.attachments.keys().cloned().collect();
            return Err(Error::InUse { volume: id, nodes });
        }
        Ok(self.done((), Change::Deleted { volume: id }))
    }

    /// Looks a volume up.
    pub fn volume(&self, id: &str) -> Result<&Volume, Error> {
        self.volumes.get(id).ok_or_else(|| Error::VolumeNotFound {
            volume: id.to_owned(),
        })
    }

    /// All volumes, sorted by id.
    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values()
    }

    /// The volumes attached to a node, sorted by id; none for a node that is not known.
    pub fn attached_to(&self, node: &str) -> impl Iterator<Item = &VolumeId> {
        self.nodes.get(node).into_iter().flat_map(|node| &node.attached)
    }

    fn done<T>(&mut self, reply: T, change: Change) -> Done<T> {
        self.apply(change.clone());
        Done {
            reply,
            change: Some(change),
        }
    }

    /// An id nobody hits by accident: it depends on this very array and on everything it made
    /// before, so a volume made again under an old name is not taken for the old one.
    fn fresh_id(&self, name: &str) -> VolumeId {
        let mut salt = 0_u32;
        loop {
            let mark = self.mark(&format!("volume/{}/{salt}/{name}", self.created));
            let id = VolumeId::from(format!("mock-{mark:016x}"));
            if !self.volumes.contains_key(&id) {
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
