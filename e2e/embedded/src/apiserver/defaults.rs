//! Defaulting (`pkg/apis/*/v1/defaults.go` of Kubernetes), which runs directly after decoding.

use serde_json::{Map, Value, json};

use super::object::{self, Object, set_default, structs};
use super::pod_resources;
use super::resource::Kind;
use crate::quantity::Quantity;

/// Maximum length of an image name.
const IMAGE_LIMIT: usize = 255;

/// Fills in defaults.
pub(crate) fn apply(kind: Kind, object: &mut Object) {
    match kind {
        Kind::CsiDriver => csi_driver(object),
        Kind::Namespace => {
            if !object::name(object).is_empty() {
                let name = object::name(object).to_owned();
                object::struct_mut(object, "/metadata/labels")
                    .insert("kubernetes.io/metadata.name".to_owned(), name.into());
            }
            set_default(object, "/status/phase", "Active");
        }
        Kind::Node => {
            first_of_list(object::struct_mut(object, "/spec"), "podCIDR", "podCIDRs", "");
            node(object);
        }
        Kind::PersistentVolume => {
            set_default(object, "/status/phase", "Pending");
            set_default(object, "/spec/persistentVolumeReclaimPolicy", "Retain");
            set_default(object, "/spec/volumeMode", "Filesystem");
            volume_source(object::struct_mut(object, "/spec"), false);
            resource_list(object::struct_mut(object, "/spec"), "capacity");
        }
        Kind::PersistentVolumeClaim => {
            set_default(object, "/status/phase", "Pending");
            claim_spec(object::struct_mut(object, "/spec"));
            for name in ["capacity", "allocatedResources"] {
                resource_list(object::struct_mut(object, "/status"), name);
            }
        }
        Kind::Pod => {
            let status = object::struct_mut(object, "/status");
            first_of_list(status, "podIP", "podIPs", "ip");
            pod(object);
        }
        Kind::Secret => set_default(object, "/type", "Opaque"),
        Kind::StorageClass => {
            set_default(object, "/reclaimPolicy", "Delete");
            set_default(object, "/volumeBindingMode", "Immediate");
        }
        Kind::VolumeAttachment => {
            if object::has(object, "/spec/source/inlineVolumeSpec") {
                let spec = object::struct_mut(object, "/spec/source/inlineVolumeSpec");
                volume_source(spec, false);
            }
        }
        Kind::CsiNode | Kind::CsiStorageCapacity | Kind::Event | Kind::Lease | Kind::ServiceAccount => {}
    }
}

/// A legacy field that holds the first entry of a list: the field wins if they differ.
fn first_of_list(owner: &mut Object, field: &str, list: &str, key: &str) {
    let first = owner.get(list).and_then(|items| items.get(0)).cloned();
    let first = first.map(|entry| if key.is_empty() { entry } else { entry[key].clone() });
    let given = owner
        .get(field)
        .filter(|value| value.as_str() != Some(""))
        .cloned();
    match (given, first) {
        (Some(given), first) if first.as_ref() != Some(&given) => {
            let entry = if key.is_empty() {
                given
            } else {
                json!({ key: given })
            };
            owner.insert(list.to_owned(), json!([entry]));
        }
        (None, Some(first)) => {
            owner.insert(field.to_owned(), first);
        }
        _ => {}
    }
}

fn csi_driver(object: &mut Object) {
    let defaults: [(&str, Value); 7] = [
        ("attachRequired", true.into()),
        ("podInfoOnMount", false.into()),
        ("storageCapacity", false.into()),
        ("fsGroupPolicy", "ReadWriteOnceWithFSType".into()),
        ("volumeLifecycleModes", json!(["Persistent"])),
        ("requiresRepublish", false.into()),
        ("seLinuxMount", false.into()),
    ];
    let spec = object::struct_mut(object, "/spec");
    if spec
        .get("volumeLifecycleModes")
        .and_then(Value::as_array)
        .is_some_and(Vec::is_empty)
    {
        spec.remove("volumeLifecycleModes");
    }
    for (name, value) in defaults {
        spec.entry(name).or_insert(value);
    }
}

