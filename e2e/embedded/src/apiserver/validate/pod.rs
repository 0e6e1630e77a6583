//! Validation of Pods.

use std::collections::HashSet;

use serde_json::json;

use super::super::field::FieldError;
use super::super::names;
use super::super::object::Object;
use super::container::{self, PULL_POLICIES, Volumes};
use super::fields::Fields;
use super::node::EFFECTS;
use super::volume::host_path;
use super::{
    affinity, app_armor, claim, csi_driver_name, environment, metadata, pod_network, resources,
    security_context, windows,
};

/// Volume sources of a pod in the order of validation, and the field that each requires.
const SOURCES: [(&str, &str); 30] = [
    ("emptyDir", ""),
    ("hostPath", "path"),
    ("gitRepo", "repository"),
    ("gcePersistentDisk", "pdName"),
    ("awsElasticBlockStore", "volumeID"),
    ("secret", "secretName"),
    ("nfs", "server"),
    ("iscsi", "targetPortal"),
    ("glusterfs", "endpoints"),
    ("flocker", ""),
    ("persistentVolumeClaim", "claimName"),
    ("rbd", "image"),
    ("cinder", "volumeID"),
    ("cephfs", ""),
    ("quobyte", "registry"),
    ("downwardAPI", ""),
    ("fc", ""),
    ("flexVolume", "driver"),
    ("configMap", "name"),
    ("azureFile", "secretName"),
    ("vsphereVolume", "volumePath"),
    ("photonPersistentDisk", "pdID"),
    ("portworxVolume", "volumeID"),
    ("azureDisk", "diskName"),
    ("storageos", ""),
    ("projected", ""),
    ("scaleIO", "gateway"),
    ("csi", ""),
    ("ephemeral", ""),
    ("image", "reference"),
];
const DNS_POLICIES: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];

/// Validates a pod; `old` is the one that it replaces.
pub(super) fn metadata_and_spec(object: &Fields<'_>, old: Option<&Object>) {
    metadata::validate(object, true, names::subdomain_name);
    app_armor::annotations(object);
    let spec = &object.child("spec");
    let volumes = volumes(object, spec);
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
    tolerations(spec);
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
    app_armor::matching_annotations(object);
}

fn volumes<'a>(pod: &Fields<'a>, spec: &Fields<'a>) -> Volumes<'a> {
    let mut valid = Volumes::new();
    for volume in spec.structs("volumes") {
        let before = volume.error_count();
        volume_source(pod, &volume);
        volume.check_required("name", names::dns1123_label);
        let name = volume.text("name");
        if valid.contains_key(name) {
            volume.duplicate("name", name);
        }
        if volume.error_count() == before {
            valid.insert(
                name,
                volume.has("persistentVolumeClaim") || volume.has("ephemeral"),
            );
        }
    }
    valid
}

fn volume_source(pod: &Fields<'_>, volume: &Fields<'_>) {
    let mut first = true;
    for (name, required) in SOURCES {
        let Some(source) = volume.given(name) else {
            continue;
        };
        if !first {
            volume.forbidden(name, "may not specify more than 1 volume type");
            continue;
        }
        first = false;
        let source = match name {
            "gcePersistentDisk" => source.at_path(volume.path("persistentDisk")),
            _ => source,
        };
        if !required.is_empty() {
            source.require(required);
        }
        match name {
            "emptyDir"
                if source
                    .quantity("sizeLimit")
                    .is_some_and(|limit| limit.cmp_zero().is_lt()) =>
            {
                source.forbidden("sizeLimit", "SizeLimit field must be a valid resource quantity");
            }
            "csi" => {
                csi_driver_name(&source, "driver");
                if let Some(secret) = source.given("nodePublishSecretRef") {
                    secret.require("name");
                }
            }
            "ephemeral" => match source.given("volumeClaimTemplate") {
                Some(template) => claim::claim_template(&template),
                None => source.required("volumeClaimTemplate", ""),
            },
            "hostPath" => host_path(&source),
            "image" => source.one_of("pullPolicy", &PULL_POLICIES),
            _ => {}
        }
    }
    let (pod_name, name) = (pod.child("metadata").text("name"), volume.text("name"));
    // A missing name gets its own error.
    if volume.has("ephemeral") && !pod_name.is_empty() && !name.is_empty() {
        let claim = format!("{pod_name}-{name}");
        for why in names::dns1123_subdomain(&claim) {
            volume.invalid("name", name, format!("PVC name {claim:?}: {why}"));
        }
    }
    if first {
        let why = "must specify a volume type";
        volume.push(FieldError::required(volume.own_path(), why));
    }
}

pub(super) fn tolerations(spec: &Fields<'_>) {
    for toleration in spec.structs("tolerations") {
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
