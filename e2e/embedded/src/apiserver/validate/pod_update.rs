//! Validation of changes of Pods.

use serde_json::Value;

use super::super::field::{FieldError, Path};
use super::super::object::{self, ANN_MIRROR_POD, EPHEMERAL_CONTAINERS, Object, at, list};
use super::container::trimmed_image;
use super::fields::{Fields, sorted};
use super::pod::{metadata_and_spec, tolerations};
use super::{metadata, pod_annotations, shown_term};

pub(super) fn update(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    metadata_and_spec(object, Some(old));
    pod_annotations::validate_update(object, old);
    let spec = &object.child("spec");
    for field in ["containers", "initContainers"] {
        if spec.list(field).len() != list(old, &format!("/spec/{field}")).len() {
            spec.forbidden(field, "pod updates may not add or remove containers");
            return;
        }
        for container in spec.structs(field) {
            container.require("image");
            trimmed_image(&container);
        }
    }
    if !deadline(spec, old) {
        return;
    }
    added_tolerations(spec, old);
    added_gates(spec, old);
    let mut fixed = fixed_spec(object.object, old);
    if !list(old, "/spec/schedulingGates").is_empty() {
        gated(spec, old, &mut fixed);
    }
    if Value::Object(fixed) != *at(old, "/spec") {
        let why = "pod updates may not change fields other than `spec.containers[*].image`,\
                   `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                   existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                   previously negative)\n";
        object.forbidden("spec", why);
    }
}

fn added_gates(spec: &Fields<'_>, old: &Object) {
    let before = list(old, "/spec/schedulingGates");
    let gates: Vec<Fields<'_>> = spec.structs("schedulingGates").collect();
    for (index, gate) in gates.iter().enumerate() {
        let name = gate.text("name");
        let is_known = before.iter().any(|found| found["name"] == name);
        if !is_known && !gates[index + 1..].iter().any(|later| later.text("name") == name) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            gate.forbidden("name", why);
        }
    }
}

/// Validates `activeDeadlineSeconds`; returns whether validation continues.
fn deadline(spec: &Fields<'_>, old: &Object) -> bool {
    let field = "activeDeadlineSeconds";
    match (
        spec.integer(field),
        at(old, "/spec/activeDeadlineSeconds").as_i64(),
    ) {
        (Some(new), _) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            spec.invalid(field, new, "must be between 0 and 2147483647, inclusive");
            false
        }
        (Some(new), Some(before)) if before < new => {
            spec.invalid(field, new, "must be less than or equal to previous value");
            false
        }
        (None, Some(_)) => {
            let why = "must not update from a positive integer to nil value";
            spec.invalid(field, Value::Null, why);
            true
        }
        _ => true,
    }
}

fn added_tolerations(spec: &Fields<'_>, old: &Object) {
    let without_seconds = |tolerations: &[Value]| {
        let mut tolerations = tolerations.to_vec();
        for toleration in tolerations.iter_mut().filter_map(Value::as_object_mut) {
            toleration.remove("tolerationSeconds");
        }
        tolerations
    };
    let after = without_seconds(spec.list("tolerations"));
    let before = without_seconds(list(old, "/spec/tolerations"));
    if before.iter().all(|toleration| after.contains(toleration)) {
        tolerations(spec, "tolerations");
    } else {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        spec.forbidden("tolerations", why);
    }
}

