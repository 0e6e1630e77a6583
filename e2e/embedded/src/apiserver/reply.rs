//! Successful responses.

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;

use super::ResponseBody;

/// A response.
pub(crate) struct Reply {
    pub(crate) code: StatusCode,
    pub(crate) body: ResponseBody,
}

// === impl Reply ===

impl Reply {
    pub(crate) fn json(code: StatusCode, body: impl Into<Bytes>) -> Self {
        Self {
            code,
            body: ResponseBody::full(body),
        }
    }
}

/// A successful `Status`.
pub(crate) fn success(code: StatusCode) -> Reply {
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "code": code.as_u16(),
    });
    Reply::json(code, status.to_string())
}
