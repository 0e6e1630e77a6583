//! Validation of a pod's affinity and topology spread constraints.

use std::collections::HashSet;

use super::super::field::FieldError;
use super::super::names;
use super::fields::Fields;
use super::{label_selector, node_selector, node_selector_term};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(affinity: &Fields<'_>) {
    let nodes = affinity.child("nodeAffinity");
    if let Some(selector) = nodes.given(REQUIRED) {
        node_selector(&selector);
    }
    for term in nodes.structs(PREFERRED) {
        weight(&term);
        // As upstream, label values may be invalid.
        node_selector_term(&term.child("preference"), false);
    }
    for name in ["podAffinity", "podAntiAffinity"] {
        let pods = affinity.child(name);
        for term in pods.structs(REQUIRED) {
            pod_term(&term);
        }
        for weighted in pods.structs(PREFERRED) {
            weight(&weighted);
            pod_term(&weighted.child("podAffinityTerm"));
        }
    }
}

pub(super) fn topology_spread(spec: &Fields<'_>) {
    let constraints: Vec<Fields<'_>> = spec.structs("topologySpreadConstraints").collect();
    for (index, constraint) in constraints.iter().enumerate() {
        let skew = constraint.integer("maxSkew").unwrap_or_default();
        if skew <= 0 {
            constraint.invalid("maxSkew", skew, "must be greater than zero");
        }
        let (key, action) = (
            constraint.text("topologyKey"),
            constraint.text("whenUnsatisfiable"),
        );
        if key.is_empty() {
            constraint.required("topologyKey", "can not be empty");
        }
        constraint.one_of("whenUnsatisfiable", &["DoNotSchedule", "ScheduleAnyway"]);
        let is_same = |other: &Fields<'_>| {
            other.text("topologyKey") == key && other.text("whenUnsatisfiable") == action
        };
        if constraints[index + 1..].iter().any(is_same) {
            let path = constraint.path("{topologyKey, whenUnsatisfiable}");
            constraint.push(FieldError::duplicate(&path, format!("{{{key}, {action}}}")));
        }
        if let Some(domains) = constraint.integer("minDomains") {
            constraint.in_range("minDomains", 1.., "must be greater than zero");
            if action != "DoNotSchedule" {
                let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                constraint.invalid("minDomains", domains, why);
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if constraint.has(policy) {
                constraint.one_of(policy, &["Honor", "Ignore"]);
            }
        }
        label_keys(constraint);
        if let Some(selector) = constraint.given("labelSelector") {
            label_selector(&selector);
        }
    }
}

fn weight(term: &Fields<'_>) {
    let weight = term.integer("weight").unwrap_or_default();
    if !(1..=100).contains(&weight) {
        term.invalid("weight", weight, "must be in the range 1-100");
    }
}

fn pod_term(term: &Fields<'_>) {
    for name in ["labelSelector", "namespaceSelector"] {
        if let Some(selector) = term.given(name) {
            label_selector(&selector);
        }
    }
    for name in term.texts("namespaces") {
        // The path of Kubernetes.
        term.found("namespace", name, names::dns1123_label(name));
    }
    label_keys(term);
    if term.text("topologyKey").is_empty() {
        term.required("topologyKey", "can not be empty");
    }
    term.check("topologyKey", names::qualified);
}

/// Keys of pod labels, which the strategy has merged into the label selector of the term or constraint.
fn label_keys(term: &Fields<'_>) {
    const MATCH: &str = "matchLabelKeys";
    const MISMATCH: &str = "mismatchLabelKeys";
    for field in [MATCH, MISMATCH] {
        if term.has("labelSelector") {
            term.check_items(field, names::qualified);
        } else if !term.list(field).is_empty() {
            term.forbidden(field, "must not be specified when labelSelector is not set");
        }
    }
    let keys: Vec<&str> = term.texts(MATCH).collect();
    let selector = term.child("labelSelector");
    let labels = selector.entries("matchLabels");
    let mut selected: HashSet<&str> = labels.map(|(key, _)| key.as_str()).collect();
    for expression in selector.structs("matchExpressions") {
        let key = expression.text("key");
        let is_repeated = !selected.insert(key);
        if let Some(index) = keys.iter().rposition(|found| *found == key)
            && is_repeated
        {
            // As upstream, the path does not name the field.
            let path = term.own_path().index(index);
            let why = "exists in both matchLabelKeys and labelSelector";
            term.push(FieldError::invalid(&path, key, why));
        }
    }
    for (index, key) in keys.into_iter().enumerate() {
        if term.texts(MISMATCH).any(|found| found == key) {
            let path = term.path(MATCH).index(index);
            let why = "exists in both matchLabelKeys and mismatchLabelKeys";
            term.push(FieldError::invalid(&path, key, why));
        }
    }
}
