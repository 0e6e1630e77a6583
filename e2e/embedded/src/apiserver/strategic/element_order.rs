//! The order of a list's elements in a patch's `$setElementOrder`.

use serde_json::Value;

use super::super::go_format;
use super::{DIRECTIVE, Error, SET_ORDER, bad_type, no_merge_key};

/// Checks that a list of changes has the order that the patch gives (`validatePatchWithSetOrderList`).
pub(super) fn check_order(changes: &[Value], order: &[Value], key: &str) -> Result<(), Error> {
    if changes.is_empty() || order.is_empty() {
        return Ok(());
    }
    let map = "map[string]interface {}";
    let mut kept = Vec::new();
    for change in changes {
        if !key.is_empty() && !change.is_object() {
            return Err(bad_type(map, change));
        }
        if key.is_empty() || change.get(DIRECTIVE).and_then(Value::as_str) != Some("delete") {
            kept.push(change);
        }
    }
    let mut kept = kept.into_iter().peekable();
    let mut entries = order.iter().peekable();
    while let (Some(change), Some(entry)) = (kept.peek(), entries.peek()) {
        if change.get(DIRECTIVE).is_some() {
            kept.next();
            continue;
        }
        let is_same = if key.is_empty() {
            change == entry
        } else {
            let value_of = |item: &Value| {
                let Value::Object(fields) = item else {
                    return Err(bad_type(map, item));
                };
                fields.get(key).cloned().ok_or_else(|| no_merge_key(fields, key))
            };
            value_of(change)? == value_of(entry)?
        };
        if is_same {
            kept.next();
        }
        entries.next();
    }
    if kept.peek().is_some() && entries.peek().is_none() {
        let shown = |list: &[Value]| go_format::value(&list.into());
        return Err(Error::Other(format!(
            "The order in patch list:\n{}\n doesn't match {} list:\n{}\n",
            shown(changes),
            SET_ORDER.trim_end_matches('/'),
            shown(order)
        )));
    }
    Ok(())
}
