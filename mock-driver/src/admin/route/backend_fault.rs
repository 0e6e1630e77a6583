use serde_json::Value;

use super::fault::{put_one, refused, remove_one, switch_one};
use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::resource::{BackendFault, FaultChange};
use crate::fault::{Report, Rule, RuleKind};

pub(super) async fn list(admin: &Admin) -> Reply<Vec<BackendFault>> {
    let reports = admin.driver.faults.reports(RuleKind::BackendFault);
    Ok(reports.into_iter().map(shown).collect())
}

pub(super) async fn put(admin: &Admin, fault: Value) -> Reply<BackendFault> {
    let fault = Rule::backend_fault_from_value(fault).map_err(refused)?;
    put_one(admin, fault).map(shown)
}

pub(super) async fn remove(admin: &Admin, fault: &str) -> Reply<()> {
    remove_one(admin, RuleKind::BackendFault, fault)
}

pub(super) async fn switch(admin: &Admin, fault: &str, change: FaultChange) -> Reply<BackendFault> {
    switch_one(admin, RuleKind::BackendFault, fault, change).map(shown)
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
