//! Volumes: their properties and sizes, and idempotency by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::capability::{Capability, PublishParams};
use super::{Error, HealthIssue, NodeId, PoolName, Requirement, SnapshotId, VolumeId, first_difference};

/// Sizes are multiples of a sector, so that a volume can back a block device.
const SECTOR: u64 = 512;

/// The properties of a volume at its creation. Shared with replies, so a page of a list copies no text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub id: VolumeId,
    /// Name of the create request; empty for an initial volume.
    #[serde(default)]
    pub name: String,
    pub capacity_bytes: u64,
    /// The capabilities that it was created for, sorted. Empty means all (initial volumes).
    #[serde(default)]
    pub capabilities: Vec<Capability>,
    /// The class parameters, which are also its volume context.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// The mutable parameters at creation. The present ones are [`Volume::qos`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mutable_parameters: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    #[serde(default)]
    pub pool: PoolName,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Snapshot(SnapshotId),
    Volume(VolumeId),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    pub spec: Arc<Spec>,
    #[serde(default)]
    pub attachments: BTreeMap<NodeId, Attachment>,
    /// Its present mutable parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub qos: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<HealthIssue>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Its number, which is never reused.
    pub number: u64,
    #[serde(flatten)]
    pub params: PublishParams,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateVolumeParams {
    /// Name of the request, the key of idempotency.
    pub name: String,
    pub size: SizeRange,
    pub capabilities: Vec<Capability>,
    pub parameters: BTreeMap<String, String>,
    pub mutable_parameters: BTreeMap<String, String>,
    /// The source of its content; `None` for an empty volume.
    pub source: Option<Source>,
    /// The accessibility requirement; `None` for any pool.
    pub requirement: Option<Requirement>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeRange {
    /// `required_bytes`; 0 for any.
    pub required: u64,
    /// `limit_bytes`; 0 for no limit.
    pub limit: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRule {
    pub min: u64,
    /// The size of a volume without a capacity range.
    pub default: u64,
    pub max: u64,
}

// === impl CreateVolumeParams ===

impl CreateVolumeParams {
    /// The capabilities in the order in which they are compared and stored.
    pub(super) fn sorted_capabilities(&self) -> Vec<Capability> {
        let mut capabilities = self.capabilities.clone();
        capabilities.sort();
        capabilities.dedup();
        capabilities
    }

    /// The first request field that differs from an existing volume.
    pub(super) fn difference(&self, existing: &Spec) -> Option<&'static str> {
        let are_same = self.mutable_parameters == existing.mutable_parameters;
        first_difference(&[
            ("capacity_range", self.size.contains(existing.capacity_bytes)),
            (
                "volume_capabilities",
                self.sorted_capabilities() == existing.capabilities,
            ),
            ("parameters", self.parameters == existing.parameters),
            ("mutable_parameters", are_same),
            ("volume_content_source", self.source == existing.source),
        ])
    }
}

// === impl Spec ===

impl Spec {
    pub(crate) fn supports(&self, asked: &Capability) -> bool {
        self.capabilities.is_empty() || self.capabilities.iter().any(|made| made.covers(asked))
    }
}

// === impl Volume ===

impl From<Arc<Spec>> for Volume {
    fn from(spec: Arc<Spec>) -> Self {
        Self {
            qos: spec.mutable_parameters.clone(),
            spec,
            attachments: BTreeMap::new(),
            health: Vec::new(),
        }
    }
}

// === impl Source ===

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Snapshot(id) => write!(f, "snapshot \"{id}\""),
            Self::Volume(id) => write!(f, "volume \"{id}\""),
        }
    }
}

// === impl SizeRange ===

impl SizeRange {
    /// Whether a volume of `bytes` is within the range.
    pub fn contains(self, bytes: u64) -> bool {
        bytes >= self.required && (self.limit == 0 || bytes <= self.limit)
    }
}

// === impl SizeRule ===

impl SizeRule {
    /// Binary units, as everywhere in Kubernetes.
    const MIB: u64 = 1 << 20;

