//! Conditions on a value: of a field of the request, of metadata, of the peer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use prost_reflect::Kind;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::field_path::{self, Target};
use crate::rpc::method::Method;

/// Conditions that must all hold. A scalar stands for `equals`.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Value")]
pub(crate) struct ValueMatch(Vec<Condition>);

#[derive(Clone, Debug)]
enum Condition {
    OneOf(Vec<String>),
    Regex(Regex),
    /// Whether there is a value that is not empty, 0 or false.
    Exists(bool),
    Greater(f64),
    Less(f64),
    Not(ValueMatch),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawConditions {
    equals: Option<Value>,
    one_of: Option<Vec<Value>>,
    regex: Option<String>,
    exists: Option<bool>,
    greater: Option<f64>,
    less: Option<f64>,
    not: Option<ValueMatch>,
}

// === impl ValueMatch ===

impl ValueMatch {
    /// Checks conditions on the requests of methods, of which none could otherwise hold.
    ///
    /// # Errors
    /// The path of the condition, and why none of the methods' requests can meet it.
    pub(crate) fn check(
        conditions: &BTreeMap<String, Self>,
        methods: &[Method],
    ) -> Result<(), (String, String)> {
        for (path, wanted) in conditions {
            let failed = |reason: String| Err((path.clone(), reason));
            if field_path::is_secret(path) {
                return failed("is a secret: in a rule use match.secrets or match.parameters".to_owned());
            }
            let parts = field_path::parts(path);
            let check = |method: &Method| wanted.check_field(&field_path::check(&method.request(), &parts)?);
            if methods.iter().all(|method| check(method).is_err())
                && let Some(Err(reason)) = methods.first().map(check)
            {
                return failed(reason);
            }
        }
        Ok(())
    }

    /// Checks that the values are those of the field's type.
    fn check_field(&self, target: &Target) -> Result<(), String> {
        let field = match target {
            // Texts.
            Target::Entry(..) => return Ok(()),
            Target::Field(field) | Target::Element(field) => field,
        };
        let is_whole_list = matches!(target, Target::Field(_)) && field.is_list();
        for condition in &self.0 {
            match condition {
                Condition::Exists(_) => {}
                Condition::Not(inner) => inner.check_field(target)?,
                _ if is_whole_list => {
                    return Err(format!(
                        "\"{0}\" is a list: use {0}.* for its entries",
                        field.name()
                    ));
                }
                Condition::OneOf(values) => {
                    for value in values {
                        check_value(&field.kind(), value)?;
                    }
                }
                Condition::Regex(_) => check_has_value(&field.kind())?,
                Condition::Greater(_) | Condition::Less(_) => {
                    if matches!(field.kind(), Kind::Bool | Kind::Enum(_)) {
                        return Err("is no number: greater and less never hold".to_owned());
                    }
                    check_has_value(&field.kind())?;
                }
            }
        }
        Ok(())
    }

    /// Whether the fields of a message meet all conditions by path.
    pub(crate) fn all(conditions: &BTreeMap<String, Self>, message: &Value) -> bool {
        let found = |path: &str| field_path::find(message, &field_path::parts(path));
        conditions
            .iter()
            .all(|(path, wanted)| wanted.matches(&found(path)))
    }

