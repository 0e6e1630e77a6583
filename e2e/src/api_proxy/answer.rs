//! Error answers of the API server, or of something before it.

use std::convert::Infallible;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use serde_json::json;

use super::Body;

/// An error answer: a Status, or a text that no API server writes.
pub(crate) fn answer(code: u16, is_status: bool) -> Response<Body> {
    let text = if is_status {
        let reason = match code {
            403 => "Forbidden",
            404 => "NotFound",
            409 => "Conflict",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            _ => "ServiceUnavailable",
        };
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "scripted",
            "reason": reason, "code": code})
        .to_string()
    } else {
        "<html>scripted</html>".to_owned()
    };
    let body = Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = if is_status {
        "application/json"
    } else {
        "text/html"
    };
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
