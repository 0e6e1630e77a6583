use tonic::{Code, Status};

use crate::array;
use crate::driver::locks::Busy;
use crate::node;
use crate::rpc::validate::Invalid;
use crate::store;
use crate::store::PathError;

/// Maximum length of an encoded error message. HTTP/2 clients and servers accept at least 8 KiB of header fields.
const MAX_MESSAGE: usize = 4 << 10;

const CUT_OFF: &str = "... (cut off)";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error("secrets: the value of \"{key}\" is wrong")]
    Unauthenticated { key: String },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Node(#[from] node::Error),
    /// Of ControllerPublishVolume.
    #[error("the volume cannot be attached")]
    AttachDevice(#[source] Box<Self>),
    #[error("another call for {subject} is still running: try again")]
    Busy { subject: String },
    #[error("{path} is not offered by this driver")]
    NotOffered { path: &'static str },
    #[error("{message}")]
    Injected { code: Code, message: String },
    #[error("starting_offset: must be from 0 to {size}, the snapshot's size, is {offset}")]
    OffsetOutOfRange { offset: i64, size: u64 },
    /// The operation was cancelled, and may be incomplete.
    #[error("the driver was reset, or is ending, during the call")]
    Interrupted,
    /// A panic.
    #[error("internal error (panic); see the driver log")]
    Broken,
}

// === impl Error ===

impl Error {
    /// The gRPC code of section "error scheme" of each RPC in the CSI specification.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::Store(store::Error::Refused(refusal)) => match refusal {
                array::Error::VolumeNotFound { .. }
                | array::Error::NodeNotFound { .. }
                | array::Error::SnapshotNotFound { .. }
                | array::Error::GroupNotFound { .. }
                | array::Error::PoolNotFound { .. } => Code::NotFound,
                array::Error::Illegal { .. } => Code::InvalidArgument,
                array::Error::NameTaken { .. } | array::Error::AttachedDifferently { .. } => {
                    Code::AlreadyExists
                }
                array::Error::SizeOutOfRange { .. } | array::Error::PoolTooLarge { .. } => Code::OutOfRange,
                array::Error::InUse { .. }
                | array::Error::NotSupported { .. }
                | array::Error::AttachedElsewhere { .. }
                | array::Error::HasDependants { .. }
                | array::Error::Online { .. }
                | array::Error::CannotGroup { .. }
                | array::Error::PoolInUse { .. }
                | array::Error::OutOfReach { .. } => Code::FailedPrecondition,
                array::Error::NodeFull { .. } | array::Error::InsufficientCapacity { .. } => {
                    Code::ResourceExhausted
                }
                array::Error::ForeignToken | array::Error::NotReady { .. } => Code::Aborted,
            },
            Self::Store(store::Error::Lost(_)) | Self::Broken => Code::Internal,
            Self::Path(error) if error.is_no_space() => Code::ResourceExhausted,
            Self::Path(_) => Code::Internal,
            Self::Unauthenticated { .. } => Code::Unauthenticated,
            Self::OffsetOutOfRange { .. } => Code::OutOfRange,
            Self::Node(error) => error.code(),
            // RESOURCE_EXHAUSTED would mean that the node has as many volumes as it can have.
            Self::AttachDevice(error) if error.code() == Code::ResourceExhausted => Code::Internal,
            Self::AttachDevice(error) => error.code(),
            Self::Busy { .. } | Self::Interrupted => Code::Aborted,
            Self::NotOffered { .. } => Code::Unimplemented,
            Self::Injected { code, .. } => *code,
        }
    }

    /// The message for the caller: all causes in one line, short enough for an HTTP/2 header field. Messages of fault rules are
    /// not changed.
    pub fn message(&self) -> String {
        if let Self::Injected { message, .. } = self {
            return message.clone();
        }
        shortened(crate::error_chain(self))
    }
}

/// Truncates a text whose encoding in `grpc-message` is too long.
pub(crate) fn shortened(mut text: String) -> String {
    // tonic percent-encodes other bytes.
    let is_plain = |c: char| c.is_ascii_graphic() && !"\"#%<>`?{}".contains(c);
    let encoded = |c: char| if is_plain(c) { 1 } else { 3 * c.len_utf8() };
    let mut left = MAX_MESSAGE - CUT_OFF.chars().map(encoded).sum::<usize>();
    let cut = text.char_indices().find(|(_, c)| {
        let encoded = encoded(*c);
        let is_over = encoded > left;
        left = left.saturating_sub(encoded);
        is_over
    });
    if let Some((offset, _)) = cut {
        text.truncate(offset);
        text.push_str(CUT_OFF);
    }
    text
}

impl From<array::Error> for Error {
    fn from(refusal: array::Error) -> Self {
        Self::Store(refusal.into())
    }
}

impl From<Busy> for Error {
    fn from(Busy(key): Busy) -> Self {
        Self::Busy {
            subject: key.to_string(),
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{NodeId, VolumeId};

    #[test]
    fn error_about_many_nodes_names_five_and_counts_the_rest() {
        let error = |count: usize| {
            let refusal = array::Error::InUse {
                volume: VolumeId::from("vol-0"),
                nodes: (0..count)
                    .map(|n| NodeId::from(format!("node-{n}").as_str()))
                    .collect(),
            };
            Error::from(refusal).message()
        };
        assert!(
            error(5).contains("\"node-3\", \"node-4\"; unpublish"),
            "{}",
            error(5)
        );
        assert!(
            error(800).contains("\"node-4\" and 795 more; unpublish"),
            "{}",
            error(800)
        );
    }

    #[test]
    fn message_stays_below_four_kibibytes_in_its_header_field() {
        for text in ["x", "\u{e9}", "%", "\n", "\u{1f4be}"] {
            let error = Error::from(Invalid::new("name", text.repeat(10_000)));
            let message = error.message();
            assert!(message.ends_with(CUT_OFF), "{text:?}");
            let mut headers = tonic::codegen::http::HeaderMap::new();
            Status::from(error).add_header(&mut headers).unwrap();
            let encoded = headers["grpc-message"].len();
            assert!(
                (MAX_MESSAGE - 100..=MAX_MESSAGE).contains(&encoded),
                "{text:?}: {encoded}"
            );
        }
        let short = Error::from(Invalid::new("name", "must be set"));
        assert_eq!(short.message(), "name: must be set");
        let message = "x".repeat(10_000);
        let injected = Error::Injected {
            code: Code::Internal,
            message: message.clone(),
        };
        assert_eq!(injected.message(), message, "a rule's text is meant as it is");
    }
}