    /// Whether the values that were found meet all conditions: `exists` all together, the others one of them.
    pub(super) fn matches(&self, found: &[Cow<'_, Value>]) -> bool {
        let any = |is: &dyn Fn(&str) -> bool| found.iter().any(|value| is(&text(value)));
        let number = |text: &str| text.parse::<f64>().ok();
        self.0.iter().all(|condition| match condition {
            Condition::OneOf(wanted) => any(&|text| wanted.iter().any(|wanted| wanted == text)),
            Condition::Regex(regex) => any(&|text| regex.is_match(text)),
            Condition::Exists(wanted) => found.iter().any(|value| !is_default(value)) == *wanted,
            Condition::Greater(than) => any(&|text| number(text).is_some_and(|number| number > *than)),
            Condition::Less(than) => any(&|text| number(text).is_some_and(|number| number < *than)),
            Condition::Not(inner) => !inner.matches(found),
        })
    }
}

impl TryFrom<Value> for ValueMatch {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        if !value.is_object() && !value.is_array() && !value.is_null() {
            return Ok(Self(vec![Condition::OneOf(vec![text(&value).into_owned()])]));
        }
        let raw: RawConditions = serde_json::from_value(value).map_err(|error| {
            format!("must be a value, or a mapping with equals, one-of, regex, exists, greater, less or not: {error}")
        })?;
        let regex = raw
            .regex
            .map(|regex| Regex::new(&regex).map_err(|error| error.to_string()));
        if raw.equals.is_some() && raw.one_of.is_some() {
            return Err("equals contradicts one-of: give all values in one-of".to_owned());
        }
        let one_of = raw.one_of.or_else(|| raw.equals.map(|wanted| vec![wanted]));
        let one_of = one_of.map(|wanted| wanted.iter().map(|value| text(value).into_owned()).collect());
        let conditions: Vec<Condition> = [
            one_of.map(Condition::OneOf),
            regex.transpose()?.map(Condition::Regex),
            raw.exists.map(Condition::Exists),
            raw.greater.map(Condition::Greater),
            raw.less.map(Condition::Less),
            raw.not.map(Condition::Not),
        ]
        .into_iter()
        .flatten()
        .collect();
        match conditions.is_empty() {
            true => Err("must have a condition, as in {regex: ^vol-}".to_owned()),
            false => Ok(Self(conditions)),
        }
    }
}

/// Checks that a field can have this value.
fn check_value(kind: &Kind, value: &str) -> Result<(), String> {
    if let Kind::Enum(values) = kind
        && values.get_value_by_name(value).is_none()
    {
        let names: Vec<String> = values.values().map(|value| value.name().to_owned()).collect();
        return Err(format!("must be one of {}, not \"{value}\"", names.join(", ")));
    }
    if matches!(kind, Kind::Bool) && !["true", "false"].contains(&value) {
        return Err(format!("must be true or false, not \"{value}\""));
    }
    let has_words = matches!(
        kind,
        Kind::Message(_) | Kind::Enum(_) | Kind::Bool | Kind::String | Kind::Bytes
    );
    if !has_words && value.parse::<f64>().is_err() {
        return Err(format!("must be a number, not \"{value}\""));
    }
    check_has_value(kind)
}

/// Checks that a field has a value of its own.
fn check_has_value(kind: &Kind) -> Result<(), String> {
    match kind.as_message() {
        Some(message) if !message.full_name().starts_with("google.protobuf.") => {
            let names: Vec<String> = message.fields().map(|field| field.name().to_owned()).collect();
            let names = names.join(", ");
            Err(format!(
                "has only the condition exists; name one of its fields: {names}"
            ))
        }
        Some(_) | None => Ok(()),
    }
}

fn is_default(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn text(value: &Value) -> Cow<'_, str> {
    match value.as_str() {
        Some(text) => Cow::Borrowed(text),
        None => Cow::Owned(value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_hold_together() {
        // (conditions, values, whether they match)
        let table = [
            (json!("a"), vec![json!("a")], true),
            (json!("a"), vec![], false),
            (json!(5), vec![json!(5)], true),
            (json!(true), vec![json!(false)], false),
            (json!({"equals": "a"}), vec![json!("b"), json!("a")], true),
            (json!({"one-of": ["a", 7]}), vec![json!(7)], true),
            (json!({"regex": "^vol-[0-9]$"}), vec![json!("vol-7")], true),
            (json!({"regex": "^vol-[0-9]$"}), vec![json!("vol-77")], false),
            (json!({"exists": true}), vec![json!("")], false),
            (json!({"exists": true}), vec![json!("0")], true),
            (json!({"exists": true}), vec![json!("false")], true),
            (json!({"exists": false}), vec![json!(0)], true),
            (json!({"exists": false}), vec![], true),
            (json!({"greater": 4, "less": 6}), vec![json!(5)], true),
            (json!({"greater": 5}), vec![json!(5)], false),
            (json!({"greater": 1}), vec![json!("many")], false),
            (json!({"not": "a"}), vec![json!("b")], true),
            (json!({"not": {"one-of": ["a", "b"]}}), vec![json!("b")], false),
        ];
        for (conditions, values, expected) in table {
            let wanted = ValueMatch::try_from(conditions.clone()).unwrap();
            let values: Vec<_> = values.iter().map(Cow::Borrowed).collect();
            assert_eq!(wanted.matches(&values), expected, "{conditions} {values:?}");
        }
        for wrong in [
            json!([]),
            json!({}),
            json!(null),
            json!({"regex": "("}),
            json!({"above": 1}),
            json!({"equals": "a", "one-of": ["b"]}),
        ] {
            ValueMatch::try_from(wrong).unwrap_err();
        }
    }

    #[test]
    fn rules_accept_conditions_that_one_of_their_methods_can_meet() {
        let check = |path: &str, wanted: Value, methods: &[Method]| {
            let conditions = BTreeMap::from([(path.to_owned(), ValueMatch::try_from(wanted).unwrap())]);
            ValueMatch::check(&conditions, methods)
        };
        let publish = [Method::CreateVolume, Method::ControllerPublishVolume];
        check("readonly", json!(false), &publish).unwrap();
        check("volume_capability.mount", json!({"exists": true}), &publish).unwrap();
        check(
            "volume_capability.access_mode.mode",
            json!({"not": "SINGLE_NODE_WRITER"}),
            &publish,
        )
        .unwrap();
        check(
            "volume_capabilities.*.access_mode.mode",
            json!({"regex": "MULTI"}),
            &publish,
        )
        .unwrap();
        check("parameters.size", json!({"greater": 5}), &publish).unwrap();
        for (path, wanted) in [
            ("readonly", json!({"greater": 0})),
            ("readonly", json!({"not": "no"})),
            ("volume_capability.access_mode.mode", json!(1)),
            ("volume_capability", json!({"regex": "x"})),
            ("disk", json!("x")),
        ] {
            check(path, wanted.clone(), &publish).unwrap_err();
        }
    }
}
