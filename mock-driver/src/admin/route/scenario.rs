//! Built-in scenarios.

use std::collections::BTreeSet;

use axum::extract::State;
use tonic::Code;

use super::fault::taken;
use crate::admin::problem::Refusal;
use crate::admin::request::{Json, Path, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{FaultChange, Problem, Scenario};
use crate::fault::{Origin, Rule, scenario};

/// Lists the built-in scenarios, active or not.
#[utoipa::path(get, path = "/scenarios", tag = "faults", responses((status = 200, body = Vec<Scenario>), (status = "default", body = Problem)))]
pub(super) async fn list(State(admin): State<Admin>) -> Json<Vec<Scenario>> {
    let played = played(&admin);
    let shown = |known: &'static scenario::Scenario| shown(known, played.contains(&known.name));
    Json(scenario::Scenario::ALL.iter().map(shown).collect())
}

/// Starts or stops a scenario: adds or removes its rules and backend faults.
#[utoipa::path(put, path = "/scenarios/{scenario}", tag = "faults", params(("scenario" = String, Path, description = "Its name.")),
    request_body = FaultChange, responses((status = 200, body = Scenario), (status = "default", body = Problem)))]
pub(super) async fn switch(
    State(admin): State<Admin>,
    Path(name): Path<String>,
    Json(change): Json<FaultChange>,
) -> Reply<Scenario> {
    let unknown = |error: scenario::UnknownScenario| Refusal::new(Code::NotFound, error.to_string());
    let wanted = scenario::Scenario::named(&name).map_err(unknown)?;
    let (stubs, faults) = (&admin.driver.initial.stubs, &admin.driver.faults);
    scenario::switch(wanted, change.enabled, stubs, faults).map_err(taken)?;
    admin.touch();
    Ok(Json(shown(wanted, change.enabled)))
}

/// The scenarios of which every rule and every backend fault is present.
fn played(admin: &Admin) -> BTreeSet<&'static str> {
    let is_there = |rule: &Rule| admin.driver.faults.has(Origin::Scenario, rule);
    let is_whole = |known: &&scenario::Scenario| known.rules().iter().all(is_there);
    let whole = scenario::Scenario::ALL.iter().filter(is_whole);
    whole.map(|known| known.name).collect()
}

fn shown(known: &scenario::Scenario, enabled: bool) -> Scenario {
    Scenario {
        name: known.name.to_owned(),
        about: known.about().to_owned(),
        enabled,
    }
}
