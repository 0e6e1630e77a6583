//! Health issues of volumes and of the storage behind nodes. Healthy ones have no entry.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::listing::{Listing, Page};
use super::{Array, Capability, Change, Done, Error, NodeId, VolumeId};

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

/// Severity of a volume health issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Severity {
    /// Unknown.
    Unknown,
    /// Degraded.
    Degraded,
    /// Inaccessible.
    Inaccessible,
    /// Data is lost.
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

/// Severity of a storage health issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StorageSeverity {
    /// Unknown.
    Unknown,
    /// Degraded.
    Degraded,
    /// Unreachable.
    Unreachable,
}

/// A volume and its health issues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnhealthyVolume {
    /// The volume.
    pub volume: VolumeId,
    /// Empty if the volume is healthy.
    pub(crate) issues: Vec<HealthIssue>,
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
    /// Sets the health issues of a volume.
    ///
    /// # Errors
    /// The volume does not exist.
    pub fn set_volume_health(&mut self, id: &str, issues: Vec<HealthIssue>) -> Result<Done<()>, Error> {
        let volume = self.volume(id)?.spec.id.clone();
        if self.issues(id) == issues {
            return Ok(Done::unchanged(()));
        }
        Ok(self.done((), Change::VolumeHealth(UnhealthyVolume { volume, issues })))
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
            Some(node) => Some(self.registered(node)?.0.clone()),
            None => None,
        };
        if self.storage.get(&node).map_or(&[][..], Vec::as_slice) == issues {
            return Ok(Done::unchanged(()));
        }
        Ok(self.done((), Change::StorageHealth { node, issues }))
    }

    pub(crate) fn volume_health(&self, id: &str) -> Result<UnhealthyVolume, Error> {
        let volume = self.volume(id)?;
        Ok(UnhealthyVolume {
            volume: volume.spec.id.clone(),
            issues: self.issues(id).to_vec(),
        })
    }

    /// Volumes with health issues, in pages.
    pub(crate) fn list_health(
        &self,
        max_entries: usize,
        token: Option<&str>,
    ) -> Result<Page<UnhealthyVolume>, Error> {
        let listing = Listing::begin(self, "health", max_entries, token)?;
        let rest = self.unhealthy.range::<str, _>(listing.rest());
        let unhealthy = rest.map(|(_, unhealthy)| unhealthy.clone());
        Ok(listing.page(unhealthy, |unhealthy| unhealthy.volume.as_str()))
    }

    /// Health issues of a volume; empty if it does not exist.
    pub(crate) fn issues(&self, id: &str) -> &[HealthIssue] {
        self.unhealthy.get(id).map_or(&[], |unhealthy| &unhealthy.issues)
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
