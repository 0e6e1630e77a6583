//! A fault file: a list of rules, or a mapping with `rules` and `backend-faults`.

use serde_json::Value;

use super::parse::{FieldError, RuleError, yaml_error};
use super::rule::{Rule, RuleKind};

/// Rules and backend faults of one file or request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// The rules in their order, then the backend faults.
    pub rules: Vec<Rule>,
}

// === impl Script ===

impl Script {
    /// Parses a fault file. An empty text is an empty script.
    ///
    /// # Errors
    /// Those of the first malformed rule.
    pub fn read(yaml: &str) -> Result<Self, RuleError> {
        let whole: Option<Value> =
            serde_saphyr::from_str(yaml).map_err(|error: serde_saphyr::Error| RuleError::NotAList {
                reason: yaml_error(&error),
            })?;
        Self::from_value(whole.unwrap_or_default())
    }

    /// Parses the content of a fault file, such as that of a request of the admin API.
    pub(crate) fn from_value(whole: Value) -> Result<Self, RuleError> {
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
        let mut rules = Rule::from_items(rules)?;
        for (index, fault) in Rule::backend_faults_from_items(backend_faults)?
            .into_iter()
            .enumerate()
        {
            // In the journal, rules and backend faults share the ids.
            if rules.iter().any(|rule| rule.id == fault.id) {
                let error = FieldError(
                    "id".into(),
                    "another rule or backend fault has the same: give each its own".into(),
                );
                return Err(RuleError::at(RuleKind::BackendFault, index, &fault.text, error));
            }
            rules.push(fault);
        }
        Ok(Self { rules })
    }
}
