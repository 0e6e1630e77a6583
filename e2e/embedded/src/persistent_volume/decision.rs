//! The PV controller's decision on a claim or a volume, as pure functions of a snapshot of the stores.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use super::claims::{
    ANN_BIND_COMPLETED, ANN_MIGRATED_TO, ANN_PROVISIONED_BY, ANN_SELECTED_NODE, NOT_SUPPORTED_PROVISIONER,
    annotation, claim_phase, class_name, find_by_claim, is_delay_binding_mode, is_volume_bound_to_claim,
    mismatch, volume_phase,
};
use crate::event_recorder::EventType;

/// The action for a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ClaimAction {
    Nothing,
    Bind(String),
    /// Wait for a provisioner.
    Provision(String),
    /// No volume to bind yet: the event's type, reason and message.
    Wait(EventType, &'static str, String),
    /// The scheduler chooses the volume and the node of its pod together.
    WaitForFirstConsumer,
    /// The volume that the claim names does not exist yet.
    WaitForVolume,
    /// The volume was deleted or is bound to another claim: the event's reason and message.
    Lost(&'static str, &'static str),
}

/// The action for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeAction {
    Nothing,
    SetPhase(&'static str),
    /// No plugin of the controller can delete the released volume.
    FailDelete,
    /// Unbind the volume: its claim is bound to another one.
    Unbind,
}

pub(crate) fn decide_claim(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    class: Option<&StorageClass>,
) -> ClaimAction {
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let wanted = wanted.filter(|name| !name.is_empty());
    let volume = wanted.and_then(|name| {
        volumes
            .iter()
            .find(|volume| volume.metadata.name.as_deref() == Some(name))
    });
    if annotation(claim, ANN_BIND_COMPLETED).is_some() {
        return decide_bound_claim(claim, wanted, volume.map(|volume| &**volume));
    }
    match (wanted, volume) {
        (None, _) => decide_unbound_claim(claim, volumes, class),
        (Some(_), None) => ClaimAction::WaitForVolume,
        (Some(name), Some(volume)) => {
            let free = volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none());
            if let Some(why) = mismatch(claim, volume).filter(|_| free) {
                let message = format!("Cannot bind to requested volume {name:?}: {why}");
                ClaimAction::Wait(EventType::Warning, "VolumeMismatch", message)
            } else if free || is_volume_bound_to_claim(volume, claim) {
                ClaimAction::Bind(name.to_owned())
            } else {
                let message = format!("volume {name:?} already bound to a different claim.");
                ClaimAction::Wait(EventType::Warning, "FailedBinding", message)
            }
        }
    }
}

fn decide_unbound_claim(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    class: Option<&StorageClass>,
) -> ClaimAction {
    let is_delay_binding = class.is_some_and(is_delay_binding_mode);
    let is_delayed = is_delay_binding && annotation(claim, ANN_SELECTED_NODE).is_none();
    // With WaitForFirstConsumer the scheduler chooses the volume.
    let candidates = volumes.iter().map(|volume| &**volume);
    if let Some(volume) = find_by_claim(claim, candidates, is_delay_binding) {
        return ClaimAction::Bind(volume.metadata.name.clone().unwrap_or_default());
    }
    if is_delayed {
        return ClaimAction::WaitForFirstConsumer;
    }
    match class {
        Some(class) if class.provisioner != NOT_SUPPORTED_PROVISIONER => {
            ClaimAction::Provision(class.provisioner.clone())
        }
        Some(class) => ClaimAction::Wait(
            EventType::Warning,
            "ProvisioningFailed",
            format!("no volume plugin matched name: {}", class.provisioner),
        ),
        None if class_name(claim).is_empty() => ClaimAction::Wait(
            EventType::Normal,
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set".to_owned(),
        ),
        None => ClaimAction::Wait(
            EventType::Warning,
            "ProvisioningFailed",
            format!("storageclass.storage.k8s.io {:?} not found", class_name(claim)),
        ),
    }
}

fn decide_bound_claim(
    claim: &PersistentVolumeClaim,
    wanted: Option<&str>,
    volume: Option<&PersistentVolume>,
) -> ClaimAction {
    let Some(name) = wanted else {
        return ClaimAction::Lost(
            "ClaimLost",
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
        );
    };
    let Some(volume) = volume else {
        return ClaimAction::Lost(
            "ClaimLost",
            "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
        );
    };
    let owner = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    if owner.is_some() && !is_volume_bound_to_claim(volume, claim) {
        return ClaimAction::Lost(
            "ClaimMisbound",
            "Two claims are bound to the same volume, this one is bound incorrectly",
        );
    }
    let complete = owner.is_some() && claim_phase(claim) == "Bound" && volume_phase(volume) == "Bound";
    if complete {
        ClaimAction::Nothing
    } else {
        ClaimAction::Bind(name.to_owned())
    }
}

pub(crate) fn decide_volume(
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
) -> VolumeAction {
    let owner = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let phase = |phase: &'static str| {
        let failed = phase == "Released" && volume_phase(volume) == "Failed";
        if failed || volume_phase(volume) == phase {
            VolumeAction::Nothing
        } else {
            VolumeAction::SetPhase(phase)
        }
    };
    let Some(owner) = owner else {
        return phase("Available");
    };
    // Pre-bound by a user; the claim will be bound.
    let Some(uid) = owner.uid.as_deref().filter(|uid| !uid.is_empty()) else {
        return phase("Available");
    };
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let is_provisioned = annotation(volume, ANN_PROVISIONED_BY).is_some() && policy == Some("Delete");
    let Some(claim) = claim.filter(|claim| claim.metadata.uid.as_deref() == Some(uid)) else {
        // A provisioner deletes the volumes that it has provisioned.
        let has_deleter = is_provisioned || annotation(volume, ANN_MIGRATED_TO).is_some();
        let is_csi = spec.is_some_and(|spec| spec.csi.is_some());
        return if volume_phase(volume) == "Released" && policy == Some("Delete") && is_csi && !has_deleter {
            VolumeAction::FailDelete
        } else {
            phase("Released")
        };
    };
    let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    match wanted.filter(|name| !name.is_empty()) {
        // The claim's own sync completes the binding.
        None => VolumeAction::Nothing,
        Some(name) if Some(name) == volume.metadata.name.as_deref() => phase("Bound"),
        // Provisioned for the claim: the provisioner deletes it.
        Some(_) if is_provisioned => phase("Released"),
        Some(_) => VolumeAction::Unbind,
    }
}

#[cfg(test)]
mod tests;
