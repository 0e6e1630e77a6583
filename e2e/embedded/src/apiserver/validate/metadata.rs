//! Validation of `metadata` (`k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).

use serde_json::Value;

use super::super::field::{FieldError, IMMUTABLE, Path};
use super::super::go_format;
use super::super::names::{self, NameFn};
use super::super::object::{self, FOREGROUND, ORPHAN, Object, list};
use super::fields::Fields;

/// Maximum total size of the annotations in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// `ValidateObjectMeta` of the core group, which also requires qualified finalizer names.
pub(super) fn validate(object: &Fields<'_>, namespaced: bool, name: NameFn) {
    validate_apimachinery(object, namespaced, name);
    qualified_finalizers(object);
}

fn qualified_finalizers(object: &Fields<'_>) {
    let metadata = object.child("metadata");
    for (index, finalizer) in metadata.texts("finalizers").enumerate() {
        qualified_finalizer(&metadata, &metadata.path("finalizers").index(index), finalizer);
    }
}

pub(super) fn qualified_finalizer(owner: &Fields<'_>, path: &Path, finalizer: &str) {
    let is_standard = matches!(finalizer, "kubernetes" | ORPHAN | FOREGROUND);
    if !finalizer.contains('/') && !is_standard {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        owner.push(FieldError::invalid(path, finalizer, why));
    }
}

/// `ValidateObjectMeta` of apimachinery.
pub(super) fn validate_apimachinery(object: &Fields<'_>, namespaced: bool, name: NameFn) {
    let metadata = &object.child("metadata");
    metadata.check_given("generateName", |prefix| name(prefix, true));
    if metadata.text("name").is_empty() {
        metadata.required("name", "name or generateName is required");
    }
    metadata.check_given("name", |given| name(given, false));
    match (namespaced, metadata.text("namespace").is_empty()) {
        (true, _) => metadata.check_required("namespace", names::dns1123_label),
        (false, false) => metadata.forbidden("namespace", "not allowed on this type"),
        (false, true) => {}
    }
    metadata.in_range("generation", 0.., "must be greater than or equal to 0");
    labels(metadata, "labels");
    annotations(metadata);
    owner_references(metadata);
    finalizers(metadata);
}

/// `ValidateObjectMetaUpdate` of the core group.
pub(super) fn validate_update(object: &Fields<'_>, old: &Object) {
    validate_update_apimachinery(object, old);
    qualified_finalizers(object);
}

/// `ValidateObjectMetaUpdate` of apimachinery.
pub(super) fn validate_update_apimachinery(object: &Fields<'_>, old: &Object) {
    let metadata = &object.child("metadata");
    if object::is_deleting(old) {
        no_new_finalizers(metadata, old);
    }
    if metadata.text("resourceVersion").is_empty() {
        metadata.invalid("resourceVersion", "", "must be specified for an update");
    }
    let old = object::struct_at(old, "metadata");
    for name in ["name", "namespace", "uid"] {
        let value = metadata.text(name);
        if value != old.get(name).and_then(Value::as_str).unwrap_or_default() {
            metadata.invalid(name, value, IMMUTABLE);
        }
    }
    for name in [
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        metadata.immutable(old, name);
    }
    labels(metadata, "labels");
    annotations(metadata);
    owner_references(metadata);
}

fn no_new_finalizers(metadata: &Fields<'_>, old: &Object) {
    let before = list(old, "/metadata/finalizers");
    let is_new = |finalizer: &&str| !before.iter().any(|found| found == finalizer);
    let mut new: Vec<&str> = metadata.texts("finalizers").filter(is_new).collect();
    new.sort_unstable();
    new.dedup();
    if !new.is_empty() {
        let quoted: Vec<String> = new.iter().map(|finalizer| format!("{finalizer:?}")).collect();
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            quoted.join(", ")
        );
        metadata.forbidden("finalizers", why);
    }
}

/// Labels, or a selector by labels.
pub(super) fn labels(owner: &Fields<'_>, name: &str) {
    for (key, value) in owner.entries(name) {
        owner.found(name, key, names::qualified(key));
        let value = value.as_str().unwrap_or_default();
        owner.found(name, value, names::label_value(value));
    }
}

