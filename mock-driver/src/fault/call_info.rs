//! What rules see of a call.

use super::reservation::{ReservationKey, Reservations};

const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";
const CREATE: &str = "/csi.v1.Controller/CreateVolume";

/// A call, as far as rules look at it. Empty text stands for a field the call has not.
pub trait CallInfo {
    /// The RPC's path.
    fn path(&self) -> &str;
    /// The volume's id.
    fn volume(&self) -> &str;
    /// The node's id.
    fn node(&self) -> &str;
    /// The name of what is to be created.
    fn name(&self) -> &str;
    /// An entry of one of the request's maps.
    fn entry(&self, field: &str, key: &str) -> Option<String>;
    /// Whether it continues a list by a token.
    fn continues(&self) -> bool {
        false
    }
    /// Whether it is a call to the array that changes it.
    fn changes(&self) -> bool {
        false
    }
    /// What the array holds, with what other calls have reserved.
    fn usage(&self, _reserved: &Reservations) -> ArrayUsage {
        ArrayUsage::default()
    }
    /// The bytes that are asked for; 0 if none are.
    fn size(&self) -> u64;
    /// Where the volume is; none if unknown.
    fn place(&self) -> Option<VolumeLocation>;
}

/// Where a volume is, seen from a call for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeLocation {
    /// The array has it.
    pub(crate) exists: bool,
    /// It is attached to the node the call names.
    pub(crate) here: bool,
    /// It is attached to another node, or to any if the call names none.
    pub(crate) elsewhere: bool,
}

/// What the array holds, and what other calls are about to take of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayUsage {
    pub(crate) volumes: u64,
    pub(crate) bytes: u64,
    /// The bytes the call asks for.
    pub(crate) asked: u64,
    /// How many volumes the node of the call has.
    pub(crate) on_node: u64,
    /// What the call asks for is there already.
    pub(crate) is_repeat: bool,
}

/// Whether the array answers calls of a method. Nodes and Identity answer without it.
pub(super) fn is_for_array(path: &str) -> bool {
    !path.starts_with("/csi.v1.Node/") && !path.starts_with("/csi.v1.Identity/")
}

/// What a call reserves while it runs, if it takes anything that limits count.
pub(super) fn reservation_key(call: &dyn CallInfo) -> Option<ReservationKey> {
    match call.path() {
        PUBLISH => Some(ReservationKey::Attach {
            node: call.node().to_owned(),
            volume: call.volume().to_owned(),
        }),
        CREATE => Some(ReservationKey::Create {
            name: call.name().to_owned(),
        }),
        _ => None,
    }
}
