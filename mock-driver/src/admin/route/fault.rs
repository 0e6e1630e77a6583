//! Fault rules.

use axum::extract::State;
use http::StatusCode;
use serde_json::Value;
use tonic::Code;

use crate::admin::problem::Refusal;
use crate::admin::request::{Created, Deleted, Json, Path, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{FaultChange, FaultRule, Faults, Problem, Released};
use crate::fault::response::replace_texts;
use crate::fault::{Origin, Rule, RuleConflict, RuleError, RuleKind};
use crate::rpc::validate::TOKENS;

/// Lists rules in evaluation order, with their counters.
#[utoipa::path(get, path = "/faults", tag = "faults", responses((status = 200, body = Faults), (status = "default", body = Problem)))]
pub(super) async fn list(State(admin): State<Admin>) -> Json<Faults> {
    let faults = &admin.driver.faults;
    Json(Faults {
        seed: faults.seed.0,
        state: faults.state().to_string(),
        rules: faults
            .reports(RuleKind::Rule)
            .into_iter()
            .map(|report| shown(&admin, report))
            .collect(),
    })
}

/// Creates or replaces a rule; a new one precedes the rules of file and scenario. ALREADY_EXISTS if the id belongs
/// to one of those.
#[utoipa::path(post, path = "/faults", tag = "faults",
    request_body(content = Object, description = "A rule, written as in the fault file but in JSON."),
    responses((status = 201, body = FaultRule), (status = "default", body = Problem)))]
pub(super) async fn put(State(admin): State<Admin>, Json(rule): Json<Value>) -> Created<FaultRule> {
    let rule = Rule::from_value(rule).map_err(refused)?;
    let report = put_one(&admin, rule)?;
    Ok((StatusCode::CREATED, Json(shown(&admin, report))))
}

/// Deletes all rules that were set at run time. Those of the file and of scenarios stay.
#[utoipa::path(delete, path = "/faults", tag = "faults", responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn clear(State(admin): State<Admin>) -> Deleted {
    let cleared = admin.driver.faults.replace(Origin::Admin, Vec::new());
    cleared.map_err(taken)?;
    admin.touch();
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes a rule of any origin and releases the calls that it blocks.
#[utoipa::path(delete, path = "/faults/{rule}", tag = "faults", params(("rule" = String, Path, description = "Its id.")),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn remove(State(admin): State<Admin>, Path(rule): Path<String>) -> Deleted {
    remove_one(&admin, RuleKind::Rule, &rule)
}

/// Enables or disables a rule. Disabling releases the calls that it blocks.
#[utoipa::path(patch, path = "/faults/{rule}", tag = "faults", params(("rule" = String, Path, description = "Its id.")),
    request_body = FaultChange, responses((status = 200, body = FaultRule), (status = "default", body = Problem)))]
pub(super) async fn switch(
    State(admin): State<Admin>,
    Path(rule): Path<String>,
    Json(change): Json<FaultChange>,
) -> Reply<FaultRule> {
    let report = switch_one(&admin, RuleKind::Rule, &rule, change)?;
    Ok(Json(shown(&admin, report)))
}

/// Releases the calls that a rule blocks (`action.hang: release`).
#[utoipa::path(post, path = "/faults/{rule}/release", tag = "faults", params(("rule" = String, Path, description = "Its id.")),
    responses((status = 200, body = Released), (status = "default", body = Problem)))]
pub(super) async fn release(State(admin): State<Admin>, Path(rule): Path<String>) -> Reply<Released> {
    let released = admin.driver.faults.release(Some(&rule));
    let calls = released.ok_or_else(|| Refusal::not_found(RuleKind::Rule.name(), &rule))?;
    admin.touch();
    Ok(Json(Released { calls }))
}

/// Resets counters, state, and whether each rule is enabled.
#[utoipa::path(post, path = "/faults/reset", tag = "faults", responses((status = 200, body = Faults), (status = "default", body = Problem)))]
pub(super) async fn reset(State(admin): State<Admin>) -> Json<Faults> {
    admin.driver.faults.reset();
    admin.touch();
    list(State(admin)).await
}

pub(super) fn put_one(admin: &Admin, rule: Rule) -> Result<FaultRule, Refusal> {
    let (kind, id) = (rule.kind, rule.id.clone());
    admin.driver.faults.put(rule).map_err(taken)?;
    admin.touch();
    find(admin, kind, &id)
}

pub(super) fn switch_one(
    admin: &Admin,
    kind: RuleKind,
    id: &str,
    change: FaultChange,
) -> Result<FaultRule, Refusal> {
    admin.driver.faults.set_enabled(kind, id, change.enabled);
    admin.touch();
    find(admin, kind, id)
}

pub(super) fn remove_one(admin: &Admin, kind: RuleKind, id: &str) -> Deleted {
    if !admin.driver.faults.remove(kind, id) {
        return Err(Refusal::not_found(kind.name(), id));
    }
    admin.touch();
    Ok(StatusCode::NO_CONTENT)
}

fn find(admin: &Admin, kind: RuleKind, id: &str) -> Result<FaultRule, Refusal> {
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
    let redact = |secret: &str| match &admin.driver.journal {
        Some(journal) => journal.renderer.redact(secret),
        None => "hidden".to_owned(),
    };
    for part in ["/match", "/match/not"] {
        let Some(part) = rule.pointer_mut(part) else {
            continue;
        };
        for field in ["secrets", "metadata"] {
            if let Some(value) = part.get_mut(field) {
                replace_texts(value, &redact);
            }
        }
        let parameters = part.get_mut("parameters");
        if let Some(tokens) = parameters.and_then(|parameters| parameters.get_mut(TOKENS)) {
            replace_texts(tokens, &redact);
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

/// The rule or backend fault is invalid.
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
        put(State(admin.clone()), Json(rule)).await.unwrap();
        let listed = serde_json::to_string(&list(State(admin)).await.0).unwrap();
        assert!(!listed.contains("hush"), "{listed}");
        assert!(
            listed.contains("\"exists\":true") && listed.contains("one-of"),
            "{listed}"
        );
    }
}
