//! Troubles of the array itself.

use axum::extract::State;
use http::StatusCode;
use serde_json::Value;

use super::fault::{origin, refused, taken};
use crate::admin::problem::Refusal;
use crate::admin::request::{Json, Path};
use crate::admin::state::Admin;
use crate::admin_api::resource::{FaultChange, Problem, Trouble};
use crate::fault::{Part, Report, Rule};

/// Every trouble the array is in or could be in.
#[utoipa::path(get, path = "/troubles", tag = "faults", responses((status = 200, body = Vec<Trouble>), (status = "default", body = Problem)))]
pub(super) async fn list(State(admin): State<Admin>) -> Json<Vec<Trouble>> {
    let reports = admin.driver.faults.reports(Part::BackendFault);
    Json(reports.into_iter().map(shown).collect())
}

/// Puts the array into trouble, in the place of the one with its id if there is one. An id of the file or of a
/// scenario is taken (ALREADY_EXISTS).
#[utoipa::path(post, path = "/troubles", tag = "faults",
    request_body(content = Object, description = "A trouble, written as in the fault file but in JSON."),
    responses((status = 201, body = Trouble), (status = "default", body = Problem)))]
pub(super) async fn put(
    State(admin): State<Admin>,
    Json(trouble): Json<Value>,
) -> Result<(StatusCode, Json<Trouble>), Refusal> {
    let trouble = Rule::backend_fault_from_value(trouble).map_err(refused)?;
    let id = trouble.id.clone();
    admin.driver.faults.put(trouble).map_err(taken)?;
    admin.persist_backend_faults().await?;
    Ok((StatusCode::CREATED, find(&admin, &id)?))
}

/// Ends a trouble for good, whatever its origin.
#[utoipa::path(delete, path = "/troubles/{trouble}", tag = "faults", params(("trouble" = String, Path, description = "Its id.")),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn remove(
    State(admin): State<Admin>,
    Path(trouble): Path<String>,
) -> Result<StatusCode, Refusal> {
    if !admin.driver.faults.remove(Part::BackendFault, &trouble) {
        return Err(Refusal::not_found("trouble", &trouble));
    }
    admin.persist_backend_faults().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Has a trouble begin or end.
#[utoipa::path(patch, path = "/troubles/{trouble}", tag = "faults", params(("trouble" = String, Path, description = "Its id.")),
    request_body = FaultChange, responses((status = 200, body = Trouble), (status = "default", body = Problem)))]
pub(super) async fn switch(
    State(admin): State<Admin>,
    Path(trouble): Path<String>,
    Json(change): Json<FaultChange>,
) -> Result<Json<Trouble>, Refusal> {
    admin
        .driver
        .faults
        .set_enabled(Part::BackendFault, &trouble, change.enabled);
    admin.persist_backend_faults().await?;
    find(&admin, &trouble)
}

fn find(admin: &Admin, id: &str) -> Result<Json<Trouble>, Refusal> {
    let mut reports = admin.driver.faults.reports(Part::BackendFault).into_iter();
    let report = reports.find(|report| report.id == id);
    report
        .map(|report| Json(shown(report)))
        .ok_or_else(|| Refusal::not_found("trouble", id))
}

fn shown(report: Report) -> Trouble {
    Trouble {
        id: report.id,
        origin: origin(report.origin),
        enabled: report.enabled,
        met: report.fired,
        trouble: report.rule,
    }
}
