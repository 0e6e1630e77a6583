//! Label and field selectors (`k8s.io/apimachinery/pkg/labels` and `pkg/fields`).

mod parser;

use serde_json::Value;

use super::names;
use super::object::{self, Object};

/// A label selector: all requirements must hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct LabelSelector(Vec<Requirement>);

/// A field selector: all terms must hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldSelector(Vec<Term>);

#[derive(Clone, Debug)]
struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// A field that must, or must not, have a value.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    pub(crate) field: String,
    pub(crate) value: String,
    pub(crate) equal: bool,
}

// === impl LabelSelector ===

impl LabelSelector {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        parser::parse(text).map(Self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let labels = object::at(object, "/metadata/labels").as_object();
        self.0.iter().all(|requirement| {
            let value = labels
                .and_then(|labels| labels.get(&requirement.key))
                .and_then(Value::as_str);
            requirement.holds(value)
        })
    }
}

// === impl Requirement ===

impl Requirement {
    fn new(key: String, operator: Operator, values: Vec<String>) -> Result<Self, String> {
        let compares = matches!(operator, Operator::GreaterThan | Operator::LessThan);
        for value in &values {
            let found = names::label_value(value);
            if !found.is_empty() {
                return Err(format!("value {value:?} {}", found.join("; ")));
            }
            if compares && value.parse::<i64>().is_err() {
                return Err(format!("value {value:?} must be an integer"));
            }
        }
        Ok(Self {
            key,
            operator,
            values,
        })
    }

    fn holds(&self, value: Option<&str>) -> bool {
        let listed = || value.is_some_and(|value| self.values.iter().any(|allowed| allowed == value));
        let number = |text: &str| text.parse::<i64>().ok();
        let compared = || {
            let found = value.and_then(number)?;
            let limit = number(self.values.first()?)?;
            Some(found.cmp(&limit))
        };
        match self.operator {
            Operator::In => listed(),
            Operator::NotIn => !listed(),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => compared().is_some_and(std::cmp::Ordering::is_gt),
            Operator::LessThan => compared().is_some_and(std::cmp::Ordering::is_lt),
        }
    }
}

// === impl FieldSelector ===

impl FieldSelector {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let operator = ["!=", "==", "="]
                .into_iter()
                .filter_map(|operator| Some((part.find(operator)?, operator)))
                .min_by_key(|(at, operator)| (*at, std::cmp::Reverse(operator.len())));
            let Some((at, operator)) = operator else {
                return Err(format!("invalid selector: '{text}'; can't understand '{part}'"));
            };
            terms.push(Term {
                field: part[..at].to_owned(),
                value: unescape(&part[at + operator.len()..])?,
                equal: operator != "!=",
            });
        }
        Ok(Self(terms))
    }

    pub(crate) fn terms_mut(&mut self) -> &mut Vec<Term> {
        &mut self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a term.
    pub(crate) fn require(&mut self, field: &str, value: &str) {
        self.0.push(Term {
            field: field.to_owned(),
            value: value.to_owned(),
            equal: true,
        });
    }

    /// The value that a field must have.
    pub(crate) fn required(&self, field: &str) -> Option<&str> {
        let mut found = self.0.iter().filter(|term| term.equal && term.field == field);
        found.next().map(|term| term.value.as_str())
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.0.iter().all(|term| {
            let holds = field_value(object, &term.field) == term.value;
            holds == term.equal
        })
    }
}

/// The value of a selectable field as text.
pub(crate) fn field_value(object: &Object, field: &str) -> String {
    let pointer = match field {
        "reportingComponent" | "reportingController" => "/reportingComponent".to_owned(),
        "source" => {
            let component = object::text(object, "/source/component");
            let fallback = object::text(object, "/reportingComponent");
            return if component.is_empty() { fallback } else { component }.to_owned();
        }
        "spec.unschedulable" | "spec.hostNetwork" => {
            let pointer = format!("/{}", field.replace('.', "/"));
            return object::at(object, &pointer)
                .as_bool()
                .unwrap_or_default()
                .to_string();
        }
        "status.podIPs" => "/status/podIP".to_owned(),
        _ => format!("/{}", field.replace('.', "/")),
    };
    object::text(object, &pointer).to_owned()
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn unescape(text: &str) -> Result<String, String> {
    let mut value = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => value.push(escaped),
                Some(other) => {
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: \\{other}"
                    ));
                }
                None => return Err("invalid field selector: invalid escape sequence: \\".into()),
            },
            ',' | '=' => {
                return Err(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(c)
                ));
            }
            _ => value.push(c),
        }
    }
    Ok(value)
}
