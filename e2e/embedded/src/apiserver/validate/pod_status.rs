//! Validation of updates of a pod's status.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};

use super::super::field::FieldError;
use super::super::names;
use super::super::object::{self, Object, list, text};
use super::fields::Fields;
use super::{metadata, pod_annotations, restart_policy, security_context};

/// The lists of container statuses, and the lists of their containers.
const STATUSES: [(&str, &str); 3] = [
    ("containerStatuses", "containers"),
    ("initContainerStatuses", "initContainers"),
    (EPHEMERAL, "ephemeralContainers"),
];
const EPHEMERAL: &str = "ephemeralContainerStatuses";
const NOT_NEGATIVE: &str = "must be a non-negative integer";
/// Maximum length of a message about the health of a resource.
const HEALTH_MESSAGE_LIMIT: usize = 1024;

pub(super) fn update(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    pod_annotations::validate_update(object, old);
    let (spec, status) = (&object.child("spec"), &object.child("status"));
    let old_status = object::struct_at(old, "status");
    for condition in status.structs("conditions") {
        condition.in_range("observedGeneration", 0.., NOT_NEGATIVE);
        let kind = condition.text("type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            condition.found("Type", kind, names::qualified(kind));
        }
    }
    let nominated = status.text("nominatedNodeName");
    if !nominated.is_empty() && nominated != text(old_status, "/nominatedNodeName") {
        status.check("nominatedNodeName", names::dns1123_subdomain);
        if !text(old, "/spec/nodeName").is_empty() {
            let why = "may not be set on pods that are already bound to a node";
            status.forbidden("nominatedNodeName", why);
        }
    }
    status.in_range("observedGeneration", 0.., NOT_NEGATIVE);
    status.immutable(old_status, "qosClass");
    for (statuses, containers) in STATUSES {
        transitions(status, old, statuses, containers);
    }
    resource_claim_statuses(spec, status);
    if let Some(claim) = status.given("extendedResourceClaimStatus") {
        extended_resource_claim(spec, &claim);
    }
    addresses(status, "podIPs", list(old_status, "/podIPs"));
    let host_address = status.structs("hostIPs").next();
    if let Some(first) = host_address.filter(|first| first.text("ip") != status.text("hostIP")) {
        first.invalid("ip", first.text("ip"), "must be equal to `hostIP`");
    }
    addresses(status, "hostIPs", list(old_status, "/hostIPs"));
    let is_windows = spec.child("os").text("name") == "windows";
    for container in STATUSES.iter().flat_map(|(statuses, _)| status.structs(statuses)) {
        if let Some(user) = container.child("user").given("linux") {
            if is_windows {
                let why = "cannot be set for a windows pod";
                user.push(FieldError::forbidden(user.own_path(), why));
            } else {
                security_context::ids(&user, &["uid", "gid"]);
                security_context::supplemental_groups(&user);
            }
        }
    }
    for (statuses, containers) in STATUSES {
        for container in status.structs(statuses) {
            allocated_resources(&container, spec, statuses, containers);
        }
    }
}

/// A terminated container keeps that state, unless it restarts.
fn transitions(status: &Fields<'_>, old: &Object, statuses: &str, containers: &str) {
    let spec = status.of_object(object::struct_at(old, "spec"));
    if statuses != EPHEMERAL && restart_policy::restarts_all_containers(&spec) {
        return;
    }
    let is_terminated = |status: &Value| !status["state"]["terminated"].is_null();
    let old = list(object::struct_at(old, "status"), &format!("/{statuses}"));
    for (index, old) in old.iter().enumerate().filter(|(_, old)| is_terminated(old)) {
        let mut runs = status
            .list(statuses)
            .iter()
            .filter(|new| new["name"] == old["name"] && !is_terminated(new));
        let restarts = || {
            let mut named = spec.structs(containers);
            let container = named.find(|container| old["name"] == container.text("name"));
            let exit_code = old["state"]["terminated"]["exitCode"]
                .as_i64()
                .unwrap_or_default();
            container.is_some_and(|container| restart_policy::restarts(&container, &spec, exit_code))
        };
        if runs.next().is_some() && (statuses == EPHEMERAL || !restarts()) {
            let path = status.path(statuses).index(index).child("state");
            let why = "may not be transitioned to non-terminated state";
            status.push(FieldError::forbidden(&path, why));
        }
    }
}

