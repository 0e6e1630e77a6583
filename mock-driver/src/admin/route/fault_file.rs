//! Fault files.

use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use super::fault::{list, refused, taken};
use crate::admin::request::{Json, Query, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{Faults, Problem};
use crate::fault::Rule;

/// How to apply a fault file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
pub(super) struct FileQuery {
    /// `true` only checks the file.
    dry_run: Option<bool>,
}

/// Applies a fault file atomically: creates or replaces its rules and backend faults.
/// ALREADY_EXISTS if an id belongs to `--faults` or a scenario.
#[utoipa::path(post, path = "/scripts", tag = "faults", params(FileQuery),
    request_body(content((Object = "application/json"), (Object = "application/yaml")),
        description = "A fault file: a list of rules, or lists of `rules` and `backend-faults`."),
    responses((status = 200, body = Faults), (status = "default", body = Problem)))]
pub(super) async fn put(
    State(admin): State<Admin>,
    Query(query): Query<FileQuery>,
    Json(file): Json<Value>,
) -> Reply<Faults> {
    let rules = Rule::list_from_value(file).map_err(refused)?;
    if query.dry_run == Some(true) {
        admin.driver.faults.check(&rules).map_err(taken)?;
    } else {
        admin.driver.faults.put_all(rules).map_err(taken)?;
        admin.touch();
    }
    Ok(list(State(admin)).await)
}
