//! Validation of the resources of containers and of whole pods.

use std::collections::{BTreeSet, HashSet};

use serde_json::Value;

use super::super::field::{FieldError, Path};
use super::super::names;
use super::super::pod_resources::{self, HUGE_PAGES};
use super::fields::{Fields, amount};
use crate::quantity::Quantity;

const STANDARD: [&str; 20] = [
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
    "storage",
];

/// Resources with a whole number as quantity, besides extended ones (`IsIntegerResourceName`).
const INTEGER: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Validates the name of a resource at a path.
type NameCheck = fn(&Fields<'_>, &Path, &str);

pub(super) fn of_container(container: &Fields<'_>, spec: &Fields<'_>) {
    requirements(&container.child("resources"), spec, container_resource);
}

/// The resources of a whole pod.
pub(super) fn of_pod(spec: &Fields<'_>) {
    let Some(resources) = spec.given("resources") else {
        return;
    };
    if spec.child("os").text("name") == "windows" {
        return spec.forbidden("resources", "may not be set for a windows pod");
    }
    if resources.has("claims") {
        resources.forbidden("claims", "claims may not be set for Resources at pod-level");
    }
    requirements(&resources, spec, pod_resource);
    pod_resource_consistency(spec, &resources);
}

pub(super) fn overhead(spec: &Fields<'_>) {
    let path = spec.path("overhead").child("limits");
    for (name, value) in spec.entries("overhead") {
        resource(spec, &path.key(name), name, value, container_resource);
        huge_pages(spec, &path.key(name), name, value);
    }
    let names = spec.entries("overhead").map(|(name, _)| name.as_str());
    need_cpu_or_memory(spec, &spec.path("overhead"), &names.collect::<Vec<_>>());
}

fn requirements(resources: &Fields<'_>, spec: &Fields<'_>, check: NameCheck) {
    let mut names = Vec::new();
    for kind in ["limits", "requests"] {
        for (name, value) in resources.entries(kind) {
            let path = resources.path(kind).key(name);
            resource(resources, &path, name, value, check);
            if kind == "requests" {
                within_limit(resources, name, value);
            }
            huge_pages(resources, &path, name, value);
            names.push(name.as_str());
        }
    }
    need_cpu_or_memory(resources, resources.own_path(), &names);
    claims(resources, spec);
}

fn resource(owner: &Fields<'_>, path: &Path, name: &str, value: &Value, check: NameCheck) {
    check(owner, path, name);
    quantity(owner, path, name, value);
}

/// Validates a quantity of a resource.
pub(super) fn quantity(owner: &Fields<'_>, path: &Path, name: &str, value: &Value) {
    let Some(parsed) = amount(value) else {
        return;
    };
    let invalid = |why: &str| owner.push(FieldError::invalid(path, value.clone(), why));
    if parsed.cmp_zero().is_lt() {
        invalid("must be greater than or equal to 0");
    }
    let whole = INTEGER.contains(&name) || is_extended(name);
    if whole && !parsed.is_whole() {
        invalid("must be an integer");
    }
}

fn container_resource(owner: &Fields<'_>, path: &Path, name: &str) {
    known_resource(owner, path, name);
    let is_of_containers =
        matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with(HUGE_PAGES);
    let why = match name.contains('/') {
        false if !is_of_containers => "must be a standard resource for containers",
        true if !is_native(name) && !is_extended(name) => "doesn't follow extended resource name standard",
        _ => return,
    };
    owner.push(FieldError::invalid(path, name, why));
}

fn pod_resource(owner: &Fields<'_>, path: &Path, name: &str) {
    if known_resource(owner, path, name) && !pod_resources::is_supported_pod_level_resource(name) {
        let supported = ["cpu", HUGE_PAGES, "memory"];
        owner.push(FieldError::not_supported(path, name, &supported));
    }
}

/// Validates the name; returns whether it is valid.
fn known_resource(owner: &Fields<'_>, path: &Path, name: &str) -> bool {
    let mut found = names::qualified(name);
    let standard = name.strip_prefix("requests.").unwrap_or(name);
    let is_known = name.contains('/') || STANDARD.contains(&name) || standard.starts_with(HUGE_PAGES);
    if found.is_empty() && !is_known {
        found.push("must be a standard resource type or fully qualified".to_owned());
    }
    let is_valid = found.is_empty();
    for why in found {
        owner.push(FieldError::invalid(path, name, why));
    }
    is_valid
}

pub(super) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified(&format!("requests.{name}")).is_empty()
}

