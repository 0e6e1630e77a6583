//! Claims and volumes: the PV controller of kube-controller-manager with its protection and ephemeral volume
//! controllers, and the external-provisioner.

mod claims;
mod decision;
mod ephemeral;
mod protection;
mod provisioned_volume;
mod provisioner;
mod pv_controller;
mod reclaim;
mod waiting_claims;

use crate::informer::Key;

pub(crate) use claims::{
    ANN_BIND_COMPLETED, ANN_BOUND_BY_CONTROLLER, ANN_SELECTED_NODE, NOT_SUPPORTED_PROVISIONER, claim_phase,
    class_name, find_matching_volume, is_delay_binding_mode, is_reachable, is_volume_bound_to_claim,
    requested_bytes,
};
pub(crate) use ephemeral::EphemeralVolumeController;
pub(crate) use protection::ProtectionController;
pub(crate) use provisioner::Provisioner;
pub(crate) use pv_controller::PersistentVolumeController;

/// A work item of a controller: a claim or a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Claim(Key),
    Volume(String),
}
