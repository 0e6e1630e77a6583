//! JSON patch and merge patch as kube-apiserver's library applies them (`gopkg.in/evanphx/json-patch.v4`). It deviates from
//! RFC 6902: negative indices count from the end, indices may have leading zeros, replacing a missing member adds it,
//! copying one copies null, and only `replace` and `test` accept the whole document.

use serde_json::Value;

use super::super::object::Object;

/// Applies an operation; `None` if it does not apply.
pub(super) fn apply(document: &mut Value, operation: &Value) -> Option<()> {
    let text = |name: &str| operation[name].as_str();
    let value = || operation["value"].clone();
    match text("op")? {
        "add" => add(document, text("path")?, value()),
        "remove" => remove(document, text("path")?).map(drop),
        "replace" => replace(document, text("path")?, value()),
        "move" => {
            let moved = remove(document, text("from")?)?;
            add(document, text("path")?, moved)
        }
        "copy" => {
            let copied = get(document, text("from")?)?;
            add(document, text("path")?, copied)
        }
        "test" => {
            let found = match text("path")? {
                "" => document.clone(),
                path => get(document, path)?,
            };
            // A missing value equals null.
            (found == value()).then_some(())
        }
        _ => None,
    }
}

/// Applies a merge patch (RFC 7386).
pub(super) fn merge(document: &mut Object, patch: &Object) {
    for (name, value) in patch {
        match (document.get_mut(name), value) {
            (_, Value::Null) => drop(document.shift_remove(name)),
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (Some(Value::Object(_)), _) => drop(document.insert(name.clone(), value.clone())),
            _ => {
                let mut value = value.clone();
                prune_nulls(&mut value);
                document.insert(name.clone(), value);
            }
        }
    }
}

