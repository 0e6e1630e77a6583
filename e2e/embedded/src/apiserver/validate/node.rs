//! Validation of Nodes.

use std::collections::HashSet;
use std::net::IpAddr;

use super::super::field::{FieldError, Path};
use super::super::names;
use super::super::object::{Object, at, list, text};
use super::fields::Fields;
use super::{metadata, resources};

pub(super) const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Maximum length of a declared feature's name.
const FEATURE_LIMIT: usize = 253;

pub(super) fn node(object: &Fields<'_>) {
    metadata::validate(object, false, names::subdomain_name);
    annotations(object);
    spec_taints(object);
    resources(object);
    let swap = object.child("status").child("nodeInfo").child("swap");
    // The path of Kubernetes.
    let swap = swap.at_path(Path::new("metadata").child("nodeSwapStatus"));
    swap.in_range("capacity", 1.., "must be greater than zero");
    declared_features(&object.child("status"));
    pod_cidrs(&object.child("spec"));
}

fn annotations(object: &Fields<'_>) {
    let key = "scheduler.alpha.kubernetes.io/taints";
    metadata::structs_in_annotation(&object.child("metadata"), key, "core.Taint", taints);
}

/// The features that the kubelet declares: sorted names in camel case.
fn declared_features(status: &Fields<'_>) {
    let features: Vec<&str> = status.texts("declaredFeatures").collect();
    let path = status.path("declaredFeatures");
    for (index, feature) in features.iter().enumerate() {
        let why = if feature.len() > FEATURE_LIMIT {
            format!("must be no more than {FEATURE_LIMIT} characters")
        } else if is_feature_name(feature) {
            String::new()
        } else {
            "must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or \
             MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
                .to_owned()
        };
        if !why.is_empty() {
            let why = format!("invalid feature name {feature:?}: {why}");
            status.push(FieldError::invalid(&path.index(index), *feature, why));
        }
        let next = path.index(index + 1);
        match features.get(index + 1) {
            Some(after) if feature == after => status.push(FieldError::duplicate(&next, *after)),
            Some(after) if feature > after => {
                let why = "list must be sorted alphabetically";
                status.push(FieldError::invalid(&next, *after, why));
            }
            _ => {}
        }
    }
}

fn is_feature_name(feature: &str) -> bool {
    let is_segment = |segment: &str| {
        segment.starts_with(|first: char| first.is_ascii_alphabetic())
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    feature.starts_with(|first: char| first.is_ascii_uppercase()) && feature.split('/').all(is_segment)
}

fn pod_cidrs(spec: &Fields<'_>) {
    let cidrs: Vec<&str> = spec.texts("podCIDRs").collect();
    spec.check_items("podCIDRs", |text| {
        cidr(text).map(str::to_owned).into_iter().collect()
    });
    let is_ipv6 = |text: &&str| sloppy_cidr(text).map(|(address, _)| address.is_ipv6());
    let families: Vec<Option<bool>> = cidrs.iter().map(is_ipv6).collect();
    let shown = cidrs.iter().copied().collect();
    spec.check_dual_stack("podCIDRs", "CIDR", &families, shown, |at| {
        format!(
            "invalid PodCIDRs. failed to check with dual stack with error:invalid CIDR[{at}]: <nil> (invalid CIDR \
             address: {})",
            cidrs[at]
        )
    });
}

/// The validation error of a CIDR.
fn cidr(text: &str) -> Option<&'static str> {
    let Some((address, bits)) = sloppy_cidr(text) else {
        return Some("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)");
    };
    let (given, given_bits) = text.split_once('/').unwrap_or_default();
    let host_bits = match address {
        IpAddr::V4(address) => address.to_bits().checked_shl(bits).unwrap_or_default() != 0,
        IpAddr::V6(address) => address.to_bits().checked_shl(bits).unwrap_or_default() != 0,
    };
    if given.parse::<IpAddr>().is_err() || bits.to_string() != given_bits {
        Some("must not have leading 0s in IP or prefix length")
    } else if given.contains(':') && address.is_ipv4() {
        Some("must not have an IPv4-mapped IPv6 address")
    } else {
        host_bits.then_some("must not have bits set beyond the prefix length")
    }
}

/// Address and prefix length, which may have leading zeros.
fn sloppy_cidr(text: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = text.split_once('/')?;
    let limit = if address.contains(':') { 128 } else { 32 };
    let is_number = bits.bytes().all(|byte| byte.is_ascii_digit());
    let bits: u32 = bits.parse().ok().filter(|bits| is_number && *bits <= limit)?;
    Some((names::sloppy_ip(address)?, bits))
}

fn spec_taints(object: &Fields<'_>) {
    // The path of Kubernetes, although taints are in the spec.
    let spec = object.child("spec").at_path(Path::new("metadata"));
    taints(&spec, "taints");
}

fn taints(owner: &Fields<'_>, field: &str) {
    let mut seen = HashSet::new();
    for taint in owner.structs(field) {
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
    annotations(object);
    resources(object);
    declared_features(&object.child("status"));
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
    spec_taints(object);
    if spec.get("externalID") != at(old, "/spec/externalID") {
        spec.forbidden("externalID", "may not be updated");
    }
}
