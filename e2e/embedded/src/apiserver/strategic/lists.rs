//! Lists in strategic merge patches: their directives, and their order.

use serde_json::{Map, Value};

use super::{DIRECTIVE, Error, bad_directive, no_merge_key};

pub(super) fn list_of(object: &Map<String, Value>, name: &str) -> Result<Option<Vec<Value>>, Error> {
    match object.get(name) {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items.clone())),
        Some(_) => Err(Error::Other(format!("{name} must be an array"))),
    }
}

pub(super) fn delete_from_list(
    original: &mut Map<String, Value>,
    name: &str,
    value: &Value,
) -> Result<(), Error> {
    let Value::Array(removed) = value else {
        return Err(Error::Malformed("invalid patch format of primitive list".into()));
    };
    if let Some(Value::Array(items)) = original.get_mut(name) {
        items.retain(|item| !removed.contains(item));
    }
    Ok(())
}

/// Applies the `$patch` directives of a list; the rest of the patch is merged.
pub(super) fn special_elements(
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
                    return Err(no_merge_key(key));
                };
                original.retain(|found| found.get(key) != Some(value));
            }
            Some((_, Some("replace"))) => replace = true,
            Some((directive, _)) => return Err(bad_directive(directive)),
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
pub(super) fn ordered(merged: Vec<Value>, order: &[Value], server: &[Value], key: &str) -> Vec<Value> {
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
