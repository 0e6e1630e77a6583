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
        Kind::PersistentVolume => {
            let status = json!({ "phase": "Pending", "lastPhaseTransitionTime": now });
            set(object, "/status", status);
        }
        Kind::PersistentVolumeClaim => {
            // Defaulting of stored objects adds the phase.
            set(object, "/status", json!({ "phase": "Pending" }));
        }
        Kind::Pod => pod::prepare_for_create(object, now),
        Kind::Secret => merge_string_data(object),
        Kind::VolumeAttachment => set(object, "/status", json!({})),
        // The feature gate CSIVolumeHealth is off.
        Kind::CsiNode => set(object, "/status", Value::Null),
        Kind::CsiDriver
        | Kind::CsiStorageCapacity
        | Kind::Event
        | Kind::Lease
        | Kind::Node
        | Kind::ServiceAccount
        | Kind::StorageClass => {}
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
        (
            Kind::CsiNode
            | Kind::Node
            | Kind::PersistentVolume
            | Kind::PersistentVolumeClaim
            | Kind::VolumeAttachment,
            Part::Main,
        ) => copy(object, old, "/status"),
        (Kind::Secret, Part::Main) => {
            if text(object, "/type").is_empty() {
                copy(object, old, "/type");
            }
            merge_string_data(object);
        }
        (
            Kind::CsiStorageCapacity | Kind::Event | Kind::Lease | Kind::ServiceAccount | Kind::StorageClass,
            Part::Main,
        ) => {}
    }
}

fn prepare_status(kind: Kind, object: &mut Object, old: &Object, now: &str) {
    copy(object, old, "/spec");
    match kind {
        Kind::CsiNode => {
            reset_metadata(object, old);
            copy(object, old, "/status");
        }
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
        Kind::CsiDriver
        | Kind::CsiStorageCapacity
        | Kind::Event
        | Kind::Lease
        | Kind::Namespace
        | Kind::Node
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
