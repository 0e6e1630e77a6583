//! The whole state of an array in its stored form.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::group::Group;
use super::health::StorageHealthIssue;
use super::id::{NodeId, PoolName, SnapshotId};
use super::node::NodeSettings;
use super::snapshot::Snapshot;
use super::volume::{Attachment, Volume};
use super::{Array, Counters, Error, Row, Settings};

/// The whole state of an array in its stored form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Image {
    /// The array's, of which a fixture is independent.
    #[serde(skip_serializing)]
    pub id_seed: u128,
    // Those of [`Counters`].
    pub created: u64,
    pub attached: u64,
    pub initial_volumes: u64,
    pub volumes: Vec<Volume>,
    pub made: u64,
    pub snapshots: Vec<Arc<Snapshot>>,
    pub groups: Vec<Arc<Group>>,
    /// Health issues of the storage behind a node; `None` for all nodes.
    pub storage: Vec<(Option<NodeId>, Vec<StorageHealthIssue>)>,
    /// Settings of single nodes.
    pub nodes: BTreeMap<NodeId, NodeSettings>,
    /// Changed capacities of pools.
    pub pools: BTreeMap<PoolName, u64>,
}

/// CSI's limit for ids and names, in bytes.
const MAX_TEXT: usize = 128;

// === impl Array ===

impl Array {
    /// Restores an array from an image, which [`Image::check`] accepts.
    pub fn from_image(settings: Settings, image: Image) -> Self {
        let mut array = Self::new(settings, image.id_seed);
        let attachments = image
            .volumes
            .iter()
            .flat_map(|volume| volume.attachments.values());
        // A fixture may lack the counter, and a publish context of its attachments must not fit a later one.
        let numbers = attachments.map(|attachment| attachment.number);
        array.counters = Counters {
            attached: numbers.fold(image.attached, u64::max),
            ..image.counters()
        };
        for (node, settings) in image.nodes {
            array.apply(Row::Node(node, settings));
        }
        for (pool, capacity) in image.pools {
            array.apply(Row::Pool(pool, capacity));
        }
        for volume in image.volumes {
            array.apply(Row::Volume(volume.spec.id.clone(), Some(volume)));
        }
        for snapshot in image.snapshots {
            array.apply(Row::Snapshot(snapshot.id.clone(), Some(snapshot)));
        }
        for group in image.groups {
            array.apply(Row::Group(group.id.clone(), Some(group)));
        }
        array.storage = image.storage.into_iter().collect();
        array
    }

    /// The state as an image; see [`Array::from_image`].
    pub fn image(&self) -> Image {
        Image {
            volumes: self.volumes.values().cloned().collect(),
            snapshots: self.snapshots.values().cloned().collect(),
            groups: self.groups.values().cloned().collect(),
            storage: self.storage.clone().into_iter().collect(),
            nodes: self.changed.clone(),
            pools: self.resized.clone(),
            ..Image::empty(self.counters)
        }
    }
}

// === impl Image ===

impl Image {
    /// An image with these counters and nothing else.
    pub(crate) fn empty(counters: Counters) -> Self {
        Self {
            id_seed: counters.id_seed,
            created: counters.created,
            attached: counters.attached,
            initial_volumes: counters.initial_volumes,
            made: counters.made,
            ..Self::default()
        }
    }

    fn counters(&self) -> Counters {
        Counters {
            id_seed: self.id_seed,
            created: self.created,
            attached: self.attached,
            initial_volumes: self.initial_volumes,
            made: self.made,
        }
    }

    /// Checks what the array relies on: unique ids and names, known pools, complete groups, and attachments that exclude no other.
    ///
    /// # Errors
    /// The first contradiction, with its object.
    pub fn check(&self, settings: &Settings) -> Result<(), Error> {
        let volumes = self.volumes.iter().map(|volume| &volume.spec);
        unique("volumes", volumes.clone().map(|spec| spec.id.as_str()))?;
        unique("volumes", volumes.clone().map(|spec| spec.name.as_str()))?;
        let snapshots = self.snapshots.iter();
        unique(
            "snapshots",
            snapshots.clone().map(|snapshot| snapshot.id.as_str()),
        )?;
        unique("snapshots", snapshots.map(|snapshot| snapshot.name.as_str()))?;
        unique("groups", self.groups.iter().map(|group| group.id.as_str()))?;
        let storage = self.storage.iter().map(|(node, _)| node.as_ref());
        unique("storage", storage.map(|node| node.map_or("*", NodeId::as_str)))?;
        self.check_texts()?;
        self.check_nodes(settings)?;
        unique("groups", self.groups.iter().map(|group| group.name.as_str()))?;
        let pools = volumes.map(|spec| &spec.pool);
        let mut pools = pools.chain(self.snapshots.iter().map(|snapshot| &snapshot.pool));
        let is_unknown = |name: &&PoolName| settings.pools.iter().all(|pool| pool.name != **name);
        if let Some(pool) = pools.find(is_unknown) {
            let known = settings.pools.iter().map(|pool| pool.name.to_string());
            let known = super::error::listed(known);
            return Err(wrong(
                "pool",
                format!("\"{pool}\" is no pool of the array, which has {known}"),
            ));
        }
        self.check_groups()?;
        for volume in &self.volumes {
            let held: Vec<_> = volume.attachments.values().collect();
            let excludes = |(index, one): (usize, &&Attachment)| {
                let mut others = held[index + 1..].iter();
                others.any(|other| !one.params.tolerates(&other.params))
            };
            if held.iter().enumerate().any(excludes) {
                let reason = format!(
                    "the access modes of volume \"{}\" exclude each other",
                    volume.spec.id
                );
                return Err(wrong("attachments", reason));
            }
        }
        Ok(())
    }

