//! The parts of Kubernetes objects that an explanation reads.
//!
//! Like [`model::wire`](crate::model::wire), with the times that the attacher itself has no use for.
//! Every field has a default, so that no object of an older or newer API is unreadable. What the
//! attacher decides on is kept in its own wire types beside, so that its rules can be asked.

mod pod;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer};

pub(super) use self::pod::Pod;
use crate::model;
use crate::model::wire::{
    AttachmentObject, AttachmentSpec, AttachmentStatus, CsiNodeObject, Metadata, VolumeObject,
};

/// Standard metadata.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Meta {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    #[serde(deserialize_with = "time")]
    pub(super) creation_timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "time")]
    pub(super) deletion_timestamp: Option<Timestamp>,
    pub(super) finalizers: Vec<String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) managed_fields: Vec<Written>,
}

/// Who wrote when: the only trace of the time at which an attachment was recorded or reached.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Written {
    pub(super) manager: String,
    /// `status`, or empty for the object itself.
    pub(super) subresource: String,
    #[serde(deserialize_with = "time")]
    pub(super) time: Option<Timestamp>,
}

/// A condition of a pod or node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: String,
    pub(super) message: String,
    #[serde(deserialize_with = "time")]
    pub(super) last_transition_time: Option<Timestamp>,
}

/// A PersistentVolumeClaim (v1).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Claim {
    pub(super) metadata: Meta,
    pub(super) spec: ClaimSpec,
    pub(super) status: Phase,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClaimSpec {
    pub(super) volume_name: String,
    pub(super) storage_class_name: Option<String>,
}

/// `status` of a claim or a volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Phase {
    pub(super) phase: String,
    pub(super) message: String,
    #[serde(deserialize_with = "time")]
    pub(super) last_phase_transition_time: Option<Timestamp>,
}

/// A StorageClass (storage.k8s.io/v1).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Class {
    pub(super) provisioner: String,
    pub(super) volume_binding_mode: String,
}

/// A PersistentVolume (v1).
#[derive(Clone, Debug, Default)]
pub(super) struct Volume {
    pub(super) more: VolumeMore,
    /// What the attacher reads of it.
    pub(super) wire: VolumeObject,
}

/// What the attacher does not read of a PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct VolumeMore {
    pub(super) metadata: Meta,
    pub(super) spec: VolumeMoreSpec,
    pub(super) status: Phase,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct VolumeMoreSpec {
    pub(super) claim_ref: Option<ClaimRef>,
    pub(super) persistent_volume_reclaim_policy: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct ClaimRef {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// A VolumeAttachment (storage.k8s.io/v1).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Attachment {
    pub(super) metadata: Meta,
    pub(super) spec: AttachmentSpec,
    pub(super) status: AttachmentStatus,
}

/// A CSINode (storage.k8s.io/v1).
#[derive(Clone, Debug, Default)]
pub(super) struct CsiNode {
    pub(super) more: CsiNodeMore,
    /// What the attacher reads of it.
    pub(super) wire: CsiNodeObject,
}

/// What the attacher does not read of a CSINode.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct CsiNodeMore {
    pub(super) spec: CsiNodeMoreSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct CsiNodeMoreSpec {
    pub(super) drivers: Option<Vec<CsiNodeMoreDriver>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct CsiNodeMoreDriver {
    pub(super) name: String,
    pub(super) allocatable: Option<Allocatable>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Allocatable {
    pub(super) count: Option<i64>,
}

/// A CSIDriver (storage.k8s.io/v1).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct CsiDriver {
    pub(super) spec: CsiDriverSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct CsiDriverSpec {
    pub(super) attach_required: Option<bool>,
}

/// A Node (v1).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    pub(super) metadata: Meta,
    pub(super) spec: NodeSpec,
    pub(super) status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    pub(super) taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Taint {
    pub(super) key: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeStatus {
    pub(super) conditions: Vec<Condition>,
    pub(super) volumes_attached: Vec<AttachedVolume>,
    pub(super) volumes_in_use: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct AttachedVolume {
    pub(super) name: String,
}

/// A Lease (coordination.k8s.io/v1).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Lease {
    pub(super) metadata: Meta,
    pub(super) spec: LeaseSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct LeaseSpec {
    pub(super) holder_identity: Option<String>,
    pub(super) lease_duration_seconds: Option<i32>,
    #[serde(deserialize_with = "time")]
    pub(super) renew_time: Option<Timestamp>,
}

/// An Event (v1).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Event {
    pub(super) metadata: Meta,
    pub(super) involved_object: Involved,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) reason: String,
    pub(super) message: String,
    #[serde(deserialize_with = "time")]
    pub(super) last_timestamp: Option<Timestamp>,
    #[serde(deserialize_with = "time")]
    pub(super) event_time: Option<Timestamp>,
    pub(super) series: Option<Series>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Involved {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Series {
    #[serde(deserialize_with = "time")]
    pub(super) last_observed_time: Option<Timestamp>,
}

// === impl Meta ===

impl Meta {
    /// When `manager` last wrote the object (`subresource` empty) or a part of it.
    pub(super) fn written_by(&self, manager: &str, subresource: &str) -> Option<Timestamp> {
        let theirs = |written: &&Written| written.manager == manager && written.subresource == subresource;
        self.managed_fields
            .iter()
            .filter(theirs)
            .filter_map(|written| written.time)
            .max()
    }
}

// === impl Volume ===

impl Volume {
    /// The volume as an attacher knows it, in-tree volumes as the drivers do that took over from their
    /// plugins.
    pub(super) fn model(&self) -> model::Volume {
        // Whose finalizer is looked for does not matter to anybody here.
        let driver = model::Driver::new("", model::Capabilities::default(), "");
        model::Volume::from_wire(self.wire.clone(), &driver)
    }
}

// === impl Node ===

impl Node {
    pub(super) fn ready(&self) -> Option<&Condition> {
        self.status
            .conditions
            .iter()
            .find(|condition| condition.kind == "Ready")
    }

    pub(super) fn has_taint(&self, key: &str) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == key)
    }
}

// === impl Attachment ===

impl Attachment {
    /// Name of the PersistentVolume that is attached, if it is one.
    pub(super) fn volume_name(&self) -> Option<String> {
        self.spec.source.persistent_volume_name.clone()
    }

    /// The object as the attacher reads it.
    pub(super) fn wire(&self) -> AttachmentObject {
        let metadata = ObjectMeta {
            name: Some(self.metadata.name.clone()),
            uid: Some(self.metadata.uid.clone()),
            deletion_timestamp: self.metadata.deletion_timestamp.map(Time),
            finalizers: Some(self.metadata.finalizers.clone()),
            annotations: Some(self.metadata.annotations.clone()),
            ..ObjectMeta::default()
        };
        AttachmentObject {
            metadata: Metadata(metadata),
            spec: self.spec.clone(),
            status: self.status.clone(),
        }
    }
}

// === impl Event ===

impl Event {
    /// When it was last seen.
    pub(super) fn seen(&self) -> Option<Timestamp> {
        let series = self.series.as_ref().and_then(|series| series.last_observed_time);
        series
            .or(self.last_timestamp)
            .or(self.event_time)
            .or(self.metadata.creation_timestamp)
    }
}

/// A time that cannot be read is one that is not known.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.and_then(|text| text.parse().ok()))
}
