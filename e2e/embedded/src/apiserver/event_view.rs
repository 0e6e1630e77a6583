//! Events of `events.k8s.io`: the objects of the core group with other field names.

use serde_json::Value;

use super::object::Object;

/// Field names in the core group and in `events.k8s.io`; all other names are the same.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// The event in the form of the core group.
pub(crate) fn to_core(mut event: Object) -> Object {
    for (core, view) in RENAMED {
        if let Some(value) = event.remove(view) {
            event.insert(core.to_owned(), value);
        }
    }
    event
}

/// The event in the form of `events.k8s.io`.
pub(crate) fn from_core(mut event: Object) -> Object {
    for (core, view) in RENAMED {
        if let Some(value) = event.remove(core) {
            event.insert(view.to_owned(), value);
        }
    }
    // Unlike their counterparts in the core group these are omitted when empty.
    for name in ["reportingController", "reportingInstance"] {
        if event.get(name).and_then(Value::as_str) == Some("") {
            event.remove(name);
        }
    }
    if let Some(Value::Object(series)) = event.get_mut("series") {
        series.entry("count").or_insert_with(|| 0.into());
    }
    event
}
