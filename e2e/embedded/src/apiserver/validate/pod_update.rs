//! Validation of changes of Pods.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::field::{Errors, FieldError, Path};
use super::super::names;
use super::super::object::{self, Object, at, list, text};
use super::pod::{metadata_and_spec, tolerations};
use super::{each, immutable, metadata, structs};

pub(super) fn update(object: &Object, old: &Object, errors: &mut Errors) {
    metadata::validate_update(object, old, errors);
    metadata_and_spec(object, errors);
    let path = Path::new("spec");
    for field in ["containers", "initContainers"] {
        let pointer = format!("/spec/{field}");
        if list(object, &pointer).len() != list(old, &pointer).len() {
            let why = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(&path.child(field), why));
            return;
        }
        for (index, container) in structs(object, &pointer) {
            if text(container, "/image").is_empty() {
                let path = path.child(field).index(index).child("image");
                errors.push(FieldError::required(&path, ""));
            }
        }
    }
    if !deadline(object, old, &path, errors) {
        return;
    }
    added_tolerations(object, old, &path.child("tolerations"), errors);
    added_gates(object, old, &path.child("schedulingGates"), errors);
    if fixed_spec(object, old) != *at(old, "/spec") {
        let why = "pod updates may not change fields other than `spec.containers[*].image`,\
                   `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                   existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                   previously negative)\n";
        errors.push(FieldError::forbidden(&path, why));
    }
}

fn added_gates(object: &Object, old: &Object, path: &Path, errors: &mut Errors) {
    let before: Vec<&str> = structs(old, "/spec/schedulingGates")
        .map(|(_, gate)| text(gate, "/name"))
        .collect();
    let after: Vec<&str> = structs(object, "/spec/schedulingGates")
        .map(|(_, gate)| text(gate, "/name"))
        .collect();
    for (index, gate) in after.iter().enumerate() {
        if !before.contains(gate) && !after[index + 1..].contains(gate) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{gate}'");
            errors.push(FieldError::forbidden(&path.index(index).child("name"), why));
        }
    }
}

/// Whether validation goes on.
fn deadline(object: &Object, old: &Object, path: &Path, errors: &mut Errors) -> bool {
    let path = path.child("activeDeadlineSeconds");
    let seconds = |object: &Object| at(object, "/spec/activeDeadlineSeconds").as_i64();
    match (seconds(object), seconds(old)) {
        (Some(new), _) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            let why = "must be between 0 and 2147483647, inclusive";
            errors.push(FieldError::invalid(&path, new, why));
            false
        }
        (Some(new), Some(before)) if before < new => {
            let why = "must be less than or equal to previous value";
            errors.push(FieldError::invalid(&path, new, why));
            false
        }
        (None, Some(_)) => {
            let why = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(&path, Value::Null, why));
            true
        }
        _ => true,
    }
}

fn added_tolerations(object: &Object, old: &Object, path: &Path, errors: &mut Errors) {
    let without_seconds = |toleration: &Value| {
        let mut toleration = toleration.clone();
        if let Value::Object(toleration) = &mut toleration {
            toleration.remove("tolerationSeconds");
        }
        toleration
    };
    let after: Vec<Value> = list(object, "/spec/tolerations")
        .iter()
        .map(without_seconds)
        .collect();
    let kept = |toleration: &Value| after.contains(&without_seconds(toleration));
    if !list(old, "/spec/tolerations").iter().all(kept) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(path, why));
        return;
    }
    tolerations(object, path, errors);
}

/// The new spec with all that may change set back.
fn fixed_spec(object: &Object, old: &Object) -> Value {
    let mut fixed = at(object, "/spec").clone();
    for field in ["containers", "initContainers"] {
        let before = list(old, &format!("/spec/{field}"));
        let containers = fixed.get_mut(field).and_then(Value::as_array_mut);
        for (container, old) in containers.into_iter().flatten().zip(before) {
            container["image"] = old["image"].clone();
        }
    }
    if let Value::Object(fixed) = &mut fixed {
        for name in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
            let before = at(old, &format!("/spec/{name}")).clone();
            object::set(fixed, &format!("/{name}"), before);
        }
    }
    fixed
}

pub(super) fn status(object: &Object, old: &Object, errors: &mut Errors) {
    metadata::validate_update(object, old, errors);
    let path = Path::new("status");
    for (index, condition) in structs(object, "/status/conditions") {
        let kind = text(condition, "/type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            let path = path.child("conditions").index(index).child("Type");
            each(errors, &path, kind, names::qualified(kind));
        }
    }
    let nominated = text(object, "/status/nominatedNodeName");
    if !nominated.is_empty() && nominated != text(old, "/status/nominatedNodeName") {
        let path = path.child("nominatedNodeName");
        each(errors, &path, nominated, names::dns1123_subdomain(nominated));
        if !text(old, "/spec/nodeName").is_empty() {
            let why = "may not be set on pods that are already bound to a node";
            errors.push(FieldError::forbidden(&path, why));
        }
    }
    immutable(errors, &path.child("qosClass"), object, old, "/status/qosClass");
    pod_ips(object, old, &path.child("podIPs"), errors);
}

fn pod_ips(object: &Object, old: &Object, path: &Path, errors: &mut Errors) {
    let addresses: Vec<&str> = structs(object, "/status/podIPs")
        .map(|(_, ip)| text(ip, "/ip"))
        .collect();
    let before: Vec<&str> = structs(old, "/status/podIPs")
        .map(|(_, ip)| text(ip, "/ip"))
        .collect();
    let families: Vec<Option<bool>> = addresses
        .iter()
        .map(|address| address.parse().ok().map(|address: IpAddr| address.is_ipv6()))
        .collect();
    for (index, address) in addresses.iter().enumerate() {
        if families[index].is_none() && !before.contains(address) {
            let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            errors.push(FieldError::invalid(&path.index(index), *address, why));
        }
    }
    let is_pair = matches!(families[..], [Some(first), Some(second)] if first != second);
    if addresses.len() > 1 && !is_pair {
        let shown: Value = addresses.iter().map(|address| json!({ "IP": address })).collect();
        let why = "may specify no more than one IP for each IP family";
        errors.push(FieldError::invalid(path, shown, why));
    }
}
