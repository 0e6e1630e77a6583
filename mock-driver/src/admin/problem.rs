use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use tonic::Code;

use crate::admin_api::resource::Problem;
use crate::array;
use crate::driver::error::Error;
use crate::rpc::code;
use crate::rpc::validate::Invalid;
use crate::store;

/// The media type of all bodies except those of pages.
const JSON: HeaderValue = HeaderValue::from_static("application/json");

#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    problem: Problem,
}

pub(super) fn json<T: Serialize>(status: StatusCode, body: &T) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => (status, [(CONTENT_TYPE, JSON)], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
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

    /// The refusal of a field within another one.
    pub(super) fn within(mut self, outer: &str) -> Self {
        if let Some(field) = &mut self.problem.field {
            self.problem.message = format!("{outer}.{}", self.problem.message);
            *field = format!("{outer}.{field}");
        }
        self
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
        json(self.status, &self.problem)
    }
}

macro_rules! from_rejection {
    ($($rejection:ty),*) => {
        $(impl From<$rejection> for Refusal {
            fn from(rejection: $rejection) -> Self {
                Self::new(Code::InvalidArgument, rejection.body_text()).with_status(rejection.status())
            }
        })*
    };
}

from_rejection!(BytesRejection, PathRejection, QueryRejection);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let mut refusal = Self::new(error.code(), error.message());
        if let Some((field, message)) = in_terms_of_the_api(&error) {
            refusal.problem.field = field;
            refusal.problem.message = message;
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

/// The field and text of an error in the names of this API; `None` for an error without a field.
fn in_terms_of_the_api(error: &Error) -> Option<(Option<String>, String)> {
    let info = |field: &str, reason: &str| {
        let field = field_of(field);
        let message = format!("{field}: {reason}");
        Some((Some(field), message))
    };
    if let Error::Invalid(Invalid { field, reason }) = error {
        return info(field, reason);
    }
    let Error::Store(store::Error::Refused(refusal)) = error else {
        return None;
    };
    if let array::Error::Illegal { field, reason } = refusal {
        return info(field, reason);
    }
    if let array::Error::SizeOutOfRange { reason } = refusal {
        return info("capacity_range", &reason.replace("required_bytes ", ""));
    }
    if let array::Error::NameTaken { field, .. } | array::Error::AttachedDifferently { field, .. } = refusal {
        let message = error.message().replace(
            &format!("another {field}"),
            &format!("another {}", field_of(field)),
        );
        return Some((None, message));
    }
    None
}

/// This API's name of a field of CSI's messages; other names are returned unchanged.
fn field_of(name: &str) -> String {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (first, rest) = name.split_at(end);
    match first {
        "capacity_range" => "capacityBytes".to_owned(),
        "volume_capability" | "volume_capabilities" => "accessMode".to_owned(),
        "mutable_parameters" => format!("mutableParameters{rest}"),
        "source_volume_id" => format!("source{rest}"),
        "source_volume_ids" => format!("sources{rest}"),
        "volume_id" => "volume".to_owned(),
        "node_id" => "node".to_owned(),
        "snapshot_id" => "snapshot".to_owned(),
        "group_snapshot_id" => "group".to_owned(),
        _ => name.to_owned(),
    }
}

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
