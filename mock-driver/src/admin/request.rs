//! Extractors of requests, whose errors name the field.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tonic::Code;
use wildmatch::WildMatch;

use super::problem::{Refusal, json};
use crate::fault::duration;

/// Maximum long-poll duration.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// As [`Json`], for a request whose body must not be empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequiredJson<T>(pub(super) T);

/// A body of a request, in JSON or YAML, or of a response. An empty one is `{}`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Json<T>(pub(super) T);

#[derive(Clone, Copy, Debug, FromRequestParts)]
#[from_request(via(axum::extract::Path), rejection(Refusal))]
pub(super) struct Path<T>(pub(super) T);

#[derive(Clone, Copy, Debug, FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(Refusal))]
pub(super) struct Query<T>(pub(super) T);

pub(super) type Reply<T> = Result<T, Refusal>;

// === impl Json ===

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        Ok(Self(
            body_of(request, state).await?.unwrap_or_else(|| read(b"{}"))?,
        ))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for RequiredJson<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let empty = || {
            Err(Refusal::new(
                Code::InvalidArgument,
                "the body is empty: send the object in JSON or YAML",
            ))
        };
        Ok(Self(body_of(request, state).await?.unwrap_or_else(empty)?))
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        json(StatusCode::OK, &self.0)
    }
}

/// The body of a request, in JSON or YAML; `None` if it is empty.
async fn body_of<T: DeserializeOwned, S: Send + Sync>(
    request: Request,
    state: &S,
) -> Result<Option<Result<T, Refusal>>, Refusal> {
    let media_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_yaml = media_type.is_some_and(|media_type| media_type.starts_with(b"application/yaml"));
    let body = Bytes::from_request(request, state).await?;
    Ok(match (body.is_empty(), is_yaml) {
        (true, _) => None,
        (false, true) => Some(read_yaml(&body)),
        (false, false) => Some(read(&body)),
    })
}

fn read_yaml<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let value: Option<Value> = serde_saphyr::from_slice(body).map_err(|error: serde_saphyr::Error| {
        // Without the lines of the text, which may contain secrets.
        let reason = error.without_snippet();
        Refusal::new(Code::InvalidArgument, format!("the body is not YAML: {reason}"))
    })?;
    read(value.unwrap_or_default().to_string().as_bytes())
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let reason = error.inner().to_string();
        match error.path().to_string().as_str() {
            "." => Refusal::new(
                Code::InvalidArgument,
                format!("the body is not as expected: {reason}"),
            ),
            field => Refusal::invalid(field, format!("{field}: {reason}")),
        }
    })?;
    json.end()
        .map_err(|error| Refusal::new(Code::InvalidArgument, format!("the body does not end: {error}")))?;
    Ok(value)
}

pub(super) fn pattern(text: Option<&str>) -> Option<WildMatch> {
    text.filter(|text| !text.is_empty()).map(WildMatch::new)
}

/// A time to wait, such as `10s`.
pub(super) fn wait(field: &str, text: &str) -> Result<Duration, Refusal> {
    match duration::parse(text) {
        Ok(time) if time <= MAX_WAIT => Ok(time),
        Ok(_) => Err(Refusal::invalid(
            field,
            format!(
                "{field}: at most {} s; ask again to wait longer",
                MAX_WAIT.as_secs()
            ),
        )),
        Err(error) => Err(Refusal::invalid(field, format!("{field}: {error}"))),
    }
}
