//! Health issues of volumes and of the storage behind nodes. Healthy ones have no entry.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::listing::{Entry, Listing, Page};
use super::{Array, Capability, Done, Error, NodeId, Row, Volume};

/// A health issue of a volume (VolumeHealth).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthIssue {
    /// `UNKNOWN`, `DEGRADED`, `INACCESSIBLE` or `DATA_LOSS`.
    #[schema(value_type = String)]
    pub status: Severity,
    /// Machine-readable reason (CamelCase).
    pub reason: String,
    /// Human-readable message.
    #[serde(default)]
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Severity {
    Unknown,
    Degraded,
    Inaccessible,
    DataLoss,
}

/// A health issue of the storage of nodes (StorageHealth).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StorageHealthIssue {
    /// `UNKNOWN`, `DEGRADED` or `UNREACHABLE`.
    #[schema(value_type = String)]
    pub status: StorageSeverity,
    /// Machine-readable reason (CamelCase).
    pub reason: String,
    /// Human-readable message.
    #[serde(default)]
    pub message: String,
    /// The only capability that it affects, such as `block SINGLE_NODE_WRITER` or
    /// `mount(ext4) MULTI_NODE_MULTI_WRITER`; absent for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    #[schema(value_type = Option<String>)]
    pub capability: Option<Capability>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StorageSeverity {
    Unknown,
    Degraded,
    Unreachable,
}

// === impl Severity ===

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

// === impl StorageSeverity ===

impl fmt::Display for StorageSeverity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

// === impl Array ===

impl Array {
    pub fn set_volume_health(&mut self, id: &str, health: Vec<HealthIssue>) -> Result<Done<()>, Error> {
        let volume = self.volume(id)?;
        if volume.health == health {
            return Ok(Done::unchanged(()));
        }
        let volume = Volume {
            health,
            ..volume.clone()
        };
        Ok(self.replaced((), volume))
    }

    /// Sets the health issues of the storage behind one node, or behind all nodes.
    ///
    /// # Errors
    /// If the node does not exist. Issues of a removed node can still be cleared.
    pub fn set_storage_health(
        &mut self,
        node: Option<&str>,
        issues: Vec<StorageHealthIssue>,
    ) -> Result<Done<()>, Error> {
        let node = match node {
            Some(node) if self.storage.contains_key(&Some(NodeId::from(node))) => Some(NodeId::from(node)),
            Some(node) => Some(self.registered(node)?.id.clone()),
            None => None,
        };
        if self.storage.get(&node).map_or(&[][..], Vec::as_slice) == issues {
            return Ok(Done::unchanged(()));
        }
        Ok(self.done((), [Row::StorageHealth(node, issues)]))
    }

    /// Volumes with health issues, in pages.
    pub(crate) fn list_health(&self, max_entries: usize, token: Option<&str>) -> Result<Page, Error> {
        let listing = Listing::begin(self, "health", max_entries, token)?;
        let rest = self.volumes.range::<str, _>(listing.rest());
        let unhealthy = rest.filter(|(_, volume)| !volume.health.is_empty());
        Ok(listing.page(unhealthy.map(|(_, volume)| volume.into()), Entry::id))
    }

    /// Health issues of the storage by node; `None` for those of all nodes.
    pub(crate) fn unhealthy_storage(&self) -> impl Iterator<Item = (Option<&NodeId>, &[StorageHealthIssue])> {
        let all = self.storage.iter();
        all.map(|(node, issues)| (node.as_ref(), issues.as_slice()))
    }

    /// Health issues of the storage from a node's point of view: those of all nodes, then its own.
    pub(crate) fn storage_health(&self, node: &str) -> Vec<StorageHealthIssue> {
        let own = self.storage.get(&Some(NodeId::from(node)));
        let all = self.storage.get(&None);
        all.into_iter().chain(own).flatten().cloned().collect()
    }
}

fn to_text<S: Serializer>(capability: &Option<Capability>, serializer: S) -> Result<S::Ok, S::Error> {
    capability.as_ref().map(ToString::to_string).serialize(serializer)
}

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Capability>, D::Error> {
    let read = |text: String| {
        Capability::read(&text).ok_or_else(|| {
            D::Error::custom(format!(
                "unknown capability \"{text}\": write it as volumes show theirs, such as block SINGLE_NODE_WRITER or \
                 mount(ext4) MULTI_NODE_MULTI_WRITER"
            ))
        })
    };
    Option::deserialize(deserializer)?.map(read).transpose()
}
