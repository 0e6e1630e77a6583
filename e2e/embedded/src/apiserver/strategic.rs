//! Strategic merge patches (`k8s.io/apimachinery/pkg/util/strategicpatch`).

mod element_order;

use serde_json::{Map, Value, json};

use super::go_format;
use super::schema::{Merge, Schema, Type};
use element_order::check_order;

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
        match self.field(shape, name).map(|field| field.ty) {
            Some(Type::Struct(number)) => Shape::Struct(number),
            Some(_) | None => Shape::Free,
        }
    }

    /// The shape of a list's elements and the key by which they are merged.
    fn element(&self, shape: Shape, name: &str) -> (Shape, Option<&'static str>) {
        let field = self.field(shape, name);
        let shape = match field.map(|field| field.ty) {
            Some(Type::List(element)) => match self.schema.element(element) {
                Type::Struct(number) => Shape::Struct(number),
                Type::Bool
                | Type::Int32
                | Type::Int64
                | Type::Float
                | Type::String
                | Type::Time
                | Type::MicroTime
                | Type::Quantity
                | Type::Bytes
                | Type::IntOrString
                | Type::List(_)
                | Type::Map(_)
                | Type::Any => Shape::Free,
            },
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

fn list_of(object: &Map<String, Value>, name: &str) -> Result<Option<Vec<Value>>, Error> {
    match object.get(name) {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items.clone())),
        Some(other) => Err(bad_type("[]interface {}", other)),
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

fn delete_from_list(original: &mut Map<String, Value>, name: &str, value: &Value) -> Result<(), Error> {
    let Value::Array(removed) = value else {
        return Err(Error::Malformed("invalid patch format of primitive list".into()));
    };
    if let Some(Value::Array(items)) = original.get_mut(name) {
        items.retain(|item| !removed.contains(item));
    }
    Ok(())
}

/// Applies the `$patch` directives of a list; the rest of the patch is merged.
fn special_elements(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let mut rest = Vec::new();
    let mut replace = false;
    for item in patch {
        let Value::Object(fields) = &item else { continue };
        match fields
            .get(DIRECTIVE)
            .map(|directive| (directive, directive.as_str()))
        {
            None => rest.push(item),
            Some((_, Some("delete"))) => {
                let Some(value) = fields.get(key) else {
                    return Err(no_merge_key(fields, key));
                };
                original.retain(|found| found.get(key) != Some(value));
            }
            Some((_, Some("replace"))) => replace = true,
            Some((_, Some("merge"))) => {
                let why = "merging lists cannot yet be specified in the patch";
                return Err(Error::Other(why.into()));
            }
            Some((directive, _)) => return Err(bad_patch_type(directive, fields)),
        }
    }
    Ok(if replace {
        (rest, Vec::new())
    } else {
        (original, rest)
    })
}

fn same_item(a: &Value, b: &Value, key: &str) -> bool {
    if key.is_empty() {
        a == b
    } else {
        a.get(key) == b.get(key)
    }
}

/// Items of the patch in the patch's order, the others in the server's, interleaved as `mergeSortedSlice`
/// does.
fn ordered(merged: Vec<Value>, order: &[Value], server: &[Value], key: &str) -> Vec<Value> {
    let place = |list: &[Value], item: &Value| list.iter().position(|found| same_item(found, item, key));
    let (mut patched, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| place(order, item).is_some());
    patched.sort_by_key(|item| place(order, item));
    others.sort_by_key(|item| place(server, item));
    let mut result = Vec::with_capacity(patched.len() + others.len());
    let (mut patched, mut others) = (patched.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let left_first = match (others.peek(), patched.peek()) {
            (None, None) => return result,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(left), Some(right)) => match (place(server, left), place(server, right)) {
                (Some(left), Some(right)) => left < right,
                _ => false,
            },
        };
        result.extend(if left_first { others.next() } else { patched.next() });
    }
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
    let shown = super::go_format::map(fields);
    Error::Other(format!("map: {shown} does not contain declared merge key: {key}"))
}

fn bad_patch_type(directive: &Value, fields: &Map<String, Value>) -> Error {
    let directive = super::go_format::value(directive);
    let shown = super::go_format::map(fields);
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
