//! Applies operations of a JSON patch as kube-apiserver's library does (`gopkg.in/evanphx/json-patch.v4`). It deviates from
//! RFC 6902: negative indices count from the end, indices may have leading zeros, replacing a missing member adds it,
//! copying one copies null, and only `replace` and `test` accept the whole document.

use serde_json::Value;

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
            let path = text("path")?;
            let found = if path.is_empty() {
                document.clone()
            } else {
                get(document, path)?
            };
            // A missing value equals null.
            (found == value()).then_some(())
        }
        _ => None,
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
            (json!({"op": "remove", "path": "/l/+1"}), list(json!(["x", "z"]))),
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
            (
                json!({"op": "add", "path": "/l/03", "value": "w"}),
                list(json!(["x", "y", "z", "w"])),
            ),
            (json!({"op": "add", "path": "/l/4", "value": "w"}), None),
            (
                json!({"op": "replace", "path": "/l/-1", "value": "w"}),
                list(json!(["x", "y", "w"])),
            ),
            (json!({"op": "replace", "path": "/l/3", "value": "w"}), None),
            (
                json!({"op": "test", "path": "/l/-2", "value": "y"}),
                list(json!(["x", "y", "z"])),
            ),
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
                json!({"op": "add", "path": "/m/b"}),
                members(json!({"a": 1, "b": null})),
            ),
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
        ];
        for (operation, expected) in cases {
            let mut document = json!({ "l": ["x", "y", "z"], "m": { "a": 1 } });
            let applied = apply(&mut document, &operation).map(|()| document);
            assert_eq!(applied, expected, "{operation}");
        }
    }

    #[test]
    fn only_replace_and_test_accept_the_whole_document() {
        let whole = json!({ "a": 1 });
        let cases = [
            (json!({"op": "add", "path": "", "value": {}}), None),
            (json!({"op": "remove", "path": ""}), None),
            (json!({"op": "move", "from": "", "path": "/b"}), None),
            (json!({"op": "move", "from": "/a", "path": ""}), None),
            (json!({"op": "copy", "from": "", "path": "/b"}), None),
            (json!({"op": "copy", "from": "/a", "path": ""}), None),
            (json!({"op": "replace", "path": "", "value": 7}), None),
            (
                json!({"op": "replace", "path": "", "value": {"b": 2}}),
                Some(json!({"b": 2})),
            ),
            (
                json!({"op": "test", "path": "", "value": {"a": 1}}),
                Some(whole.clone()),
            ),
            (json!({"op": "test", "path": ""}), None),
        ];
        for (operation, expected) in cases {
            let mut document = whole.clone();
            let applied = apply(&mut document, &operation).map(|()| document);
            assert_eq!(applied, expected, "{operation}");
        }
    }
}
