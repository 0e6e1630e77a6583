//! Parses rules in YAML.
//!
//! Unknown fields, methods and codes are errors that name the rule and the field; so are rules that cannot fire and parts
//! that contradict each other.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::action::RawAction;
use self::field_error::FieldError;
use self::value::Effect;
use super::rule::{Match, Phase, Rule, RuleKind};

mod action;
pub(super) mod field_error;
mod matching;
pub(super) mod value;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum RuleError {
    #[error("not a YAML list of rules: {reason}")]
    NotAList { reason: String },
    #[error("{} {number}{}: {field}: {reason}", kind.name(), id.as_ref().map(|id| format!(" (\"{id}\")")).unwrap_or_default())]
    Rule {
        kind: RuleKind,
        number: usize,
        id: Option<String>,
        field: String,
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    id: String,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(rename = "match")]
    matches: Option<Match>,
    phase: Option<Phase>,
    action: RawAction,
    times: Option<u64>,
}

// === impl RuleError ===

impl RuleError {
    pub(super) fn at(
        kind: RuleKind,
        index: usize,
        item: &Value,
        FieldError(field, reason): FieldError,
    ) -> Self {
        let id = item.get("id").and_then(Value::as_str).map(str::to_owned);
        Self::Rule {
            kind,
            number: index + 1,
            id,
            field,
            reason,
        }
    }
}

// === impl Rule ===

impl Rule {
    /// Parses a fault file: a list of rules, or a mapping with `rules` and `backend-faults`. Returns the rules in their order,
    /// then the backend faults. An empty text is an empty list.
    ///
    /// # Errors
    /// Those of the first malformed rule.
    pub fn read_list(yaml: &str) -> Result<Vec<Self>, RuleError> {
        // The error is without the lines of the text, which may contain secrets.
        let whole: Option<Value> =
            serde_saphyr::from_str(yaml).map_err(|error: serde_saphyr::Error| RuleError::NotAList {
                reason: error.without_snippet().to_string(),
            })?;
        Self::list_from_value(whole.unwrap_or_default())
    }

    /// Parses the content of a fault file, such as that of a request of the admin API.
    ///
    /// # Errors
    /// Those of [`Rule::read_list`].
    pub(crate) fn list_from_value(whole: Value) -> Result<Vec<Self>, RuleError> {
        let not_a_list = |reason: String| RuleError::NotAList { reason };
        let (rules, backend_faults) = match whole {
            Value::Null => (Vec::new(), Vec::new()),
            Value::Array(rules) => (rules, Vec::new()),
            Value::Object(mut parts) => {
                let mut part = |name: &str| match parts.remove(name) {
                    None | Some(Value::Null) => Ok(Vec::new()),
                    Some(Value::Array(items)) => Ok(items),
                    Some(_) => Err(not_a_list(format!("{name}: must be a list"))),
                };
                let lists = (part("rules")?, part("backend-faults")?);
                if let Some(odd) = parts.keys().next() {
                    return Err(not_a_list(format!(
                        "{odd}: unknown field, a fault file has rules and backend-faults"
                    )));
                }
                lists
            }
            Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                return Err(not_a_list(
                    "write a list, or a mapping with rules and backend-faults".into(),
                ));
            }
        };
        let mut all: Vec<Self> = Vec::new();
        for (kind, items) in [(RuleKind::Rule, rules), (RuleKind::BackendFault, backend_faults)] {
            for (index, item) in items.into_iter().enumerate() {
                let wrong = |error| RuleError::at(kind, index, &item, error);
                let rule = match kind {
                    RuleKind::Rule => Self::read(&item),
                    RuleKind::BackendFault => Self::read_backend_fault(&item),
                };
                let rule = rule.map_err(wrong)?;
                // In the journal, rules and backend faults share the ids.
                if let Some(first) = all.iter().find(|other| other.id == rule.id) {
                    let mut alike = all.iter().filter(|other| other.kind == first.kind);
                    let number = alike.position(|other| other.id == rule.id).unwrap_or_default() + 1;
                    let kind = first.kind.name();
                    let reason = format!("{kind} {number} has the same: give each its own");
                    return Err(wrong(FieldError("id".into(), reason)));
                }
                all.push(rule);
            }
        }
        Ok(all)
    }

    /// Parses a rule, such as that of a request of the admin API.
    ///
    /// # Errors
    /// The rule is malformed.
    pub fn from_value(item: Value) -> Result<Self, RuleError> {
        Self::read(&item).map_err(|error| RuleError::at(RuleKind::Rule, 0, &item, error))
    }

    fn read(item: &Value) -> Result<Self, FieldError> {
        let raw: RawRule = deserialize(item.clone())?;
        if raw.id.is_empty() {
            return Err(FieldError::new("id", "must not be empty"));
        }
        if raw.times == Some(0) {
            return Err(FieldError::new(
                "times",
                "must be at least 1; omit it for no limit",
            ));
        }
        let matches = raw.matches.unwrap_or_default();
        matches.check()?;
        let phase = match (raw.phase, raw.action.effect) {
            (Some(_), Some(_)) => {
                let reason =
                    "contradicts phase: effect: false is phase: before, true is after, later is background";
                return Err(FieldError::new("action.effect", reason));
            }
            (phase, effect) => phase.or(effect.map(Effect::phase)).unwrap_or_default(),
        };
        let action = raw.action.read(&item["action"], phase, &matches)?;
        let not = item["match"].get("not");
        if not.is_some_and(|not| !has_condition(not)) {
            return Err(FieldError::new(
                "match.not",
                "must have a condition: without one, the rule never fires",
            ));
        }
        if !has_condition(&item["match"]) {
            let reason = "must be set: write match: {method: ControllerPublishVolume}, or match: {method: '*'} for every call";
            return Err(FieldError::new("match", reason));
        }
        Ok(Self {
            id: raw.id,
            kind: RuleKind::Rule,
            enabled: raw.enabled,
            action,
            matches,
            phase,
            times: raw.times,
            overlay: None,
            counts_volumes: false,
            text: item.clone(),
        })
    }
}

pub(super) fn deserialize<T: DeserializeOwned>(item: Value) -> Result<T, FieldError> {
    serde_path_to_error::deserialize(item).map_err(|error| {
        let field = error.path().to_string();
        // The message of serde contains the value.
        let reason = match field.starts_with("match.secrets") || field.starts_with("match.not.secrets") {
            true => "must be a map of strings: put each value in quotes".to_owned(),
            false => error.inner().to_string(),
        };
        FieldError(field, reason)
    })
}

/// Whether a `match` has a field that is not empty.
fn has_condition(matches: &Value) -> bool {
    match matches {
        Value::Null => false,
        Value::Object(fields) => fields.values().any(has_condition),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => true,
    }
}

pub(super) fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests;
