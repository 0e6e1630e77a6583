use std::collections::BTreeSet;

use tonic::Code;

use super::fault::taken;
use crate::admin::problem::Refusal;
use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::resource::{FaultChange, Scenario};
use crate::fault::{Origin, Rule, scenario};

pub(super) async fn list(admin: &Admin) -> Reply<Vec<Scenario>> {
    let played = played(admin);
    let shown = |known: &'static scenario::Scenario| shown(known, played.contains(&known.name));
    Ok(scenario::Scenario::ALL.iter().map(shown).collect())
}

pub(super) async fn switch(admin: &Admin, name: &str, change: FaultChange) -> Reply<Scenario> {
    let unknown = |error: scenario::UnknownScenario| Refusal::new(Code::NotFound, error.to_string());
    let wanted = scenario::Scenario::named(name).map_err(unknown)?;
    let (stubs, faults) = (&admin.driver.settings.stubs, &admin.driver.faults);
    scenario::switch(wanted, change.enabled, stubs, faults).map_err(taken)?;
    admin.touch();
    Ok(shown(wanted, change.enabled))
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
