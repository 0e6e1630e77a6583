//! Strategic merge patches (`k8s.io/apimachinery/pkg/util/strategicpatch`).

mod lists;

use serde_json::{Map, Value};

use super::schema::{Shape, Struct};
use lists::{delete_from_list, list_of, ordered, special_elements};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Why a patch cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// The patch itself is malformed.
    Malformed(String),
    /// An error that Kubernetes reports as an internal error.
    Other(String),
}

/// Applies a patch to an object.
pub(crate) fn apply(
    schema: &'static Struct,
    object: Map<String, Value>,
    patch: Map<String, Value>,
) -> Result<Map<String, Value>, Error> {
    merge_map(object, patch, Some(schema))
}

fn merge_map(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    schema: Option<&'static Struct>,
) -> Result<Map<String, Value>, Error> {
    if let Some(directive) = patch.remove(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Map::new()),
            _ => Err(bad_directive(&directive)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    merge_ordered_lists(&mut original, &mut patch, schema)?;
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE_FROM_LIST) {
            delete_from_list(&mut original, list, &value)?;
            continue;
        }
        if value.is_null() {
            original.remove(&name);
            continue;
        }
        let merged = match (original.remove(&name), value) {
            (Some(Value::Object(before)), Value::Object(patch)) => {
                let (schema, _) = field(schema, &name, Shape::One);
                Value::Object(merge_map(before, patch, schema)?)
            }
            (Some(Value::Array(before)), Value::Array(patch)) => {
                Value::Array(merge_field(before, patch, schema, &name)?)
            }
            (_, value) => match without_directives(value) {
                Some(value) => value,
                None => continue,
            },
        };
        original.insert(name, merged);
    }
    Ok(original)
}

/// The struct in a field that has this shape, and the field's merge key.
fn field(
    schema: Option<&'static Struct>,
    name: &str,
    shape: Shape,
) -> (Option<&'static Struct>, Option<&'static str>) {
    let field = schema.and_then(|schema| schema.fields.get(name));
    let of_shape = field.filter(|field| field.ty.shape == shape);
    (
        of_shape.and_then(|field| field.ty.structure()),
        field.and_then(|field| field.merge_key),
    )
}

fn merge_field(
    original: Vec<Value>,
    patch: Vec<Value>,
    schema: Option<&'static Struct>,
    name: &str,
) -> Result<Vec<Value>, Error> {
    match field(schema, name, Shape::List) {
        (element, Some(key)) => merge_list(original, patch, key, element),
        (_, None) => Ok(patch),
    }
}

fn merge_list(
    original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
    element: Option<&'static Struct>,
) -> Result<Vec<Value>, Error> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    let items = || original.iter().chain(&patch);
    if items().any(Value::is_object) && !items().all(Value::is_object) {
        return Err(Error::Other("list element types are not identical".to_owned()));
    }
    if !items().all(Value::is_object) {
        let mut merged: Vec<Value> = Vec::new();
        for item in original.iter().chain(&patch) {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        return Ok(ordered(merged, &patch, &original, ""));
    }
    let (original, patch) = special_elements(original, patch, key)?;
    let mut merged = original.clone();
    for item in &patch {
        let Value::Object(fields) = item else { continue };
        let Some(value) = fields.get(key) else {
            return Err(no_merge_key(key));
        };
        match merged.iter_mut().find(|found| found.get(key) == Some(value)) {
            Some(Value::Object(found)) => {
                let before = std::mem::take(found);
                *found = merge_map(before, fields.clone(), element)?;
            }
            _ => merged.extend(without_directives(item.clone())),
        }
    }
    Ok(ordered(merged, &patch, &original, key))
}

/// Merges lists in the order of the patch's `$setElementOrder`.
fn merge_ordered_lists(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    schema: Option<&'static Struct>,
) -> Result<(), Error> {
    let names: Vec<String> = patch
        .keys()
        .filter_map(|name| name.strip_prefix(SET_ORDER))
        .map(str::to_owned)
        .collect();
    for name in names {
        let Some(Value::Array(order)) = patch.remove(&format!("{SET_ORDER}{name}")) else {
            let why = "invalid patch format of setElementOrder list";
            return Err(Error::Malformed(why.into()));
        };
        let (_, key) = field(schema, &name, Shape::List);
        let key = key.unwrap_or_default();
        let before = list_of(original, &name)?;
        let changes = list_of(patch, &name)?;
        patch.remove(&name);
        let is_empty = |list: &Option<Vec<Value>>| list.as_ref().is_none_or(Vec::is_empty);
        if changes.is_some() && is_empty(&changes) && is_empty(&before) {
            return Err(Error::Other("no elements in any of the given slices".to_owned()));
        }
        let merged = match (before.clone(), changes) {
            (Some(before), None) => before,
            (None, Some(changes)) => changes.into_iter().filter_map(without_directives).collect(),
            (Some(before), Some(changes)) => merge_field(before, changes, schema, &name)?,
            (None, None) => continue,
        };
        let merged = ordered(merged, &order, &before.unwrap_or_default(), key);
        original.insert(name, Value::Array(merged));
    }
    Ok(())
}

fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), Error> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let malformed = || Error::Malformed("invalid patch format of retainKeys".into());
    let Value::Array(keys) = keys else {
        return Err(malformed());
    };
    let retained = |name: &String| keys.iter().any(|key| key == name);
    for (name, value) in patch.iter() {
        let directive = name.starts_with(DELETE_FROM_LIST) || name.starts_with(SET_ORDER);
        if !value.is_null() && !directive && !retained(name) {
            return Err(malformed());
        }
    }
    original.retain(|name, _| retained(name));
    Ok(())
}

/// A value without directives; `None` if it consists only of directives.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(mut fields) => {
            // `removeDirectives` drops values with one of these directives.
            let directive = fields.remove(DIRECTIVE);
            if matches!(
                directive.as_ref().and_then(Value::as_str),
                Some("delete" | "replace")
            ) {
                return None;
            }
            fields.remove(RETAIN_KEYS);
            let kept = fields.into_iter().filter(|(name, value)| {
                !value.is_null() && !name.starts_with(DELETE_FROM_LIST) && !name.starts_with(SET_ORDER)
            });
            let kept = kept.filter_map(|(name, value)| Some((name, without_directives(value)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => Some(Value::Array(
            items.into_iter().filter_map(without_directives).collect(),
        )),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(value),
    }
}

fn no_merge_key(key: &str) -> Error {
    Error::Other(format!("an element of a list lacks its merge key {key}"))
}

fn bad_directive(directive: &Value) -> Error {
    Error::Other(format!("unknown {DIRECTIVE} directive: {directive}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::schema;
    use super::*;

    fn patched(kind: &str, object: Value, patch: Value) -> Result<Value, Error> {
        let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
            panic!("objects expected");
        };
        apply(schema::of("", kind), object, patch).map(Value::Object)
    }

    /// Object, patch and kube-apiserver 1.37's result.
    #[test]
    fn merges_lists_by_their_keys() {
        let finalizers = |names: &[&str]| json!({"metadata": {"finalizers": names}});
        let containers = |list: Value| json!({"spec": {"containers": list}});
        let table = [
            (finalizers(&["a"]), finalizers(&["b"]), finalizers(&["b", "a"])),
            (
                finalizers(&["a", "b"]),
                finalizers(&["b"]),
                finalizers(&["a", "b"]),
            ),
            (
                finalizers(&["a", "b"]),
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a", "c"]}}),
                finalizers(&["b"]),
            ),
            (
                finalizers(&["a", "b", "c"]),
                json!({"metadata": {"$setElementOrder/finalizers": ["c", "a"]}}),
                finalizers(&["b", "c", "a"]),
            ),
            (
                containers(json!([{"name": "a", "image": "x"}, {"name": "b"}])),
                containers(json!([{"name": "b", "image": "y"}])),
                containers(json!([{"name": "a", "image": "x"}, {"name": "b", "image": "y"}])),
            ),
            (
                containers(json!([{"name": "a"}, {"name": "b"}])),
                containers(json!([{"name": "a", "$patch": "delete"}])),
                containers(json!([{"name": "b"}])),
            ),
            (
                containers(json!([{"name": "a"}])),
                containers(json!([{"$patch": "replace"}, {"name": "c"}])),
                containers(json!([{"name": "c"}])),
            ),
            (
                json!({"spec": {"nodeSelector": {"a": "1", "b": "2"}}}),
                json!({"spec": {"nodeSelector": {"a": null, "c": "3"}}}),
                json!({"spec": {"nodeSelector": {"b": "2", "c": "3"}}}),
            ),
            (
                json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
                json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}),
                json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}}),
            ),
        ];
        for (object, patch, expected) in table {
            assert_eq!(
                patched("Pod", object, patch.clone()).unwrap(),
                expected,
                "{patch}"
            );
        }
    }

    #[test]
    fn replaces_lists_without_merge_strategy() {
        let modes = |modes: &[&str]| json!({"spec": {"accessModes": modes}});
        let result = patched(
            "PersistentVolume",
            modes(&["ReadWriteOnce"]),
            modes(&["ReadOnlyMany"]),
        );
        assert_eq!(result.unwrap(), modes(&["ReadOnlyMany"]));
    }

    #[test]
    fn refuses_malformed_directives() {
        for patch in [
            json!({"spec": {"containers": [{"image": "x"}]}}),
            json!({"spec": {"$patch": "mix"}}),
            json!({"spec": {"$retainKeys": "x"}}),
            json!({"spec": {"$setElementOrder/containers": "a"}}),
        ] {
            let object = json!({"spec": {"containers": [{"name": "a"}]}});
            assert!(patched("Pod", object, patch.clone()).is_err(), "{patch}");
        }
    }
}