/// Changes that are allowed before a pod is scheduled: additions to its node selector and required node affinity.
fn gated(spec: &Fields<'_>, old: &Object, fixed: &mut Object) {
    const SELECTOR: &str = "nodeSelector";
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let old = object::struct_at(old, "spec");
    let before = object::struct_at(old, SELECTOR);
    let after = object::struct_at(spec.object, SELECTOR);
    if !before.iter().all(|(key, value)| after.get(key) == Some(value)) {
        let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        spec.invalid(SELECTOR, sorted(spec.get(SELECTOR)), why);
    }
    object::copy(fixed, old, "/nodeSelector");

    let before = at(old, "/affinity/nodeAffinity");
    let path = "/affinity/nodeAffinity";
    if before == at(fixed, path) {
        return;
    }
    let terms_pointer = format!("{path}/{REQUIRED}/nodeSelectorTerms");
    let (old_terms, terms) = (list(old, &terms_pointer), list(fixed, &terms_pointer));
    let affinity = spec.child("affinity").child("nodeAffinity").child(REQUIRED);
    if !old_terms.is_empty() && old_terms.len() != terms.len() {
        let why = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        let shown: Vec<Value> = terms.iter().map(shown_term).collect();
        let shown = if shown.is_empty() {
            Value::Null
        } else {
            shown.into()
        };
        affinity.invalid("nodeSelectorTerms", shown, why);
    } else {
        for (index, (old, new)) in old_terms.iter().zip(terms).enumerate() {
            if !only_adds(old, new) {
                let path = affinity.path("nodeSelectorTerms").index(index);
                let why = "only additions are allowed (no mutations or deletions)";
                affinity.push(FieldError::invalid(&path, shown_term(new), why));
            }
        }
    }
    let without_pods = ["podAffinity", "podAntiAffinity"]
        .iter()
        .all(|name| at(fixed, &format!("/affinity/{name}")).is_null());
    if !before.is_null() || object::has(fixed, "/affinity") && object::has(old, "/affinity") {
        object::copy(fixed, old, path);
    } else if without_pods {
        object::set(fixed, "/affinity", Value::Null);
    } else {
        object::set(fixed, path, Value::Null);
    }
}

/// Whether a node selector term begins with all requirements of the old one.
fn only_adds(old: &Value, new: &Value) -> bool {
    let requirements = |term: &Value, name: &str| term[name].as_array().cloned().unwrap_or_default();
    let names = ["matchExpressions", "matchFields"];
    let is_empty = |term: &Value| names.iter().all(|name| requirements(term, name).is_empty());
    if is_empty(old) && !is_empty(new) {
        return false;
    }
    names
        .iter()
        .all(|name| requirements(new, name).starts_with(&requirements(old, name)))
}

/// The new spec with all mutable fields reset to their old values.
fn fixed_spec(object: &Object, old: &Object) -> Object {
    let mut fixed = object::struct_at(object, "spec").clone();
    for field in ["containers", "initContainers"] {
        let before = list(old, &format!("/spec/{field}"));
        let containers = fixed.get_mut(field).and_then(Value::as_array_mut);
        for (container, old) in containers.into_iter().flatten().zip(before) {
            container["image"] = old["image"].clone();
        }
    }
    let grace = "/terminationGracePeriodSeconds";
    let old = object::struct_at(old, "spec");
    if at(old, grace).as_i64().is_some_and(|seconds| seconds < 0) && at(&fixed, grace) == 1 {
        object::copy(&mut fixed, old, grace);
    }
    for name in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        object::copy(&mut fixed, old, &format!("/{name}"));
    }
    fixed
}

/// Validates an update of the `ephemeralcontainers` subresource, which only adds containers.
pub(super) fn ephemeral_containers(object: &Fields<'_>, old: &Object) {
    if at(old, "/metadata/annotations").get(ANN_MIRROR_POD).is_some() {
        let why = "static pods do not support ephemeral containers";
        return object.push(FieldError::forbidden(&Path::default(), why));
    }
    metadata::validate_update(object, old);
    metadata_and_spec(object, Some(old));
    pod_annotations::validate_update(object, old);
    let spec = object.child("spec");
    let containers = spec.list(EPHEMERAL_CONTAINERS);
    for old in list(old, "/spec/ephemeralContainers") {
        let mut same_name = containers.iter().rev().filter(|new| new["name"] == old["name"]);
        let what = match same_name.next() {
            Some(new) if new == old => continue,
            Some(_) => "changed",
            None => "removed",
        };
        let why = format!(
            "existing ephemeral containers {} may not be {what}\n",
            old["name"]
        );
        spec.forbidden(EPHEMERAL_CONTAINERS, why);
    }
}