    /// Checks ids, names and sizes, which no request could have given the objects otherwise.
    fn check_texts(&self) -> Result<(), Error> {
        let volumes = self.volumes.iter().map(|volume| &volume.spec);
        let volumes = volumes.map(|spec| {
            (
                "volumes",
                spec.id.as_str(),
                spec.name.as_str(),
                Some(spec.capacity_bytes),
            )
        });
        let snapshots = self.snapshots.iter();
        let snapshots = snapshots.map(|shot| {
            (
                "snapshots",
                shot.id.as_str(),
                shot.name.as_str(),
                Some(shot.size_bytes),
            )
        });
        let groups = self.groups.iter();
        let groups = groups.map(|group| ("groups", group.id.as_str(), group.name.as_str(), None));
        for (field, id, name, bytes) in volumes.chain(snapshots).chain(groups) {
            if id.is_empty() {
                return Err(wrong(field, "an id is empty: give each object one".to_owned()));
            }
            if let Some(long) = [id, name].into_iter().find(|text| text.len() > MAX_TEXT) {
                let reason = format!("\"{long}\" is longer than {MAX_TEXT} bytes: shorten it");
                return Err(wrong(field, reason));
            }
            if bytes == Some(0) {
                return Err(wrong(
                    field,
                    format!("\"{id}\" has no bytes: give it a size above 0"),
                ));
            }
        }
        Ok(())
    }

    /// Checks that the array has, or had, the nodes to which volumes are attached.
    fn check_nodes(&self, settings: &Settings) -> Result<(), Error> {
        let is_known = |node: &NodeId| self.nodes.contains_key(node) || settings.nodes.contains(node);
        let attachments = self.volumes.iter().flat_map(|volume| {
            let nodes = volume.attachments.keys();
            nodes.map(|node| (&volume.spec.id, node))
        });
        for (volume, node) in attachments {
            if !is_known(node) {
                let reason = format!(
                    "volume \"{volume}\" is attached to \"{node}\", which is no node of the array: add it to nodes, or start \
                     the driver with more --nodes"
                );
                return Err(wrong("attachments", reason));
            }
        }
        Ok(())
    }

    fn check_groups(&self) -> Result<(), Error> {
        let groups: BTreeSet<_> = self.groups.iter().map(|group| &group.id).collect();
        let of_unknown = |snapshot: &&Arc<Snapshot>| {
            let group = snapshot.group.as_ref();
            group.is_some_and(|group| !groups.contains(group))
        };
        if let Some(snapshot) = self.snapshots.iter().find(of_unknown) {
            let reason = format!("the group of \"{}\" is not in groups", snapshot.id);
            return Err(wrong("snapshots", reason));
        }
        let snapshots: BTreeSet<_> = self.snapshots.iter().map(|snapshot| &snapshot.id).collect();
        for group in &self.groups {
            let has = |id: &SnapshotId| snapshots.contains(id);
            if let Some(member) = group.members.values().find(|id| !has(id)) {
                let reason = format!(
                    "group \"{}\" has snapshot \"{member}\", which is not in snapshots",
                    group.id
                );
                return Err(wrong("groups", reason));
            }
        }
        Ok(())
    }
}

/// Checks that no text is there twice. Empty names are no names.
fn unique<'a>(field: &str, texts: impl Iterator<Item = &'a str>) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    match texts
        .filter(|text| !text.is_empty())
        .find(|text| !seen.insert(*text))
    {
        Some(text) => Err(wrong(
            field,
            format!("\"{text}\" is there twice: remove one of them"),
        )),
        None => Ok(()),
    }
}

fn wrong(field: &str, reason: String) -> Error {
    Error::Illegal {
        field: field.to_owned(),
        reason,
    }
}