fn node(object: &mut Object) {
    for name in ["capacity", "allocatable"] {
        resource_list(object::struct_mut(object, "/status"), name);
    }
    if object::has(object, "/status/capacity") && !object::has(object, "/status/allocatable") {
        let capacity = object::at(object, "/status/capacity").clone();
        object::set(object, "/status/allocatable", capacity);
    }
}

fn claim_spec(spec: &mut Object) {
    spec.entry("volumeMode").or_insert("Filesystem".into());
    resource_requirements(spec);
}

fn resource_requirements(owner: &mut Object) {
    if let Some(Value::Object(resources)) = owner.get_mut("resources") {
        resource_list(resources, "limits");
        resource_list(resources, "requests");
    }
}

/// Quantities are rounded up to thousandths.
fn resource_list(owner: &mut Object, name: &str) {
    let Some(Value::Object(amounts)) = owner.get_mut(name) else {
        return;
    };
    for amount in amounts.values_mut() {
        let parsed = amount.as_str().and_then(Quantity::parse);
        if let Some(parsed) = parsed {
            *amount = parsed.round_up_to_milli().to_string().into();
        }
    }
}

fn pod(object: &mut Object) {
    let spec = object::struct_mut(object, "/spec");
    let host_network = spec
        .get("hostNetwork")
        .and_then(Value::as_bool)
        .unwrap_or_default();
    let defaults: [(&str, Value); 6] = [
        ("dnsPolicy", "ClusterFirst".into()),
        ("restartPolicy", "Always".into()),
        ("securityContext", Value::Object(Map::new())),
        ("terminationGracePeriodSeconds", 30.into()),
        ("schedulerName", "default-scheduler".into()),
        ("enableServiceLinks", true.into()),
    ];
    for (name, value) in defaults {
        spec.entry(name).or_insert(value);
    }
    let grace_period = &mut spec["terminationGracePeriodSeconds"];
    if grace_period.as_i64().is_some_and(|seconds| seconds < 0) {
        // Kubernetes' conversion from v1 does it.
        *grace_period = 1.into();
    }
    // The old name of the field is written too.
    match (
        spec.get("serviceAccountName").cloned(),
        spec.get("serviceAccount").cloned(),
    ) {
        (None, Some(name)) => {
            spec.insert("serviceAccountName".to_owned(), name);
        }
        (Some(name), _) => {
            spec.insert("serviceAccount".to_owned(), name);
        }
        (None, None) => {}
    }
    for volume in structs(spec.get_mut("volumes")) {
        volume_source(volume, true);
    }
    object::visit_containers(spec, |container| container_defaults(container, host_network));
    pod_resources::set_defaults(spec);
    resource_list(spec, "overhead");
    resource_requirements(spec);
}

fn volume_source(volume: &mut Object, in_pod: bool) {
    if in_pod && volume.keys().all(|name| name == "name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    let defaults: [(&str, &[(&str, Value)]); 9] = [
        ("secret", &[("defaultMode", 420.into())]),
        ("configMap", &[("defaultMode", 420.into())]),
        ("downwardAPI", &[("defaultMode", 420.into())]),
        ("projected", &[("defaultMode", 420.into())]),
        ("hostPath", &[("type", "".into())]),
        ("iscsi", &[("iscsiInterface", "default".into())]),
        (
            "rbd",
            &[
                ("pool", "rbd".into()),
                ("user", "admin".into()),
                ("keyring", "/etc/ceph/keyring".into()),
            ],
        ),
        (
            "azureDisk",
            &[
                ("cachingMode", "ReadWrite".into()),
                ("fsType", "ext4".into()),
                ("readOnly", false.into()),
                ("kind", "Shared".into()),
            ],
        ),
        (
            "scaleIO",
            &[
                ("storageMode", "ThinProvisioned".into()),
                ("fsType", "xfs".into()),
            ],
        ),
    ];
    for (name, fields) in defaults {
        let Some(Value::Object(source)) = volume.get_mut(name) else {
            continue;
        };
        for (field, value) in fields {
            source.entry(*field).or_insert_with(|| value.clone());
        }
    }
    if let Some(Value::Object(image)) = volume.get_mut("image") {
        let policy = pull_policy(image, "reference");
        image.entry("pullPolicy").or_insert(policy.into());
    }
    if let Some(Value::Object(source)) = volume.get_mut("downwardAPI") {
        structs(source.get_mut("items")).for_each(field_ref);
    }
    if let Some(Value::Object(source)) = volume.get_mut("projected") {
        for projection in structs(source.get_mut("sources")) {
            if let Some(Value::Object(token)) = projection.get_mut("serviceAccountToken") {
                token.entry("expirationSeconds").or_insert(3600.into());
            }
            if let Some(Value::Object(downward)) = projection.get_mut("downwardAPI") {
                structs(downward.get_mut("items")).for_each(field_ref);
            }
        }
    }
    if object::has(volume, "/ephemeral/volumeClaimTemplate") {
        claim_spec(object::struct_mut(volume, "/ephemeral/volumeClaimTemplate/spec"));
    }
}