fn annotations(metadata: &Fields<'_>) {
    let mut size = 0;
    for (key, value) in metadata.entries("annotations") {
        metadata.found("annotations", key, names::qualified(&key.to_lowercase()));
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > ANNOTATIONS_LIMIT {
        metadata.too_long("annotations", ANNOTATIONS_LIMIT);
    }
}

/// Validates an annotation with a JSON list of structs of this Go type.
pub(super) fn structs_in_annotation(
    metadata: &Fields<'_>,
    key: &str,
    ty: &str,
    validate: impl FnOnce(&Fields<'_>, &str),
) {
    let annotations = metadata.child("annotations");
    let text = annotations.text(key);
    if text.is_empty() {
        return;
    }
    let parsed = go_format::parse_json(text.as_bytes()).and_then(|value| match value {
        Value::Array(items) => items.into_iter().map(|item| go_struct(item, ty)).collect(),
        Value::Null => Ok(Vec::new()),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            Err(go_format::cannot_unmarshal(&value, &format!("[]{ty}")))
        }
    });
    match parsed {
        Ok(items) => {
            let list = Object::from_iter([(key.to_owned(), Value::Array(items))]);
            validate(&annotations.of_object(&list), key);
        }
        Err(why) => metadata.invalid("annotations", key, why),
    }
}

/// A toleration or a taint with the names of its fields in JSON. Go's decoder ignores the case of names in an internal type.
fn go_struct(value: Value, ty: &str) -> Result<Value, String> {
    let name = |name: String| match name.to_lowercase().as_str() {
        "tolerationseconds" => "tolerationSeconds".to_owned(),
        "timeadded" => "timeAdded".to_owned(),
        name => name.to_owned(),
    };
    match value {
        Value::Object(fields) => Ok(fields
            .into_iter()
            .map(|(field, value)| (name(field), value))
            .collect()),
        Value::Null => Ok(Value::Object(Object::new())),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(go_format::cannot_unmarshal(&value, ty))
        }
    }
}

/// The metadata of a template, which has only annotations and labels (`ValidateTemplateObjectMeta`).
pub(super) fn of_template(metadata: &Fields<'_>) {
    /// Other fields in Go's order, with their names in errors.
    const OTHERS: [(&str, &str); 13] = [
        ("name", "name"),
        ("generateName", "generateName"),
        ("namespace", "namespace"),
        ("selfLink", "selfLink"),
        ("uid", "uID"),
        ("resourceVersion", "resourceVersion"),
        ("generation", "generation"),
        ("creationTimestamp", "creationTimestamp"),
        ("deletionTimestamp", "deletionTimestamp"),
        ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
        ("ownerReferences", "ownerReferences"),
        ("finalizers", "finalizers"),
        ("managedFields", "managedFields"),
    ];
    annotations(metadata);
    labels(metadata, "labels");
    for (_, shown) in OTHERS.iter().filter(|(field, _)| metadata.has(field)) {
        metadata.forbidden(shown, "cannot be set");
    }
}

fn owner_references(metadata: &Fields<'_>) {
    let list = "ownerReferences";
    let mut controller: Option<String> = None;
    for owner in metadata.structs(list) {
        let version = owner.text("apiVersion");
        // The path of Kubernetes has no index.
        let owner = owner.at_path(metadata.path(list));
        if version.rsplit('/').next().unwrap_or_default().is_empty() {
            owner.invalid("apiVersion", version, "version must not be empty");
        }
        for name in ["kind", "name", "uid"] {
            if owner.text(name).is_empty() {
                owner.invalid(name, "", "must not be empty");
            }
        }
        if version == "v1" && owner.text("kind") == "Event" {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            metadata.invalid(list, shown_owner(owner.object), why);
        }
        if owner.get("controller").as_bool() == Some(true) {
            let this = format!("{}/{}", owner.text("kind"), owner.text("name"));
            if let Some(first) = &controller {
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                );
                let all: Value = metadata
                    .structs(list)
                    .map(|owner| shown_owner(owner.object))
                    .collect();
                metadata.invalid(list, all, why);
            } else {
                controller = Some(this);
            }
        }
    }
}

/// An owner with its fields in Go's order.
fn shown_owner(owner: &Object) -> Value {
    let fields = [
        "apiVersion",
        "kind",
        "name",
        "uid",
        "controller",
        "blockOwnerDeletion",
    ];
    let given = fields
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), owner.get(name)?.clone())));
    Value::Object(given.collect())
}

fn finalizers(metadata: &Fields<'_>) {
    let finalizers: Vec<&str> = metadata.texts("finalizers").collect();
    for finalizer in &finalizers {
        metadata.found("finalizers", finalizer, names::qualified(finalizer));
    }
    if finalizers.contains(&ORPHAN) && finalizers.contains(&FOREGROUND) {
        let why = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        metadata.invalid("finalizers", finalizers, why);
    }
}
