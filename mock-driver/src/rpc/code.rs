//! gRPC codes by their names in CSI and Kubernetes.

use tonic::Code;

const ERRORS: [(&str, Code); 16] = [
    ("CANCELLED", Code::Cancelled),
    ("UNKNOWN", Code::Unknown),
    ("INVALID_ARGUMENT", Code::InvalidArgument),
    ("DEADLINE_EXCEEDED", Code::DeadlineExceeded),
    ("NOT_FOUND", Code::NotFound),
    ("ALREADY_EXISTS", Code::AlreadyExists),
    ("PERMISSION_DENIED", Code::PermissionDenied),
    ("RESOURCE_EXHAUSTED", Code::ResourceExhausted),
    ("FAILED_PRECONDITION", Code::FailedPrecondition),
    ("ABORTED", Code::Aborted),
    ("OUT_OF_RANGE", Code::OutOfRange),
    ("UNIMPLEMENTED", Code::Unimplemented),
    ("INTERNAL", Code::Internal),
    ("UNAVAILABLE", Code::Unavailable),
    ("DATA_LOSS", Code::DataLoss),
    ("UNAUTHENTICATED", Code::Unauthenticated),
];

/// The name of a code, `OK` included.
pub(crate) fn name(code: Code) -> &'static str {
    ERRORS
        .iter()
        .find(|(_, other)| *other == code)
        .map_or("OK", |(name, _)| name)
}

pub(crate) fn named(name: &str) -> Option<Code> {
    ERRORS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, code)| *code)
}

/// All names of error codes, for messages.
pub(crate) fn names() -> String {
    ERRORS.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_name() {
        for number in 0..=16 {
            let code = Code::from(number);
            let expected = (code != Code::Ok).then_some(code);
            assert_eq!(named(name(code)), expected, "{code:?}");
        }
        assert_eq!(name(Code::Ok), "OK");
    }
}
