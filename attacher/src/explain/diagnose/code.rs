//! What the driver's gRPC codes mean to the person who reads them.

use crate::csi::Code;
use crate::model::wire::VolumeErrorObject;

/// What a code means for ControllerPublishVolume and ControllerUnpublishVolume: CSI's error scheme, in
/// plain words.
pub(super) fn meaning(code: Code) -> &'static str {
    match code.number() {
        0 => "the driver answered OK",
        1 => {
            "the call was cancelled before it was answered; whether the volume was attached or detached is not known"
        }
        2 => "the driver failed in a way that it does not name",
        3 => {
            "the driver finds the request itself wrong: the volume's handle or the node's id is not one of its own, or it cannot do what the volume asks for"
        }
        4 => {
            "the driver did not answer in time; the call may still be going on, and it is repeated until its end is known"
        }
        5 => "the storage knows no such volume, or no such node",
        6 => {
            "the volume is already attached there, but in another way than is asked for now (read-only, or another access mode)"
        }
        7 => "the driver's credentials do not allow it",
        8 => "the node has as many volumes attached as it can take",
        9 => {
            "the storage is not in a state that allows it: mostly the volume is still attached to another node"
        }
        10 => "another operation on the same volume is still under way",
        11 => "a value is out of the driver's range",
        12 => "the driver does not do this at all",
        13 => "something inside the driver or its storage is broken",
        14 => "the driver, or the storage behind it, cannot be reached at the moment",
        15 => "the storage lost data",
        16 => "the storage does not accept the driver's credentials",
        _ => "a code that gRPC does not define",
    }
}

/// What helps. Neither the attacher nor Kubernetes can mend what the driver reports.
pub(super) fn advice(code: Code) -> &'static str {
    match code.number() {
        3 => {
            "Compare the handle of the PersistentVolume and the node id in the CSINode with what the storage knows."
        }
        5 => {
            "Look whether volume and node exist at the storage. A volume that was deleted there does not come back by waiting."
        }
        6 | 9 => "Look at the storage where the volume is attached, and detach it there if nobody uses it.",
        7 | 16 => "Check the driver's credentials (its Secrets, or the identity that its pods run under).",
        8 => "Move a pod away from the node, or let pods go to nodes with free places.",
        4 | 10 | 14 => {
            "This passes by itself when the driver does its work; look at the driver's log if it does not."
        }
        _ => "Look at the driver's log.",
    }
}

/// The code of an error: its number where the attacher wrote one, else the word in its text, which is all
/// that older sidecars tell.
pub(super) fn of(error: &VolumeErrorObject) -> Option<Code> {
    let number = error.error_code.and_then(Code::from_number);
    number.or_else(|| {
        let rest = error.message.as_deref()?.split_once("rpc error: code = ")?.1;
        Code::named(rest.split(' ').next()?)
    })
}
