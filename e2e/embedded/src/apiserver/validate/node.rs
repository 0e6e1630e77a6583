//! Validation of Nodes.

use std::collections::HashSet;
use std::net::IpAddr;

use serde_json::Value;

use super::super::field::{Errors, FieldError, Path};
use super::super::names;
use super::super::object::{Object, at, entries, text};
use super::{amount, each, metadata, structs, texts};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn node(object: &Object, errors: &mut Errors) {
    metadata::validate(object, false, names::subdomain_name, errors);
    taints(object, errors);
    resources(object, errors);
    pod_cidrs(object, errors);
}

fn pod_cidrs(object: &Object, errors: &mut Errors) {
    let path = Path::new("spec").child("podCIDRs");
    let cidrs: Vec<&str> = texts(object, "/spec/podCIDRs").collect();
    let families: Vec<Option<bool>> = cidrs.iter().map(|cidr| is_ipv6_cidr(cidr)).collect();
    for (index, cidr) in cidrs.iter().enumerate() {
        if families[index].is_none() {
            let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            errors.push(FieldError::invalid(&path.index(index), *cidr, why));
        }
    }
    let is_pair = matches!(families[..], [Some(first), Some(second)] if first != second);
    if cidrs.len() > 1 && !is_pair {
        let why = "may specify no more than one CIDR for each IP family";
        errors.push(FieldError::invalid(&path, cidrs, why));
    }
}

/// Whether a range of addresses is one of IPv6; none if it is no range.
fn is_ipv6_cidr(text: &str) -> Option<bool> {
    let (address, bits) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok()?;
    (bits <= if address.is_ipv6() { 128 } else { 32 }).then_some(address.is_ipv6())
}

fn taints(object: &Object, errors: &mut Errors) {
    // The path of Kubernetes, although taints are in the spec.
    let path = Path::new("metadata").child("taints");
    let mut seen = HashSet::new();
    for (index, taint) in structs(object, "/spec/taints") {
        let path = path.index(index);
        let (key, value, effect) = (text(taint, "/key"), text(taint, "/value"), text(taint, "/effect"));
        each(errors, &path.child("key"), key, names::qualified(key));
        let found = names::label_value(value);
        if !found.is_empty() {
            errors.push(FieldError::invalid(&path.child("value"), value, found.join(";")));
        }
        taint_effect(errors, &path.child("effect"), effect);
        if !seen.insert((effect, key)) {
            let shown = format!(
                "{{\"Key\":{key:?},\"Value\":{value:?},\"Effect\":{effect:?},\"TimeAdded\":{}}}",
                at(taint, "/timeAdded")
            );
            let error = FieldError::duplicate_shown(&path, &shown);
            errors.push(error.with_reason("taints must be unique by key and effect pair"));
        }
    }
}

/// The effect of a taint.
fn taint_effect(errors: &mut Errors, path: &Path, effect: &str) {
    if effect.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else {
        super::one_of(errors, path, effect, &EFFECTS);
    }
}

/// The effect that a toleration tolerates; empty stands for all.
pub(super) fn tolerated_effect(errors: &mut Errors, path: &Path, effect: &str) {
    if !effect.is_empty() {
        super::one_of(errors, path, effect, &EFFECTS);
    }
}

fn resources(object: &Object, errors: &mut Errors) {
    for list in ["capacity", "allocatable"] {
        for (name, value) in entries(object, &format!("/status/{list}")) {
            let path = Path::new("status").child(list).child(name);
            resource_quantity(errors, &path, name, value);
        }
    }
}

/// An amount of a resource.
pub(super) fn resource_quantity(errors: &mut Errors, path: &Path, name: &str, value: &Value) {
    let Some(parsed) = amount(value) else {
        return;
    };
    if parsed.cmp_zero().is_lt() {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(path, value.clone(), why));
    }
    let whole = matches!(name, "pods") || (name.contains('/') && !name.contains("kubernetes.io/"));
    if whole && !parsed.is_whole() {
        errors.push(FieldError::invalid(path, value.clone(), "must be an integer"));
    }
}

pub(super) fn update(object: &Object, old: &Object, errors: &mut Errors) {
    metadata::validate_update(object, old, errors);
    resources(object, errors);
    let mut addresses = HashSet::new();
    for (index, address) in structs(object, "/status/addresses") {
        if !addresses.insert((text(address, "/type"), text(address, "/address"))) {
            let path = Path::new("status").child("addresses").index(index);
            let (kind, value) = (text(address, "/type"), text(address, "/address"));
            let shown = format!("{{\"Type\":{kind:?},\"Address\":{value:?}}}");
            errors.push(FieldError::duplicate_shown(&path, &shown));
        }
    }
    let spec = Path::new("spec");
    let before: Vec<&str> = texts(old, "/spec/podCIDRs").collect();
    let after: Vec<&str> = texts(object, "/spec/podCIDRs").collect();
    if !before.is_empty() && before != after {
        let why = "node updates may not change podCIDR except from \"\" to valid";
        errors.push(FieldError::forbidden(&spec.child("podCIDRs"), why));
    }
    let provider = text(old, "/spec/providerID");
    if !provider.is_empty() && provider != text(object, "/spec/providerID") {
        let why = "node updates may not change providerID except from \"\" to valid";
        errors.push(FieldError::forbidden(&spec.child("providerID"), why));
    }
    taints(object, errors);
    if at(object, "/spec/externalID") != at(old, "/spec/externalID") {
        let why = "may not be updated";
        errors.push(FieldError::forbidden(&spec.child("externalID"), why));
    }
}
