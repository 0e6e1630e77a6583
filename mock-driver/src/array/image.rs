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
        let attached = numbers.fold(image.attached, u64::max);
        for row in (Image { attached, ..image }).into_rows() {
            array.apply(row);
        }
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

    /// The whole state as rows, each after those that it refers to.
    pub(super) fn into_rows(self) -> impl Iterator<Item = Row> {
        let counters = Counters {
            id_seed: self.id_seed,
            created: self.created,
            attached: self.attached,
            initial_volumes: self.initial_volumes,
            made: self.made,
        };
        let volume = |volume: Volume| Row::Volume(volume.spec.id.clone(), Some(volume));
        let snapshot = |snapshot: Arc<Snapshot>| Row::Snapshot(snapshot.id.clone(), Some(snapshot));
        let group = |group: Arc<Group>| Row::Group(group.id.clone(), Some(group));
        let health = |(node, issues)| Row::StorageHealth(node, issues);
        std::iter::once(Row::Counters(counters))
            .chain(
                self.nodes
                    .into_iter()
                    .map(|(id, settings)| Row::Node(id, settings)),
            )
            .chain(
                self.pools
                    .into_iter()
                    .map(|(name, capacity)| Row::Pool(name, capacity)),
            )
            .chain(self.volumes.into_iter().map(volume))
            .chain(self.snapshots.into_iter().map(snapshot))
            .chain(self.groups.into_iter().map(group))
            .chain(self.storage.into_iter().map(health))
    }

    /// Checks what the array relies on: unique ids and names, known pools, complete groups, and attachments that exclude no other.
    ///
    /// # Errors
    /// The first contradiction, with its object.
    pub fn check(&self, settings: &Settings) -> Result<(), Error> {
        let volumes = self.volumes.iter().map(|volume| &volume.spec);
        self.check_texts()?;
        self.check_nodes(settings)?;
        let pools = volumes.map(|spec| &spec.pool);
        let mut pools = pools.chain(self.snapshots.iter().map(|snapshot| &snapshot.pool));
        let is_unknown = |name: &&PoolName| settings.pools.iter().all(|pool| pool.name != **name);
        if let Some(pool) = pools.find(is_unknown) {
            let known = settings.pools.iter().map(|pool| pool.name.to_string());
            let known = super::error::listed(known);
            let reason = format!("\"{pool}\" is no pool of the array, which has {known}");
            return Err(Error::illegal("pool", reason));
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
                return Err(Error::illegal("attachments", reason));
            }
        }
        Ok(())
    }

    /// Checks ids, names and sizes, which no request could have given the objects otherwise.
    fn check_texts(&self) -> Result<(), Error> {
        let mut seen = BTreeSet::new();
        let mut check = |field: &'static str, id: &str, name: &str, bytes: u64| {
            let refuse = |reason: String| Err(Error::illegal(field, reason));
            if id.is_empty() {
                return refuse("an id is empty: give each object one".to_owned());
            }
            for (kind, text) in [("id", id), ("name", name)] {
                if text.len() > MAX_TEXT {
                    return refuse(format!("\"{text}\" is longer than {MAX_TEXT} bytes: shorten it"));
                }
                // An empty name is no name.
                if !text.is_empty() && !seen.insert((field, kind, text.to_owned())) {
                    return refuse(format!("\"{text}\" is there twice: remove one of them"));
                }
            }
            if bytes == 0 {
                return refuse(format!("\"{id}\" has no bytes: give it a size above 0"));
            }
            Ok(())
        };
        for Volume { spec, .. } in &self.volumes {
            check("volumes", spec.id.as_str(), &spec.name, spec.capacity_bytes)?;
        }
        for snapshot in &self.snapshots {
            check(
                "snapshots",
                snapshot.id.as_str(),
                &snapshot.name,
                snapshot.size_bytes,
            )?;
        }
        for group in &self.groups {
            check("groups", group.id.as_str(), &group.name, 1)?;
        }
        for (node, _) in &self.storage {
            let node = node.as_ref().map_or("*", NodeId::as_str);
            if !seen.insert(("storage", "node", node.to_owned())) {
                let reason = format!("\"{node}\" is there twice: remove one of them");
                return Err(Error::illegal("storage", reason));
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
                return Err(Error::illegal("attachments", reason));
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
            return Err(Error::illegal("snapshots", reason));
        }
        let snapshots: BTreeSet<_> = self.snapshots.iter().map(|snapshot| &snapshot.id).collect();
        for group in &self.groups {
            let has = |id: &SnapshotId| snapshots.contains(id);
            if let Some(member) = group.members.values().find(|id| !has(id)) {
                let reason = format!(
                    "group \"{}\" has snapshot \"{member}\", which is not in snapshots",
                    group.id
                );
                return Err(Error::illegal("groups", reason));
            }
        }
        Ok(())
    }
}
