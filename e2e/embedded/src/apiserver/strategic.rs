//! Strategic merge patches (`k8s.io/apimachinery/pkg/util/strategicpatch`).

mod element_order;
mod lists;

use serde_json::{Map, Value, json};

use super::go_format;
use super::schema::{Merge, Schema, Type};
use element_order::check_order;
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

/// The schema of the struct or map at one path of the object.
#[derive(Clone, Copy)]
enum Shape {
    Struct(usize),
    /// A map, or a value that the schema does not describe.
    Free,
}

struct Patcher<'a> {
    schema: &'a Schema,
}

/// Applies a patch to an object.
pub(crate) fn apply(
    schema: &Schema,
    object: &mut Map<String, Value>,
    patch: Map<String, Value>,
) -> Result<(), Error> {
    let original = std::mem::take(object);
    *object = Patcher { schema }.merge_map(original, patch, Shape::Struct(0))?;
    Ok(())
}

// === impl Shape ===

impl Shape {
    fn of(ty: Type) -> Self {
        if let Type::Struct(number) = ty {
            Self::Struct(number)
        } else {
            Self::Free
        }
    }
}

// === impl Patcher ===

impl Patcher<'_> {
    fn merge_map(
        &self,
        mut original: Map<String, Value>,
        mut patch: Map<String, Value>,
        shape: Shape,
    ) -> Result<Map<String, Value>, Error> {
        if let Some(directive) = patch.remove(DIRECTIVE) {
            return match directive.as_str() {
                Some("replace") => Ok(patch),
                Some("delete") => Ok(Map::new()),
                _ => {
                    patch.insert(DIRECTIVE.to_owned(), directive.clone());
                    Err(bad_patch_type(&directive, &patch))
                }
            };
        }
        retain_keys(&mut original, &mut patch)?;
        self.merge_ordered_lists(&mut original, &mut patch, shape)?;
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
                    let shape = self.shape_of(shape, &name);
                    Value::Object(self.merge_map(before, patch, shape)?)
                }
                (Some(Value::Array(before)), Value::Array(patch)) => {
                    Value::Array(self.merge_field(before, patch, shape, &name)?)
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

    fn field(&self, shape: Shape, name: &str) -> Option<super::schema::Field> {
        match shape {
            Shape::Struct(number) => self.schema.get(number).fields.get(name).copied(),
            Shape::Free => None,
        }
    }

    fn shape_of(&self, shape: Shape, name: &str) -> Shape {
        let field = self.field(shape, name);
        field.map_or(Shape::Free, |field| Shape::of(field.ty))
    }

    /// The shape of a list's elements and the key by which they are merged.
    fn element(&self, shape: Shape, name: &str) -> (Shape, Option<&'static str>) {
        let field = self.field(shape, name);
        let shape = match field.map(|field| field.ty) {
            Some(Type::List(element)) => Shape::of(self.schema.element(element)),
            Some(_) | None => Shape::Free,
        };
        let key = match field.map(|field| field.merge) {
            Some(Merge::By(key)) => Some(key),
            Some(Merge::Replace) | None => None,
        };
        (shape, key)
    }

    fn merge_field(
        &self,
        original: Vec<Value>,
        patch: Vec<Value>,
        shape: Shape,
        name: &str,
    ) -> Result<Vec<Value>, Error> {
        match self.element(shape, name) {
            (element, Some(key)) => self.merge_list(original, patch, key, element),
            (_, None) => Ok(patch),
        }
    }

    fn merge_list(
        &self,
        original: Vec<Value>,
        patch: Vec<Value>,
        key: &str,
        element: Shape,
    ) -> Result<Vec<Value>, Error> {
        if original.is_empty() && patch.is_empty() {
            return Ok(original);
        }
        let items = || original.iter().chain(&patch);
        let kind = items().next().map(go_format::kind);
        if items().any(|item| Some(go_format::kind(item)) != kind) {
            let lists = go_format::value(&json!([original, patch]));
            return Err(Error::Other(format!(
                "list element types are not identical: {lists}"
            )));
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
                return Err(no_merge_key(fields, key));
            };
            match merged.iter_mut().find(|found| found.get(key) == Some(value)) {
                Some(Value::Object(found)) => {
                    let before = std::mem::take(found);
                    *found = self.merge_map(before, fields.clone(), element)?;
                }
                _ => merged.extend(without_directives(item.clone())),
            }
        }
        Ok(ordered(merged, &patch, &original, key))
    }

    /// Merges lists in the order of the patch's `$setElementOrder`.
    fn merge_ordered_lists(
        &self,
        original: &mut Map<String, Value>,
        patch: &mut Map<String, Value>,
        shape: Shape,
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
            let key = self.element(shape, &name).1.unwrap_or_default();
            let before = list_of(original, &name)?;
            let changes = list_of(patch, &name)?;
            check_order(changes.as_deref().unwrap_or_default(), &order, key)?;
            patch.remove(&name);
            let is_empty = |list: &Option<Vec<Value>>| list.as_ref().is_none_or(Vec::is_empty);
            if changes.is_some() && is_empty(&changes) && is_empty(&before) {
                return Err(Error::Other("no elements in any of the given slices".to_owned()));
            }
            let merged = match (before.clone(), changes) {
                (Some(before), None) => before,
                (None, Some(changes)) => changes.into_iter().filter_map(without_directives).collect(),
                (Some(before), Some(changes)) => self.merge_field(before, changes, shape, &name)?,
                (None, None) => continue,
            };
            let merged = ordered(merged, &order, &before.unwrap_or_default(), key);
            original.insert(name, Value::Array(merged));
        }
        Ok(())
    }
}

