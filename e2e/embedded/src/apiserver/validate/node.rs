//! Validation of Nodes.

use std::collections::HashSet;
use std::net::IpAddr;

use super::super::field::{FieldError, Path};
use super::super::names;
use super::super::object::{Object, at, list, text};
use super::fields::Fields;
use super::{metadata, resources};

pub(super) const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn node(object: &Fields<'_>) {
    metadata::validate(object, false, names::subdomain_name);
    taints(object);
    resources(object);
    pod_cidrs(&object.child("spec"));
}

fn pod_cidrs(spec: &Fields<'_>) {
    let cidrs: Vec<&str> = spec.texts("podCIDRs").collect();
    let families: Vec<Option<bool>> = cidrs.iter().map(|cidr| is_ipv6_cidr(cidr)).collect();
    spec.check_items("podCIDRs", |cidr| {
        let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        is_ipv6_cidr(cidr).map_or(vec![why.to_owned()], |_| Vec::new())
    });
    let shown = cidrs.iter().copied().collect();
    spec.check_dual_stack("podCIDRs", "CIDR", &families, shown, |at| {
        format!(
            "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{at}]: <nil> (invalid CIDR \
             address: {})",
            cidrs[at]
        )
    });
}

/// Whether a CIDR is IPv6; `None` if the text is not a CIDR.
fn is_ipv6_cidr(text: &str) -> Option<bool> {
    let (address, bits) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok()?;
    (bits <= if address.is_ipv6() { 128 } else { 32 }).then_some(address.is_ipv6())
}

fn taints(object: &Fields<'_>) {
    // The path of Kubernetes, although taints are in the spec.
    let spec = object.child("spec").at_path(Path::new("metadata"));
    let mut seen = HashSet::new();
    for taint in spec.structs("taints") {
        taint.check("key", names::qualified);
        let (key, value, effect) = (taint.text("key"), taint.text("value"), taint.text("effect"));
        let found = names::label_value(value);
        if !found.is_empty() {
            taint.invalid("value", value, found.join(";"));
        }
        if !taint.require("effect").is_empty() {
            taint.one_of("effect", &EFFECTS);
        }
        if !seen.insert((effect, key)) {
            let shown = format!(
                "{{\"Key\":{key:?},\"Value\":{value:?},\"Effect\":{effect:?},\"TimeAdded\":{}}}",
                taint.get("timeAdded")
            );
            let error = FieldError::duplicate_shown(taint.own_path(), &shown);
            taint.push(error.with_reason("taints must be unique by key and effect pair"));
        }
    }
}

fn resources(object: &Fields<'_>) {
    let status = object.child("status");
    for list in ["capacity", "allocatable"] {
        for (name, value) in status.entries(list) {
            resources::quantity(&status, &status.path(list).child(name), name, value);
        }
    }
}

pub(super) fn update(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    resources(object);
    let mut addresses = HashSet::new();
    for address in object.child("status").structs("addresses") {
        let (kind, value) = (address.text("type"), address.text("address"));
        if !addresses.insert((kind, value)) {
            let shown = format!("{{\"Type\":{kind:?},\"Address\":{value:?}}}");
            address.push(FieldError::duplicate_shown(address.own_path(), &shown));
        }
    }
    let spec = object.child("spec");
    let before = list(old, "/spec/podCIDRs");
    let after = spec.list("podCIDRs");
    let changes = match before.len() {
        0 => 0,
        length if length != after.len() => 1,
        _ => before
            .iter()
            .zip(after)
            .filter(|(before, after)| before != after)
            .count(),
    };
    for _ in 0..changes {
        let why = "node updates may not change podCIDR except from \"\" to valid";
        spec.forbidden("podCIDRs", why);
    }
    let provider = text(old, "/spec/providerID");
    if !provider.is_empty() && provider != spec.text("providerID") {
        let why = "node updates may not change providerID except from \"\" to valid";
        spec.forbidden("providerID", why);
    }
    taints(object);
    if spec.get("externalID") != at(old, "/spec/externalID") {
        spec.forbidden("externalID", "may not be updated");
    }
}
