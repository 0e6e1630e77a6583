use serde_json::Value;
use tonic::Code;

use crate::admin::problem::Refusal;
use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::query::FileQuery;
use crate::admin_api::resource::{FaultChange, FaultRule, Faults, Released};
use crate::fault::response::replace_texts;
use crate::fault::{Origin, Rule, RuleConflict, RuleError, RuleKind};
use crate::rpc::validate::TOKENS;

pub(super) async fn list(admin: &Admin) -> Reply<Faults> {
    let faults = &admin.driver.faults;
    let reports = faults.reports(RuleKind::Rule).into_iter();
    Ok(Faults {
        seed: faults.seed.0,
        state: faults.state().to_string(),
        rules: reports.map(|report| shown(admin, report)).collect(),
    })
}

pub(super) async fn put(admin: &Admin, rule: Value) -> Reply<FaultRule> {
    let rule = Rule::from_value(rule).map_err(refused)?;
    put_one(admin, rule).map(|report| shown(admin, report))
}

pub(super) async fn put_file(admin: &Admin, query: FileQuery, file: Value) -> Reply<Faults> {
    let rules = Rule::list_from_value(file).map_err(refused)?;
    if query.dry_run == Some(true) {
        admin.driver.faults.check(&rules).map_err(taken)?;
    } else {
        admin.driver.faults.put_all(rules).map_err(taken)?;
        admin.touch();
    }
    list(admin).await
}

pub(super) async fn clear(admin: &Admin) -> Reply<()> {
    let cleared = admin.driver.faults.replace(Origin::Admin, Vec::new());
    cleared.map_err(taken)?;
    admin.touch();
    Ok(())
}

pub(super) async fn remove(admin: &Admin, rule: &str) -> Reply<()> {
    remove_one(admin, RuleKind::Rule, rule)
}

pub(super) async fn switch(admin: &Admin, rule: &str, change: FaultChange) -> Reply<FaultRule> {
    switch_one(admin, RuleKind::Rule, rule, change).map(|report| shown(admin, report))
}

pub(super) async fn release(admin: &Admin, rule: &str) -> Reply<Released> {
    let released = admin.driver.faults.release(Some(rule));
    let calls = released.ok_or_else(|| Refusal::not_found(RuleKind::Rule.name(), rule))?;
    admin.touch();
    Ok(Released { calls })
}

pub(super) async fn reset(admin: &Admin) -> Reply<Faults> {
    admin.driver.faults.reset();
    admin.touch();
    list(admin).await
}

pub(super) fn put_one(admin: &Admin, rule: Rule) -> Reply<FaultRule> {
    let (kind, id) = (rule.kind, rule.id.clone());
    admin.driver.faults.put(rule).map_err(taken)?;
    admin.touch();
    find(admin, kind, &id)
}

pub(super) fn switch_one(admin: &Admin, kind: RuleKind, id: &str, change: FaultChange) -> Reply<FaultRule> {
    admin.driver.faults.set_enabled(kind, id, change.enabled);
    admin.touch();
    find(admin, kind, id)
}

pub(super) fn remove_one(admin: &Admin, kind: RuleKind, id: &str) -> Reply<()> {
    if !admin.driver.faults.remove(kind, id) {
        return Err(Refusal::not_found(kind.name(), id));
    }
    admin.touch();
    Ok(())
}

fn find(admin: &Admin, kind: RuleKind, id: &str) -> Reply<FaultRule> {
    let mut reports = admin.driver.faults.reports(kind).into_iter();
    let report = reports.find(|report| report.id == id);
    report.ok_or_else(|| Refusal::not_found(kind.name(), id))
}

fn shown(admin: &Admin, mut report: FaultRule) -> FaultRule {
    hide_secrets(admin, &mut report.rule);
    report
}

/// A rule that matches secrets contains them, and metadata may have a token. They are shown as hashes, like those of a call, so that
/// both can be compared.
fn hide_secrets(admin: &Admin, rule: &mut Value) {
    let mut redact = |secret: &str| match &admin.driver.journal {
        Some(journal) => journal.renderer.redact(secret),
        None => "hidden".to_owned(),
    };
    for part in ["/match", "/match/not"] {
        let Some(part) = rule.pointer_mut(part) else {
            continue;
        };
        for field in ["secrets", "metadata"] {
            if let Some(value) = part.get_mut(field) {
                replace_texts(value, &mut redact);
            }
        }
        let parameters = part.get_mut("parameters");
        if let Some(tokens) = parameters.and_then(|parameters| parameters.get_mut(TOKENS)) {
            replace_texts(tokens, &mut redact);
        }
    }
}

/// The rule or backend fault does not fit to the others.
pub(super) fn taken(error: RuleConflict) -> Refusal {
    match &error {
        RuleConflict::Id { .. } => Refusal::new(Code::AlreadyExists, error.to_string()),
        RuleConflict::State { .. } => Refusal::invalid("match.while.state", error.to_string()),
        RuleConflict::NoEffect { .. } | RuleConflict::Io { .. } => {
            Refusal::new(Code::FailedPrecondition, error.to_string())
        }
    }
}

pub(super) fn refused(error: RuleError) -> Refusal {
    match &error {
        RuleError::NotAList { .. } => Refusal::new(Code::InvalidArgument, error.to_string()),
        RuleError::Rule { field, .. } => Refusal::invalid(field.clone(), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::driver::{Driver, Settings};

    #[tokio::test]
    async fn metadata_of_a_rule_is_hidden() {
        let admin = Admin {
            driver: Driver::in_memory(Settings::default()).unwrap(),
            stop: CancellationToken::new(),
            started: jiff::Timestamp::UNIX_EPOCH,
        };
        let metadata = json!({"authorization": "hush", "x": {"one-of": ["hush", "hush2"], "exists": true}});
        let rule = json!({"id": "x", "match": {"metadata": metadata, "not": {"metadata": {"y": {"regex": "^hush"}}}},
            "action": {"delay": "1s"}});
        put(&admin, rule).await.unwrap();
        let listed = serde_json::to_string(&list(&admin).await.unwrap()).unwrap();
        assert!(!listed.contains("hush"), "{listed}");
        assert!(
            listed.contains("\"exists\":true") && listed.contains("one-of"),
            "{listed}"
        );
    }
}
