//! Accessors for Kubernetes objects: an absent string reads as empty, an absent list as one without items.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ContainerStatus, Event, Node, NodeCondition, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition,
    Taint,
};
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, VolumeAttachment, VolumeError};
use kube::Resource;

use crate::snapshot::NamespacedName;

/// `metadata` of any object.
pub(crate) trait ObjectExt {
    fn name(&self) -> &str;
    fn namespace(&self) -> &str;
    fn uid(&self) -> &str;
    fn created_at(&self) -> Option<Timestamp>;
    fn deleted_at(&self) -> Option<Timestamp>;
    fn finalizers(&self) -> &[String];
    fn annotation(&self, key: &str) -> Option<&str>;
    /// When `manager` last wrote the object (`subresource` empty) or its subresource. Only managedFields show
    /// when an attachment was recorded or became attached.
    fn written_by(&self, manager: &str, subresource: &str) -> Option<Timestamp>;
}

pub(crate) trait PodExt {
    /// The node that the pod is scheduled to; empty if none.
    fn node_name(&self) -> &str;
    fn phase(&self) -> &str;
    /// The claims that the pod mounts, each with the pod's name for the volume.
    fn claims(&self) -> impl Iterator<Item = (&str, NamespacedName)>;
    /// Whether the pod is in a terminal phase and needs no volume any more.
    fn is_terminated(&self) -> bool;
    /// Whether the pod does not run yet, or is to end.
    fn is_waiting(&self) -> bool;
    fn condition(&self, kind: &str) -> Option<&PodCondition>;
    /// Init containers, then containers.
    fn container_statuses(&self) -> impl Iterator<Item = &ContainerStatus>;
}

pub(crate) trait ClaimExt {
    /// The PersistentVolume that the claim names.
    fn volume_name(&self) -> Option<&str>;
    fn storage_class(&self) -> &str;
    fn phase(&self) -> &str;
}

pub(crate) trait VolumeExt {
    fn phase(&self) -> &str;
    fn phase_since(&self) -> Option<Timestamp>;
    fn reclaim_policy(&self) -> &str;
    fn access_modes(&self) -> &[String];
    /// The claim in `spec.claimRef`.
    fn claim(&self) -> Option<NamespacedName>;
    /// The claim's UID in `spec.claimRef`; empty before the volume is bound.
    fn claim_uid(&self) -> &str;
}

pub(crate) trait AttachmentExt {
    /// The PersistentVolume in `spec.source`.
    fn volume_name(&self) -> Option<&str>;
    fn is_inline(&self) -> bool;
    fn is_attached(&self) -> bool;
    /// Whether it is to be attached or detached.
    fn is_unfinished(&self) -> bool;
    fn attach_error(&self) -> Option<&VolumeError>;
    fn detach_error(&self) -> Option<&VolumeError>;
}

pub(crate) trait NodeExt {
    fn ready(&self) -> Option<&NodeCondition>;
    fn taints(&self) -> &[Taint];
    /// Whether `status.volumesAttached` lists the volume.
    fn lists_attached(&self, unique_name: &str) -> bool;
    /// Whether `status.volumesInUse` lists the volume.
    fn lists_in_use(&self, unique_name: &str) -> bool;
}

pub(crate) trait CsiNodeExt {
    fn driver(&self, name: &str) -> Option<&CSINodeDriver>;
}

pub(crate) trait LeaseExt {
    fn holder(&self) -> &str;
    fn renewed_at(&self) -> Option<Timestamp>;
    fn duration_seconds(&self) -> i32;
    /// When the lease expires, or expired.
    fn expires_at(&self) -> Option<Timestamp>;
}

pub(crate) trait EventExt {
    fn reason(&self) -> &str;
    fn message(&self) -> &str;
    fn last_seen(&self) -> Option<Timestamp>;
}

// === impl ObjectExt ===

impl<T: Resource> ObjectExt for T {
    fn name(&self) -> &str {
        text(&self.meta().name)
    }

    fn namespace(&self) -> &str {
        text(&self.meta().namespace)
    }

    fn uid(&self) -> &str {
        text(&self.meta().uid)
    }

    fn created_at(&self) -> Option<Timestamp> {
        self.meta().creation_timestamp.as_ref().map(|time| time.0)
    }

    fn deleted_at(&self) -> Option<Timestamp> {
        self.meta().deletion_timestamp.as_ref().map(|time| time.0)
    }

    fn finalizers(&self) -> &[String] {
        list(&self.meta().finalizers)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        Some(self.meta().annotations.as_ref()?.get(key)?)
    }

    fn written_by(&self, manager: &str, subresource: &str) -> Option<Timestamp> {
        list(&self.meta().managed_fields)
            .iter()
            .filter(|entry| text(&entry.manager) == manager && text(&entry.subresource) == subresource)
            .filter_map(|entry| Some(entry.time.as_ref()?.0))
            .max()
    }
}

// === impl PodExt ===

impl PodExt for Pod {
    fn is_waiting(&self) -> bool {
        self.phase() == "Pending" || self.deleted_at().is_some()
    }

    fn node_name(&self) -> &str {
        self.spec.as_ref().map_or("", |spec| text(&spec.node_name))
    }

    fn phase(&self) -> &str {
        self.status.as_ref().map_or("", |status| text(&status.phase))
    }

