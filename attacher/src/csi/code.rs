//! gRPC codes: Go's names, and their classes for the retry.

use std::error::Error as _;
use std::fmt;

use tonic::Status;

use crate::leader_election::NotLeading;
use crate::workqueue::{Class, Outcome};

/// A gRPC status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(tonic::Code);

/// A failed call. Its text is grpc-go's, which existing statuses, events and runbooks contain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code} desc = {message}")]
pub struct CallError {
    /// The gRPC code.
    pub code: Code,
    /// The driver's message.
    pub message: String,
    /// Whether the driver may have received the call.
    pub reach: Reach,
}

/// How far a call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The driver responded, or the deadline was exceeded.
    Answered,
    /// The stream was reset, or the response was broken, so the driver may have executed the call.
    Reset,
    /// The connection was lost during the call.
    Interrupted,
    /// This replica cancelled the call because its leadership paused; the driver may still execute it.
    Cancelled,
    /// Not connected, so nothing was sent.
    NotConnected,
    /// This replica does not lead or is shutting down, so nothing was sent.
    NotSent,
}

// === impl Code ===

impl Code {
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        let code = Self(tonic::Code::from_i32(number));
        (code.number() == number).then_some(code)
    }

    /// The code of this name in Go's error texts.
    pub fn named(spelt: &str) -> Option<Self> {
        const CODES: i32 = 17;
        let mut codes = (0..CODES).filter_map(Self::from_number);
        codes.find(|code| code.to_string() == spelt)
    }

    /// `errorCode` of a VolumeError.
    pub fn number(self) -> i32 {
        self.0.into()
    }

    /// Its name, in Go's spelling.
    pub fn name(self) -> &'static str {
        use tonic::Code::*;
        match self.0 {
            Ok => "OK",
            Cancelled => "Canceled",
            Unknown => "Unknown",
            InvalidArgument => "InvalidArgument",
            DeadlineExceeded => "DeadlineExceeded",
            NotFound => "NotFound",
            AlreadyExists => "AlreadyExists",
            PermissionDenied => "PermissionDenied",
            ResourceExhausted => "ResourceExhausted",
            FailedPrecondition => "FailedPrecondition",
            Aborted => "Aborted",
            OutOfRange => "OutOfRange",
            Unimplemented => "Unimplemented",
            Internal => "Internal",
            Unavailable => "Unavailable",
            DataLoss => "DataLoss",
            Unauthenticated => "Unauthenticated",
        }
    }

    /// Whether the operation is certainly not running any more (CSI specification, "Error Scheme"; the set of kubelet and the Go
    /// sidecars).
    pub(crate) fn is_final(self) -> bool {
        use tonic::Code::*;
        match self.0 {
            Cancelled | DeadlineExceeded | Unavailable | ResourceExhausted | Aborted => false,
            Ok | Unknown | InvalidArgument | NotFound | AlreadyExists | PermissionDenied
            | FailedPrecondition | OutOfRange | Unimplemented | Internal | DataLoss | Unauthenticated => true,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<tonic::Code> for Code {
    fn from(code: tonic::Code) -> Self {
        Self(code)
    }
}

// === impl CallError ===

impl CallError {
    pub(crate) fn deadline_exceeded() -> Self {
        Self {
            code: Code(tonic::Code::DeadlineExceeded),
            message: "context deadline exceeded".to_owned(),
            reach: Reach::Answered,
        }
    }

    /// The stream was reset and the connection is not lost: the result is unknown. Codes and text are grpc-go's.
    fn reset(reset: &h2::Error) -> Self {
        let reason = reset.reason();
        let code = match reason {
            Some(h2::Reason::REFUSED_STREAM) => tonic::Code::Unavailable,
            Some(h2::Reason::CANCEL) => tonic::Code::Cancelled,
            Some(h2::Reason::ENHANCE_YOUR_CALM | h2::Reason::FLOW_CONTROL_ERROR) => {
                tonic::Code::ResourceExhausted
            }
            Some(h2::Reason::INADEQUATE_SECURITY) => tonic::Code::PermissionDenied,
            Some(_) | None => tonic::Code::Internal,
        };
        let reason = reason.map(|reason| format!("{reason:?}")).unwrap_or_default();
        Self {
            code: Code(code),
            message: format!("stream terminated by RST_STREAM with error code: {reason}"),
            reach: Reach::Reset,
        }
    }

    pub(crate) fn not_connected(message: impl Into<String>) -> Self {
        let code = Code(tonic::Code::Unavailable);
        Self {
            code,
            message: message.into(),
            reach: Reach::NotConnected,
        }
    }

    /// Leadership paused during the call. Neither status nor Events report it.
    pub(super) fn cancelled() -> Self {
        Self {
            code: Code(tonic::Code::Cancelled),
            message: "the call was cancelled: the lease was not renewed in time".to_owned(),
            reach: Reach::Cancelled,
        }
    }

    /// Leadership ended. Neither status nor Events report it.
    pub(crate) fn not_sent(message: impl Into<String>) -> Self {
        Self {
            reach: Reach::NotSent,
            ..Self::not_connected(message)
        }
    }

    /// Whether the driver may have executed the call, or may still execute it.
    pub fn may_have_taken_effect(&self) -> bool {
        match self.reach {
            Reach::Answered => !self.code.is_final(),
            Reach::Reset | Reach::Interrupted | Reach::Cancelled => true,
            Reach::NotConnected | Reach::NotSent => false,
        }
    }

    /// Whether the call was ended, not answered.
    pub(super) fn is_cut_off(&self) -> bool {
        match self.reach {
            Reach::Reset | Reach::Interrupted | Reach::Cancelled => true,
            Reach::Answered => self.code.0 == tonic::Code::Cancelled,
            Reach::NotConnected | Reach::NotSent => false,
        }
    }

    /// What the failure says about the limits of the driver.
    pub(crate) fn outcome(&self) -> Outcome {
        use tonic::Code::*;
        let is_final = matches!(self.code.0, Unknown | Internal);
        match self.reach {
            Reach::Answered | Reach::Reset if is_final || !self.code.is_final() => {
                Outcome::Failed(self.code.0.into())
            }
            Reach::Answered
            | Reach::Reset
            | Reach::Interrupted
            | Reach::Cancelled
            | Reach::NotConnected
            | Reach::NotSent => Outcome::Unrelated,
        }
    }

    /// The class of the failure for the backoff.
    pub fn class(&self) -> Class {
        match self.reach {
            Reach::NotConnected => Class::Disconnected,
            Reach::Interrupted => Class::Interrupted,
            Reach::Answered | Reach::Reset if self.code.is_final() => Class::Final,
            Reach::Answered | Reach::Reset | Reach::Cancelled | Reach::NotSent => Class::Uncertain,
        }
    }
}

impl From<NotLeading> for CallError {
    fn from(reason: NotLeading) -> Self {
        Self::not_sent(reason.to_string())
    }
}

impl From<Status> for CallError {
    /// Distinguishes the driver's codes from tonic's own. tonic differs from grpc-go in three ways: a connection that is lost
    /// during a call is UNKNOWN and a response that is too large OUT_OF_RANGE, which would both be final, and an exceeded
    /// deadline is CANCELLED.
    fn from(status: Status) -> Self {
        const TONIC_TIMEOUT: &str = "Timeout expired";
        if status.code() == tonic::Code::Cancelled && status.message() == TONIC_TIMEOUT {
            return Self::deadline_exceeded();
        }
        if let Some(too_large) = too_large(&status) {
            return Self {
                code: Code(tonic::Code::ResourceExhausted),
                message: too_large,
                reach: Reach::Answered,
            };
        }
        // A status of the driver has no source; tonic's own has.
        if let Some(reset) = status.source().and_then(reset_of_a_call) {
            return Self::reset(reset);
        }
        let lost = |source: &&(dyn std::error::Error + 'static)| {
            source.is::<tonic::transport::Error>() || Code(status.code()).is_final()
        };
        if let Some(source) = status.source().filter(lost) {
            let chain = || std::iter::successors(Some(source), |&error| error.source());
            let cause = chain()
                .last()
                .map_or_else(|| status.message().to_owned(), ToString::to_string);
            if chain().any(is_unsent) {
                return Self::not_connected(format!(
                    "the connection to the CSI driver was lost before the call: {cause}"
                ));
            }
            return Self {
                code: Code(tonic::Code::Unavailable),
                message: format!("connection to the CSI driver was lost: {cause}"),
                reach: Reach::Interrupted,
            };
        }
        Self {
            code: Code(status.code()),
            message: status.message().to_owned(),
            reach: match is_broken_response(&status) {
                true => Reach::Reset,
                false => Reach::Answered,
            },
        }
    }
}

/// Whether tonic made the status of a response that ends too early or cannot be read, so that the driver's own status is unknown.
/// It has no source then, and its code is final. hyper hides `RST_STREAM` with `NO_ERROR`: the response just ends.
fn is_broken_response(status: &Status) -> bool {
    const TONIC: [&str; 5] = [
        "protocol error: ",
        "grpc-status header missing, mapped from HTTP status code ",
        "Missing response message.",
        "Unexpected EOF decoding stream.",
        "failed to decode Protobuf message",
    ];
    TONIC.iter().any(|text| status.message().starts_with(text))
}

/// grpc-go's message for a response that is too large. The driver may have executed the call, so tonic's OUT_OF_RANGE, which
/// is final, would be wrong.
fn too_large(status: &Status) -> Option<String> {
    const TONIC: &str = "Error, decoded message length too large: found ";
    let sizes = status.message().strip_prefix(TONIC)?.strip_suffix(" bytes")?;
    let (found, limit) = sizes.split_once(" bytes, the limit is: ")?;
    (status.code() == tonic::Code::OutOfRange)
        .then(|| format!("grpc: received message larger than max ({found} vs. {limit})"))
}

/// The error of a reset of the call, not of the connection.
fn reset_of_a_call<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e h2::Error> {
    std::iter::successors(Some(error), |&error| error.source())
        .find_map(|error| error.downcast_ref::<h2::Error>())
        .filter(|error| error.is_reset())
}

/// Whether there was no connection, or it was closed (EOF or GOAWAY) while the call was queued for it.
fn is_unsent(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<tonic::ConnectError>()
        || error
            .downcast_ref::<hyper::Error>()
            .is_some_and(hyper::Error::is_canceled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_large_response_is_uncertain_with_the_text_of_grpc_go() {
        let tonic =
            "Error, decoded message length too large: found 5000132 bytes, the limit is: 4194304 bytes";
        let error = CallError::from(Status::out_of_range(tonic));
        assert_eq!(
            error.to_string(),
            "rpc error: code = ResourceExhausted desc = grpc: received message larger than max (5000132 vs. 4194304)"
        );
        assert_eq!(error.class(), Class::Uncertain);
        let driver = CallError::from(Status::out_of_range("the volume is too large"));
        assert_eq!((driver.code.number(), driver.class()), (11, Class::Final));
    }

    #[test]
    fn codes_have_names_of_go_and_classes_of_kubelet() {
        use tonic::Code::*;
        for (code, spelt, is_final) in [
            (Ok, "OK", true),
            (Cancelled, "Canceled", false),
            (Unknown, "Unknown", true),
            (InvalidArgument, "InvalidArgument", true),
            (DeadlineExceeded, "DeadlineExceeded", false),
            (NotFound, "NotFound", true),
            (AlreadyExists, "AlreadyExists", true),
            (PermissionDenied, "PermissionDenied", true),
            (ResourceExhausted, "ResourceExhausted", false),
            (FailedPrecondition, "FailedPrecondition", true),
            (Aborted, "Aborted", false),
            (OutOfRange, "OutOfRange", true),
            (Unimplemented, "Unimplemented", true),
            (Internal, "Internal", true),
            (Unavailable, "Unavailable", false),
            (DataLoss, "DataLoss", true),
            (Unauthenticated, "Unauthenticated", true),
        ] {
            let error = CallError::from(Status::new(code, "why"));
            assert_eq!(error.to_string(), format!("rpc error: code = {spelt} desc = why"));
            assert_eq!(error.code.is_final(), is_final, "{code:?}");
            assert_eq!(error.code.number(), code as i32);
            assert_eq!(Code::from_number(code as i32), Some(error.code));
            assert_eq!(Code::named(spelt), Some(error.code));
            assert_eq!(
                error.class(),
                if is_final { Class::Final } else { Class::Uncertain }
            );
        }
    }

    #[test]
    fn rejects_undefined_codes() {
        assert_eq!(Code::from_number(17), None);
        assert_eq!(Code::from_number(-1), None);
        assert_eq!(Code::named("Cancelled"), None);
    }

    #[test]
    fn maps_timeout_of_tonic_to_deadline_exceeded() {
        let error = CallError::from(Status::cancelled("Timeout expired"));
        assert_eq!(
            error.to_string(),
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
        );
        assert_eq!(error.class(), Class::Uncertain);
        let error = CallError::from(Status::cancelled("by the driver"));
        assert_eq!(error.code.number(), 1);
    }

    #[test]
    fn lost_connection_is_interrupted() {
        let lost = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let mut status = Status::unknown("transport error");
        status.set_source(std::sync::Arc::new(lost));
        let error = CallError::from(status);
        assert_eq!(error.class(), Class::Interrupted);
        assert!(!error.code.is_final());
        assert!(error.message.contains("connection reset"), "{error}");
    }
}
