//! The state between tests.

use axum::extract::State;
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::admin::request::{Deleted, Query, Reply, RequiredJson};
use crate::admin::state::Admin;
use crate::admin_api::resource::Problem;
use crate::array::{Array, Image};

/// Exports the state of the array as a fixture.
#[utoipa::path(get, path = "/fixture", tag = "tests", responses((status = 200, body = Object), (status = "default", body = Problem)))]
pub(super) async fn export(State(admin): State<Admin>) -> Reply<Image> {
    admin.read(|array: &Array| Ok(array.image())).await
}

/// Replaces the state of the array by a fixture. FAILED_PRECONDITION if the node of this process uses a volume.
#[utoipa::path(put, path = "/fixture", tag = "tests", request_body = Object,
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn import(State(admin): State<Admin>, RequiredJson(image): RequiredJson<Image>) -> Deleted {
    admin.driver.import(image).await?;
    admin.touch();
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ResetQuery {
    /// `true` first unpublishes and unstages the volumes that the node of this process uses.
    force: Option<bool>,
}

/// Returns to the state after the start: array, rules, scenarios, capabilities and journal. Releases blocked calls.
/// FAILED_PRECONDITION if the node of this process uses a volume, unless forced.
#[utoipa::path(post, path = "/reset", tag = "tests", params(ResetQuery),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn reset(State(admin): State<Admin>, Query(query): Query<ResetQuery>) -> Deleted {
    admin.driver.reset(query.force.unwrap_or(false)).await?;
    Ok(StatusCode::NO_CONTENT)
}