/// Removes members that are null, in lists, too.
fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(prune_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn add(document: &mut Value, path: &str, value: Value) -> Option<()> {
    let (parent, token) = find(document, path)?;
    match parent {
        Value::Object(members) => drop(members.insert(token, value)),
        Value::Array(items) if token == "-" => items.push(value),
        Value::Array(items) => items.insert(position(&token, items.len() + 1)?, value),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
    }
    Some(())
}

fn remove(document: &mut Value, path: &str) -> Option<Value> {
    let (parent, token) = find(document, path)?;
    match parent {
        Value::Object(members) => members.shift_remove(&token),
        Value::Array(items) => Some(items.remove(position(&token, items.len())?)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn replace(document: &mut Value, path: &str, value: Value) -> Option<()> {
    if path.is_empty() {
        let replaces = value.is_object() || value.is_array();
        return replaces.then(|| *document = value);
    }
    let (parent, token) = find(document, path)?;
    match parent {
        Value::Object(members) => drop(members.insert(token, value)),
        Value::Array(items) => {
            let at = position(&token, items.len())?;
            items[at] = value;
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
    }
    Some(())
}

/// The value at a path; a missing member is null.
fn get(document: &mut Value, path: &str) -> Option<Value> {
    let (parent, token) = find(document, path)?;
    match parent {
        Value::Object(members) => Some(members.get(&token).cloned().unwrap_or_default()),
        Value::Array(items) => items.get(position(&token, items.len())?).cloned(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// The object or list that contains the value at a path, and the last token of the path.
fn find<'a>(document: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let mut tokens: Vec<String> = path.split('/').skip(1).map(unescaped).collect();
    let last = tokens.pop()?;
    let mut at = document;
    for token in tokens {
        at = match at {
            Value::Object(members) => members.get_mut(&token)?,
            Value::Array(items) => {
                let index = position(&token, items.len())?;
                items.get_mut(index)?
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return None,
        };
    }
    Some((at, last))
}

fn unescaped(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// The position of an index below `end`; a negative index counts from the end.
fn position(token: &str, end: usize) -> Option<usize> {
    let index: i64 = token.parse().ok()?;
    let from_start = if index < 0 {
        index + i64::try_from(end).ok()?
    } else {
        index
    };
    usize::try_from(from_start).ok().filter(|at| *at < end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn operations_follow_the_go_library() {
        let list = |items: Value| Some(json!({ "l": items, "m": { "a": 1 } }));
        let members = |members: Value| Some(json!({ "l": ["x", "y", "z"], "m": members }));
        let cases = [
            (json!({"op": "remove", "path": "/l/-1"}), list(json!(["x", "y"]))),
            (json!({"op": "remove", "path": "/l/-3"}), list(json!(["y", "z"]))),
            (json!({"op": "remove", "path": "/l/-4"}), None),
            (json!({"op": "remove", "path": "/l/01"}), list(json!(["x", "z"]))),
            (json!({"op": "remove", "path": "/l/3"}), None),
            (json!({"op": "remove", "path": "/l/-"}), None),
            (
                json!({"op": "add", "path": "/l/-1", "value": "w"}),
                list(json!(["x", "y", "z", "w"])),
            ),
            (
                json!({"op": "add", "path": "/l/-4", "value": "w"}),
                list(json!(["w", "x", "y", "z"])),
            ),
            (json!({"op": "add", "path": "/l/-5", "value": "w"}), None),
            (json!({"op": "add", "path": "/l/4", "value": "w"}), None),
            (
                json!({"op": "replace", "path": "/l/-1", "value": "w"}),
                list(json!(["x", "y", "w"])),
            ),
            (json!({"op": "replace", "path": "/l/3", "value": "w"}), None),
            (json!({"op": "test", "path": "/l/-4"}), None),
            (
                json!({"op": "copy", "from": "/l/-1", "path": "/l/0"}),
                list(json!(["z", "x", "y", "z"])),
            ),
            (
                json!({"op": "move", "from": "/l/-1", "path": "/l/-3"}),
                list(json!(["z", "x", "y"])),
            ),
            (
                json!({"op": "replace", "path": "/m/b", "value": 2}),
                members(json!({"a": 1, "b": 2})),
            ),
            (
                json!({"op": "copy", "from": "/m/b", "path": "/m/c"}),
                members(json!({"a": 1, "c": null})),
            ),
            (json!({"op": "move", "from": "/m/b", "path": "/m/c"}), None),
            (
                json!({"op": "test", "path": "/m/b", "value": null}),
                members(json!({"a": 1})),
            ),
            (json!({"op": "test", "path": "/m/a"}), None),
            (
                json!({"op": "add", "path": "/m/x~1~01", "value": 2}),
                members(json!({"a": 1, "x/~1": 2})),
            ),
            (json!({"op": "add", "path": "/m/a/b", "value": 2}), None),
            (json!({"op": "add", "path": "/l/x/b", "value": 2}), None),
            (json!({"op": "remove", "path": ""}), None),
            (json!({"op": "add", "path": "", "value": {}}), None),
            (json!({"op": "replace", "path": "", "value": 7}), None),
            (json!({"op": "replace", "path": "", "value": {}}), Some(json!({}))),
        ];
        for (operation, expected) in cases {
            let mut document = json!({ "l": ["x", "y", "z"], "m": { "a": 1 } });
            let applied = apply(&mut document, &operation).map(|()| document);
            assert_eq!(applied, expected, "{operation}");
        }
    }

    #[test]
    fn merge_removes_nulls_from_what_it_adds() {
        let mut document = json!({ "kept": 1, "gone": 1, "merged": { "a": 1, "b": 2 }, "list": [1] });
        let patch = json!({
            "gone": null, "merged": { "b": null, "c": 3 }, "list": [{ "a": null }, null], "new": { "a": null },
        });
        merge(document.as_object_mut().unwrap(), patch.as_object().unwrap());
        let expected = json!({ "kept": 1, "merged": { "a": 1, "c": 3 }, "list": [{}, null], "new": {} });
        assert_eq!(document, expected);
    }
}