    /// Chooses the size of a volume with content of `bytes`.
    ///
    /// A range whose size is below that is an error even if its limit allows more: the caller expects that size, for which the
    /// source may have been created.
    pub(super) fn choose_holding(self, asked: SizeRange, bytes: u64) -> Result<u64, Error> {
        let SizeRange { required, limit } = asked;
        if required != 0 && self.round_up(required) < bytes || limit != 0 && limit < bytes {
            return Err(out_of_range(format!(
                "the source has {bytes} bytes, which do not fit into required_bytes {required} and \
                 limit_bytes {limit}"
            )));
        }
        self.choose(SizeRange {
            required: required.max(bytes),
            limit,
        })
    }

    /// Chooses the smallest supported size within the range.
    pub(super) fn choose(self, asked: SizeRange) -> Result<u64, Error> {
        let SizeRange { required, limit } = asked;
        if limit != 0 && required > limit {
            return Err(out_of_range(format!(
                "required_bytes {required} is more than limit_bytes {limit}"
            )));
        }
        if required > self.max {
            return Err(out_of_range(format!(
                "required_bytes {required} is more than the largest volume, {} bytes",
                self.max
            )));
        }
        let ceiling = if limit == 0 { self.max } else { limit.min(self.max) };
        let size = if required == 0 {
            round_down(self.default.min(ceiling))
        } else {
            self.round_up(required)
        };
        if size < self.min || size > ceiling {
            return Err(out_of_range(format!(
                "no size of whole {SECTOR}-byte sectors from {} bytes up lies between \
                 required_bytes {required} and limit_bytes {limit}",
                self.min
            )));
        }
        Ok(size)
    }

    /// The smallest supported size with so many bytes.
    fn round_up(self, bytes: u64) -> u64 {
        bytes
            .checked_next_multiple_of(SECTOR)
            .unwrap_or(u64::MAX)
            .max(self.min)
    }
}

impl Default for SizeRule {
    /// 1 MiB to 1 TiB; 1 GiB by default.
    fn default() -> Self {
        Self {
            min: Self::MIB,
            default: 1024 * Self::MIB,
            max: 1024 * 1024 * Self::MIB,
        }
    }
}

fn round_down(bytes: u64) -> u64 {
    bytes - bytes % SECTOR
}

fn out_of_range(reason: String) -> Error {
    Error::SizeOutOfRange { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn size_is_the_smallest_that_fits_range_and_array() {
        let rule = SizeRule {
            min: MIB,
            default: 64 * MIB,
            max: 1024 * MIB,
        };
        // (case, required, limit, size or none)
        let table = [
            ("nothing asked", 0, 0, Some(64 * MIB)),
            ("limit under the default", 0, 8 * MIB, Some(8 * MIB)),
            (
                "limit under the default, broken sector",
                0,
                8 * MIB + 5,
                Some(8 * MIB),
            ),
            ("exact", 10 * MIB, 10 * MIB, Some(10 * MIB)),
            ("rounded up to a sector", 10 * MIB + 1, 0, Some(10 * MIB + 512)),
            ("under the smallest, no limit", 1, 0, Some(MIB)),
            ("under the smallest, with limit", 1, 4096, None),
            ("limit under the smallest", 0, 4096, None),
            ("largest", 1024 * MIB, 0, Some(1024 * MIB)),
            ("over the largest", 1024 * MIB + 1, 0, None),
            ("limit over the largest", 1024 * MIB, u64::MAX, Some(1024 * MIB)),
            ("no sector between", 10 * MIB + 1, 10 * MIB + 2, None),
            ("contradiction", 2 * MIB, MIB, None),
            ("huge", i64::MAX as u64, 0, None),
        ];
        for (case, required, limit, expected) in table {
            let size = rule.choose(SizeRange { required, limit });
            match expected {
                Some(bytes) => assert_eq!(size, Ok(bytes), "{case}"),
                None => assert!(
                    matches!(size, Err(Error::SizeOutOfRange { .. })),
                    "{case}: {size:?}"
                ),
            }
        }
    }
}
