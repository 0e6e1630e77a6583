//! Capabilities.

use axum::extract::State;

use crate::admin::problem::Refusal;
use crate::admin::request::{Json, Path, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{Capability, CapabilityChange, Problem};
use crate::rpc::capabilities;

/// Lists all capabilities, enabled or not.
#[utoipa::path(get, path = "/capabilities", tag = "capabilities",
    responses((status = 200, body = Vec<Capability>), (status = "default", body = Problem)))]
pub(super) async fn list(State(admin): State<Admin>) -> Json<Vec<Capability>> {
    let offered = admin.driver.capabilities.read();
    let shown = |capability: capabilities::Capability| Capability {
        name: capability.name().to_owned(),
        enabled: offered.has(capability),
        default: capability.is_default(),
    };
    Json(capabilities::Capability::ALL.into_iter().map(shown).collect())
}

/// Enables or disables a capability at run time, like an upgrade of the driver.
#[utoipa::path(put, path = "/capabilities/{capability}", tag = "capabilities",
    params(("capability" = String, Path, description = "Its name.")), request_body = CapabilityChange,
    responses((status = 200, body = Capability), (status = "default", body = Problem)))]
pub(super) async fn change(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    Json(change): Json<CapabilityChange>,
) -> Reply<Capability> {
    let unknown =
        |error: capabilities::CapabilitySetError| Refusal::new(tonic::Code::NotFound, error.to_string());
    let capability: capabilities::Capability = name.parse().map_err(unknown)?;
    admin.driver.capabilities.write().set(capability, change.enabled);
    admin.touch();
    Ok(Json(Capability {
        name,
        enabled: change.enabled,
        default: capability.is_default(),
    }))
}