fn field_ref(owner: &mut Object) {
    if let Some(Value::Object(reference)) = owner.get_mut("fieldRef") {
        reference.entry("apiVersion").or_insert("v1".into());
    }
}

fn container_defaults(container: &mut Object, host_network: bool) {
    for (name, value) in [
        ("imagePullPolicy", pull_policy(container, "image")),
        ("terminationMessagePath", "/dev/termination-log"),
        ("terminationMessagePolicy", "File"),
    ] {
        container.entry(name).or_insert(value.into());
    }
    for port in structs(container.get_mut("ports")) {
        port.entry("protocol").or_insert("TCP".into());
        if host_network && let Some(number) = port.get("containerPort").cloned() {
            port.entry("hostPort").or_insert(number);
        }
    }
    for variable in structs(container.get_mut("env")) {
        if let Some(Value::Object(source)) = variable.get_mut("valueFrom") {
            field_ref(source);
            if let Some(Value::Object(reference)) = source.get_mut("fileKeyRef") {
                reference.entry("optional").or_insert(false.into());
            }
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(Value::Object(probe)) = container.get_mut(name) {
            probe_defaults(probe);
        }
    }
    if let Some(Value::Object(lifecycle)) = container.get_mut("lifecycle") {
        for name in ["postStart", "preStop"] {
            if let Some(Value::Object(handler)) = lifecycle.get_mut(name) {
                http_get_defaults(handler);
            }
        }
    }
    resource_requirements(container);
    if let Some(Value::Object(resources)) = container.get_mut("resources") {
        // Requests default to the limits.
        if let Some(Value::Object(limits)) = resources.get("limits").cloned() {
            let requests = resources
                .entry("requests")
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(requests) = requests {
                for (name, amount) in limits {
                    requests.entry(name).or_insert(amount);
                }
            }
        }
    }
}

fn probe_defaults(probe: &mut Object) {
    for (name, value) in [
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ] {
        let field = probe.entry(name).or_insert(value.into());
        if field.as_i64() == Some(0) {
            *field = value.into();
        }
    }
    http_get_defaults(probe);
    if let Some(Value::Object(grpc)) = probe.get_mut("grpc") {
        grpc.entry("service").or_insert("".into());
    }
}

fn http_get_defaults(handler: &mut Object) {
    if let Some(Value::Object(get)) = handler.get_mut("httpGet") {
        get.entry("path").or_insert("/".into());
        get.entry("scheme").or_insert("HTTP".into());
    }
}

/// The default pull policy: Always for the tag `latest`, else IfNotPresent.
fn pull_policy(owner: &Object, field: &str) -> &'static str {
    let image = owner.get(field).and_then(Value::as_str).unwrap_or_default();
    if tag(image) == "latest" {
        "Always"
    } else {
        "IfNotPresent"
    }
}

/// The tag of an image, `latest` if it has neither tag nor digest; empty if it has only a digest, or if the name is not a
/// valid reference.
fn tag(image: &str) -> &str {
    let is_valid = |letter: char| letter.is_ascii_alphanumeric() || "._-/:@".contains(letter);
    if image.is_empty() || image.len() > IMAGE_LIMIT || !image.chars().all(is_valid) {
        return "";
    }
    let name = image.rsplit('/').next().unwrap_or_default();
    match name.split_once('@') {
        Some((name, _)) => name.split_once(':').map_or("", |(_, tag)| tag),
        None => name.split_once(':').map_or("latest", |(_, tag)| tag),
    }
}
