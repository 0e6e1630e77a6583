//! Validation of a pod's affinity and topology spread constraints.

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
            constraint.invalid("maxSkew", skew, "must be greater than 0");
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
            constraint.in_range("minDomains", 1.., "must be greater than 0");
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
    if term.text("topologyKey").is_empty() {
        term.required("topologyKey", "can not be empty");
    }
    term.check("topologyKey", names::qualified);
}
