//! Events of `events.k8s.io`: the objects of the core group with other field names.

use super::object::Object;
use super::resource::Resource;

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

/// The event in the form of `events.k8s.io`; `resource` is that view.
pub(crate) fn from_core(resource: &Resource, mut event: Object) -> Object {
    for (core, view) in RENAMED {
        if let Some(value) = event.remove(core) {
            event.insert(view.to_owned(), value);
        }
    }
    // Fields are serialized in other cases than their counterparts in the core group.
    resource.schema.normalize(&mut event);
    event
}
