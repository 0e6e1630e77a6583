//! gRPC codes: how they are told to people, and what they mean for the next attempt.

use std::error::Error as _;
use std::fmt;

use tonic::Status;

use crate::leader_election::NotLeading;
use crate::workqueue::Class;

/// A gRPC status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(tonic::Code);

/// A call that failed. Shown as grpc-go shows it, since that is what stands in the statuses, events
/// and runbooks of today.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code} desc = {message}")]
pub struct CallError {
    /// The code.
    pub code: Code,
    /// The driver's message.
    pub message: String,
    /// How far the call came.
    pub reach: Reach,
}

/// How far a call came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// There is an answer, be it only that there was none in time.
    Answered,
    /// The connection was lost during the call.
    Interrupted,
    /// There was no connection, so nothing was sent.
    Unsent,
    /// We are not to call any more, so nothing was sent.
    NotSent,
}

// === impl Code ===

impl Code {
    /// The code of this number, if gRPC has one.
    pub fn from_number(number: i32) -> Option<Self> {
        let code = Self(tonic::Code::from_i32(number));
        (code.number() == number).then_some(code)
    }

    /// The code that is spelt so in Go's error texts.
    pub fn named(spelt: &str) -> Option<Self> {
        const CODES: i32 = 17;
        let mut codes = (0..CODES).filter_map(Self::from_number);
        codes.find(|code| code.to_string() == spelt)
    }

    /// What `errorCode` in a VolumeAttachment's status holds.
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

    /// Whether the driver does not know the node or the volume that was asked for.
    pub fn is_unknown_object(self) -> bool {
        matches!(self.0, tonic::Code::NotFound | tonic::Code::InvalidArgument)
    }

    /// Whether the node or the volume does not exist, and nothing else can be meant.
    pub fn is_not_found(self) -> bool {
        self.0 == tonic::Code::NotFound
    }

    /// Whether the call may still be under way, or may succeed if it is merely repeated.
    ///
    /// CSI specification, "Error Scheme"; the same set as in kubelet and in the Go sidecars.
    pub fn is_final(self) -> bool {
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
    /// The deadline passed before an answer came.
    pub fn deadline_exceeded() -> Self {
        Self {
            code: Code(tonic::Code::DeadlineExceeded),
            message: "context deadline exceeded".to_owned(),
            reach: Reach::Answered,
        }
    }

    /// The stream was reset on a connection that lives, and the call's outcome is unknown. Reported as grpc-go
    /// does.
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
            reach: Reach::Answered,
        }
    }

    /// There was no driver to call.
    pub fn unsent(message: impl Into<String>) -> Self {
        let code = Code(tonic::Code::Unavailable);
        Self {
            code,
            message: message.into(),
            reach: Reach::Unsent,
        }
    }

    /// The attacher must not call any more. Neither status nor Events report it.
    pub fn not_sent(message: impl Into<String>) -> Self {
        Self {
            reach: Reach::NotSent,
            ..Self::unsent(message)
        }
    }

    /// How the failure is to be waited out.
    pub fn class(&self) -> Class {
        match self.reach {
            Reach::Unsent => Class::Disconnected,
            Reach::Interrupted => Class::Interrupted,
            Reach::Answered if self.code.is_final() => Class::Final,
            Reach::Answered | Reach::NotSent => Class::Uncertain,
        }
    }
}

impl From<NotLeading> for CallError {
    fn from(reason: NotLeading) -> Self {
        Self::not_sent(reason.to_string())
    }
}

impl From<Status> for CallError {
    /// Tells what the driver answered from what tonic made up. tonic differs from grpc-go in three
    /// ways that matter: a connection that is lost during a call is UNKNOWN there and an answer that is too large
    /// OUT_OF_RANGE, which would both count as final, and a deadline that passes is CANCELLED.
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
        // A status that came over the wire has no source; one that was made here from an error has.
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
            if chain().any(tells_that_nothing_was_sent) {
                return Self::unsent(format!(
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
            reach: Reach::Answered,
        }
    }
}

/// What grpc-go says of an answer that is too large to be read. tonic says OUT_OF_RANGE, which would be the driver's
/// final word, though the driver may well have done what it was asked for.
fn too_large(status: &Status) -> Option<String> {
    const TONIC: &str = "Error, decoded message length too large: found ";
    let sizes = status.message().strip_prefix(TONIC)?.strip_suffix(" bytes")?;
    let (found, limit) = sizes.split_once(" bytes, the limit is: ")?;
    (status.code() == tonic::Code::OutOfRange)
        .then(|| format!("grpc: received message larger than max ({found} vs. {limit})"))
}

/// That the call, and not the connection, was reset.
fn reset_of_a_call<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e h2::Error> {
    std::iter::successors(Some(error), |&error| error.source())
        .find_map(|error| error.downcast_ref::<h2::Error>())
        .filter(|error| error.is_reset())
}

/// Whether there was no connection to send the call over, or it was closed (an EOF, or the GOAWAY of a
/// driver that ends) while the call still stood in line for it.
fn tells_that_nothing_was_sent(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<tonic::ConnectError>()
        || error
            .downcast_ref::<hyper::Error>()
            .is_some_and(hyper::Error::is_canceled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_that_is_too_large_is_told_as_grpc_go_does_and_leaves_open_what_was_done() {
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
    fn every_code_is_spelt_as_in_go_and_final_or_not_as_in_kubelet() {
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
    fn what_grpc_does_not_define_is_no_code() {
        assert_eq!(Code::from_number(17), None);
        assert_eq!(Code::from_number(-1), None);
        assert_eq!(Code::named("Cancelled"), None);
    }

    #[test]
    fn a_deadline_that_tonic_reports_as_cancelled_is_a_deadline() {
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
    fn a_lost_connection_leaves_the_result_unknown() {
        let lost = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let mut status = Status::unknown("transport error");
        status.set_source(std::sync::Arc::new(lost));
        let error = CallError::from(status);
        assert_eq!(error.class(), Class::Interrupted);
        assert!(!error.code.is_final());
        assert!(error.message.contains("connection reset"), "{error}");
    }
}
