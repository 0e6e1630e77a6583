//! Conversion of the array's objects to CSI messages.

use csi_proto::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use csi_proto::v1::{
    self, Topology, Volume, VolumeCondition, VolumeContentSource, VolumeHealth,
    volume_health::VolumeHealthEntry,
};
use jiff::Timestamp;

use crate::array::{self, HealthIssue, PoolName, Segments, Severity, Snapshot, Source, Spec};
use crate::driver::Driver;
use crate::rpc::capabilities::Capability;

// === impl Driver ===

impl Driver {
    pub(crate) fn shape_volume(&self, spec: &Spec) -> Volume {
        let has_topology = self.capabilities.has(Capability::VolumeAccessibilityConstraints);
        Volume {
            capacity_bytes: bytes(spec.capacity_bytes),
            volume_id: spec.id.to_string(),
            volume_context: spec.parameters.clone().into_iter().collect(),
            content_source: spec.source.as_ref().map(source),
            accessible_topology: self.topology_of(&spec.pool, has_topology),
        }
    }

    pub(crate) fn shape_snapshot(&self, snapshot: &Snapshot) -> v1::Snapshot {
        let has_topology = self
            .capabilities
            .has(Capability::SnapshotAccessibilityConstraints);
        v1::Snapshot {
            size_bytes: bytes(snapshot.size_bytes),
            snapshot_id: snapshot.id.to_string(),
            source_volume_id: snapshot.source.to_string(),
            creation_time: Some(timestamp(snapshot.created)),
            ready_to_use: snapshot.is_ready(),
            group_snapshot_id: snapshot
                .group
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            accessible_topology: self.topology_of(&snapshot.pool, has_topology),
        }
    }

    /// The condition of a volume, if the driver reports it as before CSI 1.13.
    pub(super) fn volume_condition(&self, volume: &array::Volume) -> Option<VolumeCondition> {
        let is_reported = self.capabilities.has(Capability::VolumeCondition);
        is_reported.then(|| condition(&volume.health))
    }

    fn topology_of(&self, pool: &PoolName, is_reported: bool) -> Vec<Topology> {
        let segments = self
            .pool_topology
            .get(pool)
            .filter(|segments| is_reported && !segments.is_empty());
        segments.map(topology).into_iter().collect()
    }
}

pub(crate) fn condition(issues: &[HealthIssue]) -> VolumeCondition {
    let messages: Vec<&str> = issues.iter().map(|issue| issue.message.as_str()).collect();
    VolumeCondition {
        abnormal: !issues.is_empty(),
        message: messages.join("; "),
    }
}

pub(crate) fn topology(segments: &Segments) -> Topology {
    Topology {
        segments: segments.as_map().clone().into_iter().collect(),
    }
}

pub(crate) fn health(volume: &str, issues: &[HealthIssue]) -> VolumeHealth {
    use v1::VolumeHealthErrorType as Type;
    let entry = |issue: &HealthIssue| {
        let status = match issue.status {
            Severity::Unknown => Type::UnknownVolumeHealthType,
            Severity::Degraded => Type::Degraded,
            Severity::Inaccessible => Type::Inaccessible,
            Severity::DataLoss => Type::DataLoss,
        };
        VolumeHealthEntry {
            status: status.into(),
            reason: issue.reason.clone(),
            message: issue.message.clone(),
        }
    };
    VolumeHealth {
        volume_id: volume.to_owned(),
        health_statuses: issues.iter().map(entry).collect(),
    }
}

/// A number of bytes in CSI's type.
pub(crate) fn bytes(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

pub(crate) fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: time.as_second(),
        nanos: time.subsec_nanosecond(),
    }
}

fn source(source: &Source) -> VolumeContentSource {
    let r#type = match source {
        Source::Snapshot(id) => Type::Snapshot(SnapshotSource {
            snapshot_id: id.to_string(),
        }),
        Source::Volume(id) => Type::Volume(VolumeSource {
            volume_id: id.to_string(),
        }),
    };
    VolumeContentSource { r#type: Some(r#type) }
}