    fn claims(&self) -> impl Iterator<Item = (&str, NamespacedName)> {
        let volumes = self.spec.as_ref().map_or(&[][..], |spec| list(&spec.volumes));
        volumes.iter().filter_map(|volume| {
            let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(claim), _) => claim.claim_name.clone(),
                // The claim of a generic ephemeral volume is named after its pod and volume.
                (None, Some(_)) => format!("{}-{}", self.name(), volume.name),
                (None, None) => return None,
            };
            Some((
                volume.name.as_str(),
                NamespacedName::new(self.namespace(), &claim),
            ))
        })
    }

    fn is_terminated(&self) -> bool {
        matches!(self.phase(), "Succeeded" | "Failed")
    }

    fn condition(&self, kind: &str) -> Option<&PodCondition> {
        let conditions = list(&self.status.as_ref()?.conditions);
        conditions.iter().find(|condition| condition.type_ == kind)
    }

    fn container_statuses(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.status.iter().flat_map(|status| {
            list(&status.init_container_statuses)
                .iter()
                .chain(list(&status.container_statuses))
        })
    }
}

// === impl ClaimExt ===

impl ClaimExt for PersistentVolumeClaim {
    fn volume_name(&self) -> Option<&str> {
        let name = self.spec.as_ref()?.volume_name.as_deref();
        name.filter(|name| !name.is_empty())
    }

    fn storage_class(&self) -> &str {
        self.spec
            .as_ref()
            .map_or("", |spec| text(&spec.storage_class_name))
    }

    fn phase(&self) -> &str {
        self.status.as_ref().map_or("", |status| text(&status.phase))
    }
}

// === impl VolumeExt ===

impl VolumeExt for PersistentVolume {
    fn phase(&self) -> &str {
        self.status.as_ref().map_or("", |status| text(&status.phase))
    }

    fn phase_since(&self) -> Option<Timestamp> {
        Some(self.status.as_ref()?.last_phase_transition_time.as_ref()?.0)
    }

    fn reclaim_policy(&self) -> &str {
        self.spec
            .as_ref()
            .map_or("", |spec| text(&spec.persistent_volume_reclaim_policy))
    }

    fn access_modes(&self) -> &[String] {
        self.spec.as_ref().map_or(&[], |spec| list(&spec.access_modes))
    }

    fn claim(&self) -> Option<NamespacedName> {
        let claim = self.spec.as_ref()?.claim_ref.as_ref()?;
        Some(NamespacedName::new(text(&claim.namespace), text(&claim.name)))
    }

    fn claim_uid(&self) -> &str {
        let claim = self.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        claim.map_or("", |claim| text(&claim.uid))
    }
}

// === impl AttachmentExt ===

impl AttachmentExt for VolumeAttachment {
    fn is_unfinished(&self) -> bool {
        !self.is_attached() || self.deleted_at().is_some()
    }

    fn volume_name(&self) -> Option<&str> {
        self.spec.source.persistent_volume_name.as_deref()
    }

    fn is_inline(&self) -> bool {
        self.spec.source.inline_volume_spec.is_some()
    }

    fn is_attached(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.attached)
    }

    fn attach_error(&self) -> Option<&VolumeError> {
        self.status.as_ref()?.attach_error.as_ref()
    }

    fn detach_error(&self) -> Option<&VolumeError> {
        self.status.as_ref()?.detach_error.as_ref()
    }
}

// === impl NodeExt ===

impl NodeExt for Node {
    fn ready(&self) -> Option<&NodeCondition> {
        let conditions = list(&self.status.as_ref()?.conditions);
        conditions.iter().find(|condition| condition.type_ == "Ready")
    }

    fn taints(&self) -> &[Taint] {
        self.spec.as_ref().map_or(&[], |spec| list(&spec.taints))
    }

    fn lists_attached(&self, unique_name: &str) -> bool {
        let volumes = self
            .status
            .as_ref()
            .map_or(&[][..], |status| list(&status.volumes_attached));
        volumes.iter().any(|volume| volume.name == unique_name)
    }

    fn lists_in_use(&self, unique_name: &str) -> bool {
        let volumes = self
            .status
            .as_ref()
            .map_or(&[][..], |status| list(&status.volumes_in_use));
        volumes.iter().any(|volume| volume == unique_name)
    }
}

// === impl CsiNodeExt ===

impl CsiNodeExt for CSINode {
    fn driver(&self, name: &str) -> Option<&CSINodeDriver> {
        self.spec.drivers.iter().find(|driver| driver.name == name)
    }
}

// === impl LeaseExt ===

impl LeaseExt for Lease {
    fn holder(&self) -> &str {
        self.spec.as_ref().map_or("", |spec| text(&spec.holder_identity))
    }

    fn renewed_at(&self) -> Option<Timestamp> {
        Some(self.spec.as_ref()?.renew_time.as_ref()?.0)
    }

    fn duration_seconds(&self) -> i32 {
        let spec = self.spec.as_ref();
        spec.and_then(|spec| spec.lease_duration_seconds)
            .unwrap_or_default()
    }

    fn expires_at(&self) -> Option<Timestamp> {
        let duration = SignedDuration::from_secs(i64::from(self.duration_seconds()));
        self.renewed_at()?.checked_add(duration).ok()
    }
}

// === impl EventExt ===

impl EventExt for Event {
    fn reason(&self) -> &str {
        text(&self.reason)
    }

    fn message(&self) -> &str {
        text(&self.message)
    }

    fn last_seen(&self) -> Option<Timestamp> {
        let series = self
            .series
            .as_ref()
            .and_then(|series| Some(series.last_observed_time.as_ref()?.0));
        series
            .or_else(|| Some(self.last_timestamp.as_ref()?.0))
            .or_else(|| Some(self.event_time.as_ref()?.0))
            .or_else(|| self.created_at())
    }
}

/// An optional string; empty when absent.
pub(crate) fn text(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or_default()
}

fn list<T>(value: &Option<Vec<T>>) -> &[T] {
    value.as_deref().unwrap_or_default()
}
