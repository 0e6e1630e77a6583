//! gRPC codes: their meaning for ControllerPublishVolume and ControllerUnpublishVolume by CSI's error scheme, and the
//! remedy.

use k8s_openapi::api::storage::v1::VolumeError;

/// One code.
pub(super) struct Code {
    pub(super) number: i32,
    /// In Go's spelling, as it is in the text of errors.
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    pub(super) advice: &'static str,
}

pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
/// Drivers return it when the volume is attached to another node.
pub(super) const FAILED_PRECONDITION: i32 = 9;

const READ_LOG: &str = "Look at the driver's log.";
const TRANSIENT: &str = "The attacher repeats the call in its turn on the node, or once a driver that is down answers again: `why` of the item on the attacher's /statusz says for which it waits. Look at the driver's log if that lasts.";
const DETACH_THERE: &str =
    "Look at the storage where the volume is attached, and detach it there if it is not in use.";
const CREDENTIALS: &str =
    "Check the driver's credentials (its Secrets, or the identity that its pods run under).";

/// In the order of their numbers.
const CODES: [Code; 17] = [
    code(0, "OK", "the driver answered OK", READ_LOG),
    code(
        1,
        "Canceled",
        "the call was cancelled before it was answered; whether the volume was attached or detached is unknown",
        READ_LOG,
    ),
    code(
        2,
        "Unknown",
        "the driver failed without naming the cause",
        READ_LOG,
    ),
    code(
        3,
        "InvalidArgument",
        "the driver rejects the request: the volume handle or the node id is not one of its own, or it does not \
         support what the volume asks for",
        "Compare the handle of the PersistentVolume and the node id in the CSINode with the storage.",
    ),
    code(
        4,
        "DeadlineExceeded",
        "the driver did not answer in time; the call may still be running, and the attacher repeats it until its \
         result is known",
        TRANSIENT,
    ),
    code(
        5,
        "NotFound",
        "the storage has no such volume, or no such node",
        "Look whether volume and node exist at the storage. A volume that was deleted there does not come back by \
         waiting.",
    ),
    code(
        6,
        "AlreadyExists",
        "the volume is already attached there, but in another way than requested now (read-only, or another access \
         mode)",
        DETACH_THERE,
    ),
    code(
        7,
        "PermissionDenied",
        "the driver's credentials do not allow it",
        CREDENTIALS,
    ),
    code(
        RESOURCE_EXHAUSTED,
        "ResourceExhausted",
        "the node has its maximum of attached volumes",
        "Move a pod away from the node, or let pods run on nodes with free capacity.",
    ),
    code(
        FAILED_PRECONDITION,
        "FailedPrecondition",
        "the storage is not in a state that allows it: mostly the volume is still attached to another node",
        DETACH_THERE,
    ),
    code(
        10,
        "Aborted",
        "another operation on the same volume or node is still under way",
        TRANSIENT,
    ),
    code(11, "OutOfRange", "a value is out of the driver's range", READ_LOG),
    code(
        12,
        "Unimplemented",
        "the driver does not implement the call",
        READ_LOG,
    ),
    code(13, "Internal", "the driver or its storage is broken", READ_LOG),
    code(
        14,
        "Unavailable",
        "the driver, or the storage behind it, cannot be reached at the moment",
        TRANSIENT,
    ),
    code(15, "DataLoss", "the storage lost data", READ_LOG),
    code(
        16,
        "Unauthenticated",
        "the storage does not accept the driver's credentials",
        CREDENTIALS,
    ),
];

/// The code of an error: `errorCode` if the attacher wrote it, else the name in the message, because older sidecars
/// write only that.
pub(super) fn of(error: &VolumeError) -> Option<&'static Code> {
    let number = error.error_code;
    let by_number = number.and_then(|number| CODES.iter().find(|code| code.number == number));
    by_number.or_else(|| {
        let rest = error.message.as_deref()?.split_once("rpc error: code = ")?.1;
        let name = rest.split(' ').next()?;
        CODES.iter().find(|code| code.name == name)
    })
}

const fn code(number: i32, name: &'static str, meaning: &'static str, advice: &'static str) -> Code {
    Code {
        number,
        name,
        meaning,
        advice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_code_takes_precedence_over_the_message() {
        for (error_code, message, name) in [
            (Some(13), "boom", Some("Internal")),
            (
                Some(8),
                "rpc error: code = Aborted desc = busy",
                Some("ResourceExhausted"),
            ),
            (None, "rpc error: code = Aborted desc = busy", Some("Aborted")),
            (Some(17), "rpc error: code = Canceled desc = ", Some("Canceled")),
            (None, "rpc error: code = Code(17) desc = odd", None),
            (None, "failed to load secret", None),
        ] {
            let error = VolumeError {
                error_code,
                message: Some(message.to_owned()),
                time: None,
            };
            assert_eq!(of(&error).map(|code| code.name), name, "{error_code:?} {message}");
        }
        assert!(CODES.iter().zip(0..).all(|(code, number)| code.number == number));
    }
}
