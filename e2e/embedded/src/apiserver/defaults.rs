//! Defaulting (`pkg/apis/*/v1/defaults.go` of Kubernetes), which runs directly after decoding.

use serde_json::{Map, Value, json};

use super::object::{self, Object, set_default, structs};
use super::resource::Kind;
use crate::quantity::Quantity;

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
        Kind::Node => node(object),
        Kind::PersistentVolume => {
            set_default(object, "/status/phase", "Pending");
            set_default(object, "/spec/persistentVolumeReclaimPolicy", "Retain");
            set_default(object, "/spec/volumeMode", "Filesystem");
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
            let address = object::text(object, "/status/podIP").to_owned();
            if !address.is_empty() {
                set_default(object, "/status/podIPs", json!([{ "ip": address }]));
            }
            pod(object);
        }
        Kind::Secret => set_default(object, "/type", "Opaque"),
        Kind::StorageClass => {
            set_default(object, "/reclaimPolicy", "Delete");
            set_default(object, "/volumeBindingMode", "Immediate");
        }
        Kind::CsiNode
        | Kind::CsiStorageCapacity
        | Kind::Event
        | Kind::Lease
        | Kind::ServiceAccount
        | Kind::VolumeAttachment => {}
    }
}

fn csi_driver(object: &mut Object) {
    let defaults: [(&str, Value); 8] = [
        ("attachRequired", true.into()),
        ("podInfoOnMount", false.into()),
        ("storageCapacity", false.into()),
        ("fsGroupPolicy", "ReadWriteOnceWithFSType".into()),
        ("volumeLifecycleModes", json!(["Persistent"])),
        ("requiresRepublish", false.into()),
        ("seLinuxMount", false.into()),
        ("preventPodSchedulingIfMissing", false.into()),
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
        volume_source(volume);
    }
    object::visit_containers(spec, container_defaults);
}

/// A volume without a source is an `emptyDir`.
fn volume_source(volume: &mut Object) {
    if volume.keys().all(|name| name == "name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(Value::Object(source)) = volume.get_mut(name) {
            source.entry("defaultMode").or_insert(420.into());
        }
    }
    if let Some(Value::Object(source)) = volume.get_mut("hostPath") {
        source.entry("type").or_insert("".into());
    }
    if object::has(volume, "/ephemeral/volumeClaimTemplate") {
        claim_spec(object::struct_mut(volume, "/ephemeral/volumeClaimTemplate/spec"));
    }
}

fn container_defaults(container: &mut Object) {
    for (name, value) in [
        ("imagePullPolicy", pull_policy(container)),
        ("terminationMessagePath", "/dev/termination-log"),
        ("terminationMessagePolicy", "File"),
    ] {
        container.entry(name).or_insert(value.into());
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

/// The default pull policy: Always for the tag `latest`, else IfNotPresent.
fn pull_policy(container: &Object) -> &'static str {
    let image = object::text(container, "/image");
    if tag(image) == "latest" {
        "Always"
    } else {
        "IfNotPresent"
    }
}

/// The tag of an image, `latest` if it has neither tag nor digest; empty if it has only a digest.
fn tag(image: &str) -> &str {
    let name = image.rsplit('/').next().unwrap_or_default();
    match name.split_once('@') {
        Some((name, _)) => name.split_once(':').map_or("", |(_, tag)| tag),
        None => name.split_once(':').map_or("latest", |(_, tag)| tag),
    }
}
