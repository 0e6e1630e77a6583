//! Validation of Pods.

use std::collections::HashSet;

use serde_json::json;

use super::super::field::FieldError;
use super::super::names;
use super::super::object::Object;
use super::container;
use super::fields::Fields;
use super::node::EFFECTS;
use super::{
    affinity, environment, metadata, pod_annotations, pod_network, pod_volume, resources, security_context,
    windows,
};

const DNS_POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];

/// Validates a pod; `old` is the one that it replaces.
pub(super) fn metadata_and_spec(object: &Fields<'_>, old: Option<&Object>) {
    metadata::validate(object, true, names::subdomain_name);
    pod_annotations::validate(object, old);
    let spec = &object.child("spec");
    let volumes = pod_volume::volumes(object, spec);
    resource_claims(spec);
    container::containers(spec, &volumes);
    resources::of_pod(spec);
    container::host_network_ports(spec);
    spec.one_of("restartPolicy", &["Always", "OnFailure", "Never"]);
    spec.one_of("dnsPolicy", &DNS_POLICIES);
    metadata::labels(spec, "nodeSelector");
    security_context::of_pod(spec, old);
    affinity::affinity(&spec.child("affinity"));
    pod_network::dns_config(spec);
    for gate in spec.structs("readinessGates") {
        gate.check("conditionType", names::qualified);
    }
    scheduling_gates(spec);
    affinity::topology_spread(spec);
    windows::host_process(spec);
    windows::host_users(spec);
    pod_network::hostname_override(spec);
    for name in ["serviceAccountName", "nodeName"] {
        spec.check_given(name, names::dns1123_subdomain);
    }
    let why = "must be between 1 and 2147483647, inclusive";
    spec.in_range("activeDeadlineSeconds", 1..=i64::from(i32::MAX), why);
    for name in ["hostname", "subdomain"] {
        spec.check_given(name, names::dns1123_label);
    }
    tolerations(spec, "tolerations");
    pod_network::host_aliases(spec);
    spec.check_given("priorityClassName", names::dns1123_subdomain);
    if spec.has("runtimeClassName") {
        spec.check("runtimeClassName", names::dns1123_subdomain);
    }
    if spec.has("preemptionPolicy") && !spec.require("preemptionPolicy").is_empty() {
        spec.one_of("preemptionPolicy", &["PreemptLowerPriority", "Never"]);
    }
    resources::overhead(spec);
    windows::operating_system(spec);
    environment::file_key_ref_volumes(spec);
    pod_volume::no_tokens_without_account(spec);
    for container in ["containers", "initContainers"]
        .into_iter()
        .flat_map(|field| spec.structs(field))
    {
        container::trimmed_image(&container);
    }
}

fn resource_claims(spec: &Fields<'_>) {
    let mut seen = HashSet::new();
    for claim in spec.structs("resourceClaims") {
        let name = claim.text("name");
        if name.is_empty() {
            claim.required("name", "");
        } else if !seen.insert(name) {
            claim.duplicate("name", name);
        } else {
            claim.check("name", names::dns1123_label);
        }
        let sources = ["resourceClaimName", "resourceClaimTemplateName"];
        let why = match sources.map(|source| claim.has(source)) {
            [true, true] => {
                Some("at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
            }
            [false, false] => Some("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"),
            _ => None,
        };
        if let Some(why) = why {
            let [claim_name, template] = sources.map(|source| claim.get(source));
            let shown = json!({ "Name": name, "ResourceClaimName": claim_name, "ResourceClaimTemplateName": template });
            claim.push(FieldError::invalid(claim.own_path(), shown, why));
        }
        for source in sources.into_iter().filter(|source| claim.has(source)) {
            claim.check(source, names::dns1123_subdomain);
        }
    }
}

fn scheduling_gates(spec: &Fields<'_>) {
    let mut seen = HashSet::new();
    for gate in spec.structs("schedulingGates") {
        let name = gate.text("name");
        for why in names::qualified(name) {
            gate.push(FieldError::invalid(gate.own_path(), name, why));
        }
        if !seen.insert(name) {
            gate.push(FieldError::duplicate(gate.own_path(), name));
        }
    }
}

pub(super) fn only_on_create(object: &Fields<'_>) {
    let spec = object.child("spec");
    if !spec.list("ephemeralContainers").is_empty() {
        spec.forbidden("ephemeralContainers", "cannot be set on create");
    }
    if !spec.text("nodeName").is_empty() && !spec.list("schedulingGates").is_empty() {
        let why = "cannot be set until all schedulingGates have been cleared";
        spec.forbidden("nodeName", why);
    }
    pod_annotations::match_fields(object);
}

/// The tolerations in a field.
pub(super) fn tolerations(owner: &Fields<'_>, field: &str) {
    for toleration in owner.structs(field) {
        let (key, value) = (toleration.text("key"), toleration.text("value"));
        let (operator, effect) = (toleration.text("operator"), toleration.text("effect"));
        toleration.check_given("key", names::qualified);
        if key.is_empty() && operator != "Exists" {
            let why =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            toleration.invalid("operator", operator, why);
        }
        if toleration.has("tolerationSeconds") && effect != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            toleration.invalid("effect", effect, why);
        }
        match operator {
            "Equal" | "" => {
                let found = names::label_value(value);
                if !found.is_empty() {
                    toleration.invalid("operator", value, found.join(";"));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => {
                let why = "value must be empty when `operator` is 'Exists'";
                toleration.invalid("operator", value, why);
            }
            _ => toleration.one_of("operator", &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            toleration.one_of("effect", &EFFECTS);
        }
    }
}
