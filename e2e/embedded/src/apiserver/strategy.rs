//! Prepares an object for validation according to its kind's REST strategy (`PrepareForCreate`, `PrepareForUpdate`).

mod pod;

use serde_json::{Value, json};

use super::object::{self, Object, copy, list, set, text};
use super::resource::Kind;
use super::schema::Struct;

/// The part of an object that an update may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The main resource.
    Main,
    /// The `status` subresource.
    Status,
    /// The `finalize` subresource of a namespace.
    Finalize,
    /// The `ephemeralcontainers` subresource of a pod.
    EphemeralContainers,
}

/// Prepares a new object.
pub(crate) fn prepare_for_create(kind: Kind, object: &mut Object, now: &str) {
    match kind {
        Kind::Namespace => {
            set(object, "/status", json!({ "phase": "Active" }));
            let mut finalizers = list(object, "/spec/finalizers").to_vec();
            if !finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
                finalizers.push("kubernetes".into());
            }
            set(object, "/spec/finalizers", finalizers);
        }
        Kind::Node => {
            set(object, "/spec/configSource", Value::Null);
            set(object, "/status/config", Value::Null);
        }
        Kind::PersistentVolume => {
            let status = json!({ "phase": "Pending", "lastPhaseTransitionTime": now });
            set(object, "/status", status);
        }
        Kind::PersistentVolumeClaim => {
            // Defaulting of stored objects adds the phase.
            set(object, "/status", json!({ "phase": "Pending" }));
            drop_source_in_other_namespace(object, &Object::new());
            drop_unknown_data_source(object, &Object::new());
            normalize_data_sources(object);
        }
        Kind::Pod => pod::prepare_for_create(object, now),
        Kind::Secret => merge_string_data(object),
        Kind::ServiceAccount => keep_names_of_secrets(object),
        Kind::VolumeAttachment => set(object, "/status", json!({})),
        Kind::Lease => drop_coordinated_election(object, None),
        Kind::CsiDriver | Kind::CsiNode | Kind::CsiStorageCapacity | Kind::Event | Kind::StorageClass => {}
    }
}

/// Prepares an update: restores the old values of fields that an update of this part must not change.
pub(crate) fn prepare_for_update(
    kind: Kind,
    part: Part,
    schema: &Struct,
    object: &mut Object,
    old: &Object,
    now: &str,
) {
    match (kind, part) {
        (_, Part::Status) => prepare_status(kind, object, old, now),
        (_, Part::Finalize) => copy(object, old, "/status"),
        (_, Part::EphemeralContainers) => {
            let containers = object::at(object, "/spec/ephemeralContainers").clone();
            copy(object, old, "/spec");
            copy(object, old, "/status");
            reset_metadata(object, old);
            set(object, "/spec/ephemeralContainers", containers);
            pod::prepare_new_spec(schema, object, old);
        }
        (Kind::Namespace, Part::Main) => {
            copy(object, old, "/spec/finalizers");
            copy(object, old, "/status");
        }
        (Kind::Pod, Part::Main) => {
            copy(object, old, "/status");
            pod::prepare_new_spec(schema, object, old);
        }
        (Kind::CsiDriver, Part::Main) => {
            if object.get("spec") != old.get("spec") {
                increase_generation(object, old);
            }
        }
        (Kind::PersistentVolumeClaim, Part::Main) => {
            copy(object, old, "/status");
            drop_source_in_other_namespace(object, old);
            drop_unknown_data_source(object, old);
            normalize_data_sources(object);
        }
        (Kind::PersistentVolume | Kind::VolumeAttachment, Part::Main) => copy(object, old, "/status"),
        (Kind::Node, Part::Main) => {
            copy(object, old, "/status");
            set(object, "/spec/configSource", Value::Null);
        }
        (Kind::Secret, Part::Main) => {
            if text(object, "/type").is_empty() {
                copy(object, old, "/type");
            }
            merge_string_data(object);
        }
        (Kind::ServiceAccount, Part::Main) => keep_names_of_secrets(object),
        (Kind::Lease, Part::Main) => drop_coordinated_election(object, Some(old)),
        (Kind::CsiNode | Kind::CsiStorageCapacity | Kind::Event | Kind::StorageClass, Part::Main) => {}
    }
}

