//! Backend faults.

use axum::extract::State;
use http::StatusCode;
use serde_json::Value;

use super::fault::{put_one, refused, remove_one, switch_one};
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
    Ok((StatusCode::CREATED, Json(shown(put_one(&admin, fault)?))))
}

/// Deletes a backend fault of any origin.
#[utoipa::path(delete, path = "/backend-faults/{fault}", tag = "faults", params(("fault" = String, Path, description = "Id of the backend fault.")),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn remove(State(admin): State<Admin>, Path(fault): Path<String>) -> Deleted {
    remove_one(&admin, RuleKind::BackendFault, &fault)
}

/// Enables or disables a backend fault.
#[utoipa::path(patch, path = "/backend-faults/{fault}", tag = "faults", params(("fault" = String, Path, description = "Id of the backend fault.")),
    request_body = FaultChange, responses((status = 200, body = BackendFault), (status = "default", body = Problem)))]
pub(super) async fn switch(
    State(admin): State<Admin>,
    Path(fault): Path<String>,
    Json(change): Json<FaultChange>,
) -> Reply<BackendFault> {
    let report = switch_one(&admin, RuleKind::BackendFault, &fault, change)?;
    Ok(Json(shown(report)))
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
