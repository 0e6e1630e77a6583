//! `metav1.Status` errors, with the reasons and texts of `k8s.io/apimachinery/pkg/api/errors`.

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::field::{FieldError, Path, aggregate};
use super::resource::{self, Resource};

/// An error response: a `metav1.Status` with `status: Failure`.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// HTTP status code.
    pub code: StatusCode,
    /// Machine-readable reason, such as `Conflict`.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
    /// `details`, or null. Boxed to keep the error small.
    pub details: Box<Value>,
    /// `metadata.continue`: a token with which the client can continue a list.
    pub(crate) continue_token: String,
}

/// Message of a resourceVersion conflict.
const OPTIMISTIC_LOCK: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

// === impl Status ===

impl Status {
    /// An error with details.
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>, details: Value) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Box::new(details),
            continue_token: String::new(),
        }
    }

    /// The response body.
    pub fn body(&self) -> Value {
        let mut body = Map::new();
        body.insert("kind".into(), "Status".into());
        body.insert("apiVersion".into(), "v1".into());
        let metadata = match self.continue_token.as_str() {
            "" => json!({}),
            token => json!({ "continue": token }),
        };
        body.insert("metadata".into(), metadata);
        body.insert("status".into(), "Failure".into());
        body.insert("message".into(), self.message.clone().into());
        if !self.reason.is_empty() {
            body.insert("reason".into(), self.reason.into());
        }
        if !self.details.is_null() {
            body.insert("details".into(), (*self.details).clone());
        }
        body.insert("code".into(), self.code.as_u16().into());
        Value::Object(body)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message, Value::Null)
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.group_resource());
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            message,
            details(resource, name),
        )
    }

    /// No handler serves the path.
    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message, json!({}))
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.group_resource());
        Self::new(
            StatusCode::CONFLICT,
            "AlreadyExists",
            message,
            details(resource, name),
        )
    }

    pub(crate) fn generated_name_exists(resource: &Resource, name: &str) -> Self {
        let mut details = details(resource, name);
        details["retryAfterSeconds"] = 1.into();
        let message = format!(
            "{} {name:?} already exists, the server was not able to generate a unique name for the object",
            resource.group_resource()
        );
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message, details)
    }

    pub(crate) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            resource.group_resource()
        );
        Self::new(StatusCode::CONFLICT, "Conflict", message, details(resource, name))
    }

    pub(crate) fn modified(resource: &Resource, name: &str) -> Self {
        Self::conflict(resource, name, OPTIMISTIC_LOCK)
    }

    pub(crate) fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {why}", resource.group_resource());
        Self::new(
            StatusCode::FORBIDDEN,
            "Forbidden",
            message,
            details(resource, name),
        )
    }

    pub(crate) fn invalid(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let causes: Vec<Value> = errors.iter().map(FieldError::cause).collect();
        let mut details = json!({ "causes": causes });
        for (key, value) in [("name", name), ("group", group), ("kind", kind)] {
            if !value.is_empty() {
                details[key] = value.into();
            }
        }
        let kind = resource::qualified(kind, group);
        let message = format!("{kind} {name:?} is invalid: {}", aggregate(errors));
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message, details)
    }

    /// Invalid options of a request.
    pub(crate) fn invalid_options(kind: &str, errors: &[FieldError]) -> Self {
        Self::invalid("meta.k8s.io", kind, "", errors)
    }

    /// A patch with a result that cannot be decoded.
    pub(crate) fn invalid_patch(why: String) -> Self {
        let error = FieldError::invalid(&Path::new("patch"), Value::Null, why);
        Self::invalid("", "", "", &[error])
    }

    /// The error of `NewGenericServerResponse` for a patch that cannot be applied.
    pub(crate) fn unprocessable_patch() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message, json!({}))
    }

    pub(crate) fn internal(why: impl Into<String>) -> Self {
        let why = why.into();
        let message = format!("Internal error occurred: {why}");
        let details = json!({ "causes": [{ "message": why }] });
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            message,
            details,
        )
    }

    /// An error that is not a `Status`.
    pub(crate) fn unclassified(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message, Value::Null)
    }

    /// `EnsureObjectNamespaceMatchesRequestNamespace`.
    pub(crate) fn namespace_mismatch() -> Self {
        Self::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message, Value::Null)
    }

    /// A version that the store has not reached; etcd does not say after how many seconds to retry.
    pub(crate) fn version_too_large(requested: u64, current: u64, retry_seconds: Option<u64>) -> Self {
        let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
        let cause = json!({ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" });
        let mut details = json!({ "causes": [cause] });
        if let Some(seconds) = retry_seconds {
            details["retryAfterSeconds"] = seconds.into();
        }
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message, details)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            message,
            json!({}),
        )
    }

    pub(crate) fn unsupported_media_type(accepted: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
            Value::Null,
        )
    }

    /// The router's error for an unknown patch type.
    pub(crate) fn unsupported_patch_type() -> Self {
        let message = "415: Unsupported Media Type";
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            message,
            json!({}),
        )
    }

    pub(crate) fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!(
            "only the following media types are accepted: {}",
            accepted.join(", ")
        );
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message, Value::Null)
    }

    /// The router's error for a client that accepts none of its media types.
    pub(crate) fn no_representation(accepted: &[&str]) -> Self {
        let mut status = Self::not_acceptable(accepted);
        *status.details = json!({});
        status
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            message,
            Value::Null,
        )
    }

    /// A feature of kube-apiserver that this server lacks.
    pub(crate) fn not_implemented(what: &str) -> Self {
        let message = format!("{what} is not implemented by the embedded API server");
        Self::new(
            StatusCode::NOT_IMPLEMENTED,
            "NotImplemented",
            message,
            Value::Null,
        )
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.code.as_u16(), self.reason, self.message)
    }
}

impl std::error::Error for Status {}

/// Details that name an object of a resource; `kind` holds the resource, as in kube-apiserver.
fn details(resource: &Resource, name: &str) -> Value {
    let mut details = json!({ "kind": resource.plural });
    if !name.is_empty() {
        details["name"] = name.into();
    }
    if !resource.group.is_empty() {
        details["group"] = resource.group.into();
    }
    details
}
