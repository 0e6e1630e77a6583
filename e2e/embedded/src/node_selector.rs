//! Node selectors and label selectors, as the scheduler and the PV controller evaluate them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Whether one term of the selector matches the node.
pub(crate) fn matches(selector: &NodeSelector, node: &Node) -> bool {
    selector
        .node_selector_terms
        .iter()
        .any(|term| term_matches(term, node))
}

/// A term without requirements matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let no_labels = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&no_labels);
    let fields = BTreeMap::from([(
        "metadata.name".to_owned(),
        node.metadata.name.clone().unwrap_or_default(),
    )]);
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let field_requirements = term.match_fields.as_deref().unwrap_or_default();
    !(expressions.is_empty() && field_requirements.is_empty())
        && expressions
            .iter()
            .all(|requirement| requirement_matches(requirement, labels))
        && field_requirements
            .iter()
            .all(|requirement| requirement_matches(requirement, &fields))
}

fn requirement_matches(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    operator_matches(&requirement.operator, labels.get(&requirement.key), values)
}

/// Whether a label selector matches; a missing selector matches everything here.
pub(crate) fn label_selector_matches(
    selector: Option<&LabelSelector>,
    labels: Option<&BTreeMap<String, String>>,
) -> bool {
    let Some(selector) = selector else { return true };
    let value = |key: &str| labels.and_then(|labels| labels.get(key));
    let equal = selector
        .match_labels
        .iter()
        .flatten()
        .all(|(key, expected)| value(key) == Some(expected));
    let expressions = selector.match_expressions.iter().flatten().all(|requirement| {
        let values = requirement.values.as_deref().unwrap_or_default();
        operator_matches(&requirement.operator, value(&requirement.key), values)
    });
    equal && expressions
}

fn operator_matches(operator: &str, value: Option<&String>, values: &[String]) -> bool {
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    match operator {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number(value) > number(values.first()) && value.is_some(),
        "Lt" => value.is_some() && number(value) < number(values.first()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_ored_and_requirements_are_anded() {
        let node: Node = serde_json::from_value(
            serde_json::json!({"metadata": {"name": "a", "labels": {"zone": "z1", "n": "5"}}}),
        )
        .unwrap();
        let requirement = |key: &str, operator: &str, values: &[&str]| serde_json::json!({"key": key, "operator": operator, "values": values});
        let cases = [
            (
                serde_json::json!([{"matchExpressions": [requirement("zone", "In", &["z1", "z2"])]}]),
                true,
            ),
            (
                serde_json::json!([{"matchExpressions": [requirement("zone", "NotIn", &["z1"])]}]),
                false,
            ),
            (
                serde_json::json!([{"matchExpressions":
                    [requirement("zone", "In", &["z1"]), requirement("rack", "Exists", &[])]}]),
                false,
            ),
            (
                serde_json::json!([{"matchExpressions": [requirement("rack", "Exists", &[])]},
                    {"matchExpressions": [requirement("n", "Gt", &["4"])]}]),
                true,
            ),
            (
                serde_json::json!([{"matchFields": [requirement("metadata.name", "In", &["a"])]}]),
                true,
            ),
            (serde_json::json!([{}]), false),
        ];
        for (terms, expected) in cases {
            let selector =
                serde_json::from_value(serde_json::json!({"nodeSelectorTerms": terms.clone()})).unwrap();
            assert_eq!(matches(&selector, &node), expected, "{terms}");
        }
    }
}