/// Defaults `preventPodSchedulingIfMissing` with the feature gate VolumeLimitScaling, and drops it without.
pub(crate) fn apply_volume_limit_scaling(kind: Kind, object: &mut Object, is_enabled: bool) {
    let field = "/spec/preventPodSchedulingIfMissing";
    if kind != Kind::CsiDriver {
        return;
    }
    if is_enabled {
        object::set_default(object, field, false);
    } else {
        set(object, field, Value::Null);
    }
}

fn prepare_status(kind: Kind, object: &mut Object, old: &Object, now: &str) {
    copy(object, old, "/spec");
    match kind {
        Kind::VolumeAttachment => reset_metadata(object, old),
        Kind::Pod => pod::prepare_status(object, old),
        Kind::PersistentVolume => {
            let field = "/status/lastPhaseTransitionTime";
            let same_phase = text(object, "/status/phase") == text(old, "/status/phase");
            if same_phase && !object::has(object, field) {
                copy(object, old, field);
            } else if !same_phase
                && (!object::has(object, field) || object::at(object, field) == object::at(old, field))
            {
                set(object, field, now);
            }
        }
        Kind::Node => {
            if !object::has(old, "/status/config") {
                set(object, "/status/config", Value::Null);
            }
        }
        Kind::CsiDriver
        | Kind::CsiNode
        | Kind::CsiStorageCapacity
        | Kind::Event
        | Kind::Lease
        | Kind::Namespace
        | Kind::PersistentVolumeClaim
        | Kind::Secret
        | Kind::ServiceAccount
        | Kind::StorageClass => {}
    }
}

/// `metav1.ResetObjectMetaForStatus`.
fn reset_metadata(object: &mut Object, old: &Object) {
    for name in [
        "deletionTimestamp",
        "generation",
        "selfLink",
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
    ] {
        copy(object, old, &format!("/metadata/{name}"));
    }
}

fn increase_generation(object: &mut Object, old: &Object) {
    let generation = object::at(old, "/metadata/generation")
        .as_i64()
        .unwrap_or_default();
    set(object, "/metadata/generation", generation + 1);
}

/// `stringData` is write-only: it becomes a part of `data`.
fn merge_string_data(object: &mut Object) {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    let Some(Value::Object(texts)) = object.remove("stringData") else {
        return;
    };
    let data = object::struct_mut(object, "/data");
    for (key, value) in texts {
        let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
        data.insert(key, encoded.into());
    }
}

fn keep_names_of_secrets(object: &mut Object) {
    if let Some(Value::Array(secrets)) = object.get_mut("secrets") {
        for secret in secrets {
            let name = secret.get("name").cloned();
            *secret = name.map_or_else(|| json!({}), |name| json!({ "name": name }));
        }
    }
}

/// The feature gate CoordinatedLeaderElection is off.
fn drop_coordinated_election(object: &mut Object, old: Option<&Object>) {
    for field in ["/spec/strategy", "/spec/preferredHolder"] {
        if !old.is_some_and(|old| object::has(old, field)) {
            set(object, field, Value::Null);
        }
    }
}

/// The feature gate CrossNamespaceVolumeDataSource is off.
fn drop_source_in_other_namespace(object: &mut Object, old: &Object) {
    let field = "/spec/dataSourceRef";
    if !text(object, "/spec/dataSourceRef/namespace").is_empty() && !object::has(old, field) {
        set(object, field, Value::Null);
    }
}

/// Drops a `dataSource` of unknown kind, unless the old claim has a data source; `dataSourceRef` accepts any kind.
fn drop_unknown_data_source(object: &mut Object, old: &Object) {
    let has_reference = |object: &Object| object::has(object, "/spec/dataSourceRef");
    if has_reference(object) || has_reference(old) || object::has(old, "/spec/dataSource") {
        return;
    }
    let source = (
        text(object, "/spec/dataSource/apiGroup"),
        text(object, "/spec/dataSource/kind"),
    );
    let known = matches!(
        source,
        ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
    );
    if !known {
        set(object, "/spec/dataSource", Value::Null);
    }
}

/// Copies a claim's `dataSource` to `dataSourceRef`, or the reverse.
fn normalize_data_sources(object: &mut Object) {
    let source = object::at(object, "/spec/dataSource").clone();
    let reference = object::at(object, "/spec/dataSourceRef").clone();
    match (source.is_null(), reference.is_null()) {
        (false, true) => set(object, "/spec/dataSourceRef", source),
        (true, false) if reference.get("namespace").is_none() => set(object, "/spec/dataSource", reference),
        _ => {}
    }
}
