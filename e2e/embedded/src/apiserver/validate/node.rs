//! Validation of Nodes, and of taints and tolerations.

use std::collections::HashSet;

use super::super::names;
use super::super::object::{Object, text};
use super::fields::Fields;
use super::volume::not_negative;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn node(object: &Fields<'_>) {
    let spec = object.child("spec");
    let mut seen = HashSet::new();
    for taint in spec.structs("taints") {
        taint.check("key", names::qualified);
        taint.check("value", names::label_value);
        if !taint.require("effect").is_empty() {
            taint.one_of("effect", &EFFECTS);
        }
        if !seen.insert((taint.text("effect"), taint.text("key"))) {
            taint.duplicate("key", taint.text("key"));
        }
    }
    let status = object.child("status");
    for list in ["capacity", "allocatable"] {
        for (name, value) in status.entries(list) {
            status.found(list, name, names::qualified(name));
            not_negative(&status, &status.path(list).key(name), value);
        }
    }
}

pub(super) fn update(object: &Fields<'_>, old: &Object) {
    node(object);
    let spec = object.child("spec");
    let provider = text(old, "/spec/providerID");
    if !provider.is_empty() && provider != spec.text("providerID") {
        let why = "node updates may not change providerID except from \"\" to valid";
        spec.forbidden("providerID", why);
    }
}

/// The tolerations of a pod.
pub(super) fn tolerations(spec: &Fields<'_>) {
    for toleration in spec.structs("tolerations") {
        let (key, operator) = (toleration.text("key"), toleration.text("operator"));
        toleration.check_given("key", names::qualified);
        if key.is_empty() && operator != "Exists" {
            toleration.invalid("operator", operator, "must be Exists when `key` is empty");
        }
        if toleration.has("tolerationSeconds") && toleration.text("effect") != "NoExecute" {
            let why = "must be 'NoExecute' when `tolerationSeconds` is set";
            toleration.invalid("effect", toleration.text("effect"), why);
        }
        match operator {
            "Equal" | "" => toleration.check("value", names::label_value),
            "Exists" if toleration.text("value").is_empty() => {}
            "Exists" => toleration.forbidden("value", "must be empty when `operator` is 'Exists'"),
            _ => toleration.one_of("operator", &["Equal", "Exists"]),
        }
        if !toleration.text("effect").is_empty() {
            toleration.one_of("effect", &EFFECTS);
        }
    }
}
