//! The state between tests.

use axum::extract::State;
use http::StatusCode;

use crate::admin::request::{Deleted, Json, Reply};
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
pub(super) async fn import(State(admin): State<Admin>, Json(image): Json<Image>) -> Deleted {
    admin.driver.import(image).await?;
    admin.touch();
    Ok(StatusCode::NO_CONTENT)
}

/// Returns to the state after the start: array, rules, scenarios, capabilities and journal. Releases blocked calls.
#[utoipa::path(post, path = "/reset", tag = "tests", responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn reset(State(admin): State<Admin>) -> Deleted {
    admin.driver.reset().await?;
    Ok(StatusCode::NO_CONTENT)
}
