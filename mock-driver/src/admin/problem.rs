//! Refusals, as HTTP answers.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tonic::Code;

use super::request::Json;
use super::resource::Problem;
use crate::code;
use crate::error::Error;
use crate::request::Invalid;
use crate::store;

/// A refusal on its way out.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    problem: Problem,
}

// === impl Refusal ===

impl Refusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            status: status(code),
            problem: Problem {
                code: code::name(code).to_owned(),
                message: message.into(),
                field: None,
            },
        }
    }

    pub(super) fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        let mut refusal = Self::new(Code::InvalidArgument, message);
        refusal.problem.field = Some(field.into());
        refusal
    }

    pub(super) fn not_found(what: &str, id: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no {what} \"{id}\""))
    }

    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(self.problem)).into_response()
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let mut refusal = Self::new(error.code(), error.message());
        if let Error::Invalid(invalid) = &error {
            refusal.problem.field = Some(invalid.field.clone());
        }
        refusal
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        Error::from(invalid).into()
    }
}

impl From<store::Error> for Refusal {
    fn from(error: store::Error) -> Self {
        Error::from(error).into()
    }
}

/// The HTTP status for a gRPC code.
fn status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted | Code::FailedPrecondition | Code::ResourceExhausted => {
            StatusCode::CONFLICT
        }
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable | Code::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
