//! Fault files.

use axum::extract::State;
use serde_json::Value;

use super::fault::{list, refused, taken};
use crate::admin::request::{Json, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{Faults, Problem};
use crate::fault::Rule;

/// Applies a fault file atomically: creates or replaces its rules and backend faults.
/// ALREADY_EXISTS if an id belongs to `--faults` or a scenario.
#[utoipa::path(post, path = "/scripts", tag = "faults",
    request_body(content = Object, description = "A fault file in JSON: a list of rules, or lists of `rules` and `backend-faults`."),
    responses((status = 200, body = Faults), (status = "default", body = Problem)))]
pub(super) async fn put(State(admin): State<Admin>, Json(file): Json<Value>) -> Reply<Faults> {
    let rules = Rule::list_from_value(file).map_err(refused)?;
    admin.driver.faults.put_all(rules).map_err(taken)?;
    admin.touch();
    Ok(list(State(admin)).await)
}
