//! Validation of changes of Pods.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::field::FieldError;
use super::super::names;
use super::super::object::{self, Object, at, list, text};
use super::fields::Fields;
use super::metadata;
use super::pod::{metadata_and_spec, tolerations};

pub(super) fn update(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    metadata_and_spec(object);
    let spec = &object.child("spec");
    for field in ["containers", "initContainers"] {
        if spec.list(field).len() != list(old, &format!("/spec/{field}")).len() {
            spec.forbidden(field, "pod updates may not add or remove containers");
            return;
        }
        for container in spec.structs(field) {
            container.require("image");
        }
    }
    if !deadline(spec, old) {
        return;
    }
    added_tolerations(spec, old);
    added_gates(spec, old);
    if fixed_spec(object.object, old) != *at(old, "/spec") {
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

/// Whether validation goes on.
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
        tolerations(spec);
    } else {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        spec.forbidden("tolerations", why);
    }
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

pub(super) fn status(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    let status = &object.child("status");
    for condition in status.structs("conditions") {
        let kind = condition.text("type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            condition.found("Type", kind, names::qualified(kind));
        }
    }
    let nominated = status.text("nominatedNodeName");
    if !nominated.is_empty() && nominated != text(old, "/status/nominatedNodeName") {
        status.check("nominatedNodeName", names::dns1123_subdomain);
        if !text(old, "/spec/nodeName").is_empty() {
            let why = "may not be set on pods that are already bound to a node";
            status.forbidden("nominatedNodeName", why);
        }
    }
    status.immutable(object::struct_at(old, "status"), "qosClass");
    pod_ips(status, list(old, "/status/podIPs"));
}

fn pod_ips(status: &Fields<'_>, before: &[Value]) {
    let addresses: Vec<Fields<'_>> = status.structs("podIPs").collect();
    let address = |fields: &Fields<'_>| fields.text("ip").parse().ok();
    let families: Vec<Option<bool>> = addresses
        .iter()
        .map(|fields| address(fields).map(|address: IpAddr| address.is_ipv6()))
        .collect();
    for (address, family) in addresses.iter().zip(&families) {
        let ip = address.text("ip");
        if family.is_none() && !before.iter().any(|found| found["ip"] == ip) {
            let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            address.push(FieldError::invalid(address.own_path(), ip, why));
        }
    }
    let is_pair = matches!(families[..], [Some(first), Some(second)] if first != second);
    if addresses.len() > 1 && !is_pair {
        let shown = addresses
            .iter()
            .map(|address| json!({ "IP": address.text("ip") }));
        let why = "may specify no more than one IP for each IP family";
        status.invalid("podIPs", shown.collect::<Value>(), why);
    }
}
