//! `/statusz`: the whole state as YAML, or with `?format=json` as JSON.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::View;
use super::status::Status;

pub(super) async fn page(State(view): State<Arc<View>>, RawQuery(query): RawQuery) -> Response {
    let status = Status::of(&view);
    let query = query.unwrap_or_default();
    let format = query.split('&').find_map(|pair| pair.strip_prefix("format="));
    let (content_type, text) = match format {
        // A browser shows plain text.
        None | Some("" | "text") => (
            "text/plain; charset=utf-8",
            serde_saphyr::to_string(&status).map_err(|error| error.to_string()),
        ),
        Some("json") => (
            "application/json",
            serde_json::to_string_pretty(&status).map_err(|error| error.to_string()),
        ),
        Some(_) => return (StatusCode::BAD_REQUEST, "format must be text or json\n").into_response(),
    };
    match text {
        Ok(text) => ([(CONTENT_TYPE, content_type)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

#[cfg(test)]
mod tests;
