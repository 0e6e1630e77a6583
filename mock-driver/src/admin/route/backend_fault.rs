//! Backend faults.

use axum::extract::State;
use http::StatusCode;
use serde_json::Value;

use super::fault::{refused, taken};
use crate::admin::problem::Refusal;
use crate::admin::request::{Created, Deleted, Json, Path, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{BackendFault, FaultChange, Problem};
use crate::fault::{Report, Rule, RuleKind};

/// Lists all backend faults, enabled or not.
#[utoipa::path(get, path = "/backend-faults", tag = "faults", responses((status = 200, body = Vec<BackendFault>), (status = "default", body = Problem)))]
pub(super) async fn list(State(admin): State<Admin>) -> Json<Vec<BackendFault>> {
    let reports = admin.driver.faults.reports(RuleKind::BackendFault);
    Json(reports.into_iter().map(shown).collect())
}

/// Creates or replaces a backend fault. ALREADY_EXISTS if the id belongs to the fault file or a scenario.
#[utoipa::path(post, path = "/backend-faults", tag = "faults",
    request_body(content = Object, description = "A backend fault, as in the fault file but in JSON."),
    responses((status = 201, body = BackendFault), (status = "default", body = Problem)))]
pub(super) async fn put(State(admin): State<Admin>, Json(fault): Json<Value>) -> Created<BackendFault> {
    let fault = Rule::backend_fault_from_value(fault).map_err(refused)?;
    let id = fault.id.clone();
    admin.driver.faults.put(fault).map_err(taken)?;
    admin.touch();
    Ok((StatusCode::CREATED, find(&admin, &id)?))
}

/// Deletes a backend fault of any origin.
#[utoipa::path(delete, path = "/backend-faults/{fault}", tag = "faults", params(("fault" = String, Path, description = "Id of the backend fault.")),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn remove(State(admin): State<Admin>, Path(fault): Path<String>) -> Deleted {
    if !admin.driver.faults.remove(RuleKind::BackendFault, &fault) {
        return Err(Refusal::not_found("backend fault", &fault));
    }
    admin.touch();
    Ok(StatusCode::NO_CONTENT)
}

/// Enables or disables a backend fault.
#[utoipa::path(patch, path = "/backend-faults/{fault}", tag = "faults", params(("fault" = String, Path, description = "Id of the backend fault.")),
    request_body = FaultChange, responses((status = 200, body = BackendFault), (status = "default", body = Problem)))]
pub(super) async fn switch(
    State(admin): State<Admin>,
    Path(fault): Path<String>,
    Json(change): Json<FaultChange>,
) -> Reply<BackendFault> {
    admin
        .driver
        .faults
        .set_enabled(RuleKind::BackendFault, &fault, change.enabled);
    admin.touch();
    find(&admin, &fault)
}

fn find(admin: &Admin, id: &str) -> Reply<BackendFault> {
    let mut reports = admin.driver.faults.reports(RuleKind::BackendFault).into_iter();
    let report = reports.find(|report| report.id == id);
    report
        .map(|report| Json(shown(report)))
        .ok_or_else(|| Refusal::not_found("backend fault", id))
}

fn shown(report: Report) -> BackendFault {
    BackendFault {
        id: report.id,
        origin: report.origin,
        enabled: report.enabled,
        fired: report.fired,
        fault: report.rule,
    }
}
