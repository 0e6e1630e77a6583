//! Reads and writes fields of an object by JSON pointer; a missing field reads as the zero value.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::volume::{ANN_BETA_STORAGE_CLASS, ANN_IS_DEFAULT_CLASS};

/// A JSON object. Those in the store are without `apiVersion` and `kind`.
pub(crate) type Object = Map<String, Value>;

/// Finalizer of an object whose dependents are to be orphaned (`metav1.FinalizerOrphanDependents`).
pub(crate) const ORPHAN: &str = "orphan";
/// Finalizer of an object whose dependents are deleted before it (`metav1.FinalizerDeleteDependents`).
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// The value of a missing field.
pub(crate) static NULL: Value = Value::Null;
static EMPTY: LazyLock<Object> = LazyLock::new(Object::new);

/// The value at `pointer`, such as `/spec/nodeName`, or null.
pub(crate) fn at<'a>(object: &'a Object, pointer: &str) -> &'a Value {
    let mut names = pointer.split('/').skip(1);
    let first = names.next().and_then(|name| object.get(name));
    let found = names.try_fold(first.unwrap_or(&NULL), |value, name| match value {
        Value::Object(entries) => entries.get(name),
        Value::Array(items) => name.parse().ok().and_then(|index: usize| items.get(index)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    });
    found.unwrap_or(&NULL)
}

/// A text, empty if missing.
pub(crate) fn text<'a>(object: &'a Object, pointer: &str) -> &'a str {
    at(object, pointer).as_str().unwrap_or_default()
}

/// A list, empty if missing.
pub(crate) fn list<'a>(object: &'a Object, pointer: &str) -> &'a [Value] {
    at(object, pointer).as_array().map_or(&[], Vec::as_slice)
}

/// The entries of a map, none if missing.
pub(crate) fn entries<'a>(
    object: &'a Object,
    pointer: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    at(object, pointer)
        .as_object()
        .into_iter()
        .flat_map(|entries| entries.iter())
}

/// Whether there is a value at `pointer`.
pub(crate) fn has(object: &Object, pointer: &str) -> bool {
    !at(object, pointer).is_null()
}

/// The struct in a field, one without fields if missing.
pub(crate) fn struct_at<'a>(object: &'a Object, name: &str) -> &'a Object {
    object.get(name).and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// The struct at `pointer`, which is created with its parents if it is missing.
pub(crate) fn struct_mut<'a>(object: &'a mut Object, pointer: &str) -> &'a mut Object {
    pointer.split('/').skip(1).fold(object, |parent, name| {
        let child = parent.entry(name).or_insert_with(|| Value::Object(Map::new()));
        if !child.is_object() {
            *child = Value::Object(Map::new());
        }
        child.as_object_mut().expect("the value must be an object")
    })
}

/// Sets the value at `pointer`; null removes it.
pub(crate) fn set(object: &mut Object, pointer: &str, value: impl Into<Value>) {
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer must begin with /");
    let value = value.into();
    if value.is_null() {
        if parent.is_empty() || has(object, parent) {
            struct_mut(object, parent).remove(name);
        }
    } else {
        struct_mut(object, parent).insert(name.to_owned(), value);
    }
}

/// Sets the value at `pointer` unless there is one.
pub(crate) fn set_default(object: &mut Object, pointer: &str, value: impl Into<Value>) {
    if !has(object, pointer) {
        set(object, pointer, value);
    }
}

/// Copies the value at `pointer` from `other`.
pub(crate) fn copy(object: &mut Object, other: &Object, pointer: &str) {
    set(object, pointer, at(other, pointer).clone());
}

/// The fields of a pod's spec that have containers, in the order in which Kubernetes visits them.
pub(crate) const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", EPHEMERAL_CONTAINERS];
pub(crate) const EPHEMERAL_CONTAINERS: &str = "ephemeralContainers";

/// The structs of a list.
pub(crate) fn structs(list: Option<&mut Value>) -> impl Iterator<Item = &mut Object> {
    let items = list.and_then(Value::as_array_mut).into_iter().flatten();
    items.filter_map(Value::as_object_mut)
}

/// Calls `visit` for the containers of all types (`VisitContainers` of Kubernetes).
pub(crate) fn visit_containers(spec: &mut Object, mut visit: impl FnMut(&mut Object)) {
    for list in CONTAINER_LISTS {
        structs(spec.get_mut(list)).for_each(&mut visit);
    }
}

/// Whether a StorageClass is the default one (`IsDefaultAnnotation` of Kubernetes).
pub(crate) fn is_default_class(class: &Object) -> bool {
    let annotations = at(class, "/metadata/annotations");
    ANN_IS_DEFAULT_CLASS
        .iter()
        .any(|name| annotations[*name] == "true")
}

/// The name of a volume's or claim's StorageClass.
pub(crate) fn storage_class(object: &Object) -> &str {
    let beta = at(object, "/metadata/annotations").get(ANN_BETA_STORAGE_CLASS);
    let class = beta.unwrap_or_else(|| at(object, "/spec/storageClassName"));
    class.as_str().unwrap_or_default()
}

/// `metadata.name`.
pub(crate) fn name(object: &Object) -> &str {
    text(object, "/metadata/name")
}

/// `metadata.namespace`.
pub(crate) fn namespace(object: &Object) -> &str {
    text(object, "/metadata/namespace")
}

/// Whether deletion was requested.
pub(crate) fn is_deleting(object: &Object) -> bool {
    has(object, "/metadata/deletionTimestamp")
}