/// `mergepatch.ErrBadArgType`.
fn bad_type(expected: &str, found: &Value) -> Error {
    // As Go names types.
    let found = match found {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    };
    Error::Other(format!("expected a {expected}, but received a {found}"))
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

fn no_merge_key(fields: &Map<String, Value>, key: &str) -> Error {
    let shown = go_format::map(fields);
    Error::Other(format!("map: {shown} does not contain declared merge key: {key}"))
}

fn bad_patch_type(directive: &Value, fields: &Map<String, Value>) -> Error {
    let directive = go_format::value(directive);
    let shown = go_format::map(fields);
    Error::Other(format!("unknown patch type: {directive} in map: {shown}"))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
    use serde_json::json;

    use super::*;

    fn patched(schema: &Schema, object: Value, patch: Value) -> Result<Value, Error> {
        let (Value::Object(mut object), Value::Object(patch)) = (object, patch) else {
            panic!("objects expected");
        };
        apply(schema, &mut object, patch).map(|()| Value::Object(object))
    }

    /// Object, patch and kube-apiserver 1.36's result.
    #[test]
    fn merges_lists_by_their_keys() {
        let schema = Schema::of::<Pod>();
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
                patched(&schema, object, patch.clone()).unwrap(),
                expected,
                "{patch}"
            );
        }
    }

    #[test]
    fn replaces_lists_without_merge_strategy() {
        let schema = Schema::of::<PersistentVolume>();
        let modes = |modes: &[&str]| json!({"spec": {"accessModes": modes}});
        let result = patched(&schema, modes(&["ReadWriteOnce"]), modes(&["ReadOnlyMany"]));
        assert_eq!(result.unwrap(), modes(&["ReadOnlyMany"]));
    }

    #[test]
    fn refuses_malformed_directives() {
        let schema = Schema::of::<Pod>();
        for patch in [
            json!({"spec": {"containers": [{"image": "x"}]}}),
            json!({"spec": {"$patch": "mix"}}),
            json!({"spec": {"$retainKeys": "x"}}),
            json!({"spec": {"$setElementOrder/containers": [{"name": "a"}], "containers": null}}),
        ] {
            let object = json!({"spec": {"containers": [{"name": "a"}]}});
            assert!(patched(&schema, object, patch.clone()).is_err(), "{patch}");
        }
    }
}