/// A resource that cannot be overcommitted needs a limit that equals the request (`IsOvercommitAllowed`).
fn within_limit(resources: &Fields<'_>, name: &str, value: &Value) {
    let is_overcommit_allowed = is_native(name) && !name.starts_with(HUGE_PAGES);
    let limits = resources.child("limits");
    let Some(limit) = limits.quantity(name) else {
        if !is_overcommit_allowed {
            resources.required("limits", "Limit must be set for non overcommitable resources");
        }
        return;
    };
    let Some(order) = amount(value).map(|request| request.compare(limit)) else {
        return;
    };
    let what = if order.is_ne() && !is_overcommit_allowed {
        "equal to"
    } else if order.is_gt() {
        "less than or equal to"
    } else {
        return;
    };
    let why = format!("must be {what} {name} limit of {}", limits.text(name));
    resources.invalid("requests", value.clone(), why);
}

fn huge_pages(owner: &Fields<'_>, path: &Path, name: &str, value: &Value) {
    let (Some(size), Some(given)) = (name.strip_prefix(HUGE_PAGES), amount(value)) else {
        return;
    };
    let size = Quantity::parse(size).filter(|size| size.cmp_zero().is_gt() && size.is_whole());
    if size.is_none_or(|size| given.whole_units() % size.whole_units() != 0) {
        let shown = value.as_str().unwrap_or_default();
        let why = format!("{shown} is not positive integer multiple of {name}");
        owner.push(FieldError::invalid(path, shown, why));
    }
}

fn need_cpu_or_memory(owner: &Fields<'_>, path: &Path, names: &[&str]) {
    let has_huge_pages = names.iter().any(|name| name.starts_with(HUGE_PAGES));
    if has_huge_pages && !names.contains(&"cpu") && !names.contains(&"memory") {
        owner.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
}

/// References to the pod's resource claims.
fn claims(resources: &Fields<'_>, spec: &Fields<'_>) {
    let known = spec.structs("resourceClaims").map(|claim| claim.text("name"));
    let known: BTreeSet<&str> = known.filter(|name| !name.is_empty()).collect();
    let mut seen = HashSet::new();
    for claim in resources.structs("claims") {
        let (name, request) = (claim.text("name"), claim.text("request"));
        if name.is_empty() {
            claim.push(FieldError::required(claim.own_path(), ""));
            continue;
        }
        let duplicate = |shown: String| claim.push(FieldError::duplicate(claim.own_path(), shown));
        if seen.contains(&(name, "")) {
            duplicate(name.to_owned());
        } else {
            claim.check_given("request", names::dns1123_label);
            if request.is_empty() {
                let requests = seen.iter().filter(|(found, _)| *found == name);
                requests.for_each(|_| duplicate(name.to_owned()));
            } else if seen.contains(&(name, request)) {
                duplicate(format!("{name}/{request}"));
            }
            seen.insert((name, request));
        }
        if !known.contains(name) {
            let listed: Vec<&str> = known.iter().copied().collect();
            let what = if listed.is_empty() {
                " which is empty".to_owned()
            } else {
                format!(": {}", listed.join(", "))
            };
            let why = format!("must be one of the names in pod.spec.resourceClaims{what}");
            claim.push(FieldError::not_found(claim.own_path(), name).with_reason(&why));
        }
    }
}

/// The resources of the containers must fit into those of the pod.
fn pod_resource_consistency(spec: &Fields<'_>, resources: &Fields<'_>) {
    for kind in ["requests", "limits"] {
        let of_pod = resources.child(kind);
        for (name, total) in pod_resources::aggregate(spec.object, kind) {
            let is_checked = kind == "requests" || name.starts_with(HUGE_PAGES);
            let is_exceeded = of_pod
                .quantity(&name)
                .is_some_and(|given| total.compare(given).is_gt());
            if is_checked && is_exceeded {
                let path = resources.path(kind).key(&name);
                let why = format!("must be greater than or equal to aggregate container {kind} of {total}");
                resources.push(FieldError::invalid(&path, of_pod.text(&name), why));
            }
        }
    }
    let of_pod = resources.child("limits");
    for (index, container) in spec.structs("containers").enumerate() {
        for (name, value) in container.child("resources").entries("limits") {
            let limits = amount(value).zip(of_pod.quantity(name));
            if limits.is_some_and(|(own, most)| own.compare(most).is_gt()) {
                let path = resources
                    .path("containers")
                    .index(index)
                    .key(name)
                    .child("limits");
                let why = format!(
                    "must be less than or equal to pod limits of {}",
                    of_pod.text(name)
                );
                resources.push(FieldError::invalid(&path, value.clone(), why));
            }
        }
    }
}