fn resource_claim_statuses(spec: &Fields<'_>, status: &Fields<'_>) {
    let mut names = HashSet::new();
    for claim in status.structs("resourceClaimStatuses") {
        let name = claim.text("name");
        if !spec
            .structs("resourceClaims")
            .any(|found| found.text("name") == name)
        {
            let why = "must match the name of an entry in `spec.resourceClaims`";
            claim.invalid("name", name, why);
        }
        if !names.insert(name) {
            claim.duplicate("name", name);
        }
        if claim.has("resourceClaimName") {
            claim.check("resourceClaimName", names::dns1123_subdomain);
        }
    }
}

fn extended_resource_claim(spec: &Fields<'_>, claim: &Fields<'_>) {
    let containers = ["initContainers", "containers"].into_iter();
    let containers = containers.flat_map(|list| spec.structs(list));
    let containers: BTreeMap<&str, Fields<'_>> = containers
        .map(|container| (container.text("name"), container))
        .collect();
    if claim.list("requestMappings").is_empty() {
        claim.required("requestMappings", "at least one request mapping is required");
    }
    let mut seen = HashSet::new();
    for mapping in claim.structs("requestMappings") {
        let fields = ["containerName", "resourceName", "requestName"];
        let key = fields.map(|field| mapping.text(field));
        let [name, resource, _] = key;
        match containers.get(name) {
            None => {
                let why =
                    "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                mapping.invalid("containerName", name, why);
            }
            Some(container) if !container.child("resources").child("requests").has(resource) => {
                let why = "must match the extended resource name of an entry in spec.initContainers.resources.requests or \
                           spec.containers.resources.requests";
                mapping.invalid("resourceName", resource, why);
            }
            Some(_) => {}
        }
        // The path of Kubernetes does not name the mapping.
        mapping
            .at_path(claim.own_path().clone())
            .check("requestName", names::dns1123_label);
        if !seen.insert(key) {
            for field in fields {
                mapping.duplicate(field, mapping.text(field));
            }
        }
    }
    claim.check_required("resourceClaimName", names::dns1123_subdomain);
}

/// Addresses of the pod or of its node. Invalid ones of the old version are allowed.
fn addresses(status: &Fields<'_>, list: &str, before: &[Value]) {
    let addresses: Vec<&str> = status.structs(list).map(|address| address.text("ip")).collect();
    for address in status.structs(list) {
        let ip = address.text("ip");
        if !before.iter().any(|found| found["ip"] == ip) {
            for why in names::ip_address(ip) {
                address.push(FieldError::invalid(address.own_path(), ip, why));
            }
        }
    }
    let family = |ip: &&str| names::sloppy_ip(ip).map(|address| address.is_ipv6());
    let families: Vec<Option<bool>> = addresses.iter().map(family).collect();
    let shown = addresses.iter().map(|ip| json!({ "IP": ip })).collect();
    status.check_dual_stack(list, "IP", &families, shown, |at| {
        let ip = addresses[at];
        format!("failed to check for dual stack with error:invalid IP[{at}]: {ip}")
    });
}

/// The health of the resources of devices.
fn allocated_resources(container: &Fields<'_>, spec: &Fields<'_>, statuses: &str, containers: &str) {
    const FIELD: &str = "allocatedResourcesStatus";
    if statuses == EPHEMERAL {
        if container.has(FIELD) {
            container.forbidden(FIELD, "must not be specified in container status");
        }
        return;
    }
    let mut named = spec.structs(containers);
    let of_spec = named.find(|found| found.text("name") == container.text("name"));
    for resource in container.structs(FIELD) {
        if let Some(of_spec) = &of_spec {
            let resources = of_spec.child("resources");
            let name = resource.text("name");
            if name.starts_with("claim:") {
                if !resources
                    .structs("claims")
                    .any(|claim| name == claim_name(&claim))
                {
                    let why = "must match one of the container's resource claims in a format \
                               'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty";
                    resource.invalid("name", name, why);
                }
            } else if !resources.child("requests").has(name) {
                let why = "must match one of the container's resource requests";
                resource.invalid("name", name, why);
            }
        }
        let mut ids = HashSet::new();
        for device in resource.structs("resources") {
            device.one_of("health", &["Healthy", "Unhealthy", "Unknown"]);
            match device.text("message").len() {
                0 if device.has("message") => device.required("message", "must be non-empty if specified"),
                0..=HEALTH_MESSAGE_LIMIT => {}
                _ => device.too_long("message", HEALTH_MESSAGE_LIMIT),
            }
            let id = device.text("resourceID");
            if !ids.insert(id) {
                device.duplicate("resourceID", id);
            }
        }
    }
}

fn claim_name(claim: &Fields<'_>) -> String {
    let (name, request) = (claim.text("name"), claim.text("request"));
    if request.is_empty() {
        format!("claim:{name}")
    } else {
        format!("claim:{name}/{request}")
    }
}
