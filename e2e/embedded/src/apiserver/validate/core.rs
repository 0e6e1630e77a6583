//! Validation of Secrets, Namespaces, Events and Leases.

use super::super::field::{FieldError, IMMUTABLE};
use super::super::names;
use super::super::object::{NULL, Object, at};
use super::super::resource::Resource;
use super::fields::Fields;
use super::metadata::finalizer;

const SECRET_LIMIT: usize = 1024 * 1024;
/// Maximum length of an event's `reportingInstance`, `action` and `reason`.
const EVENT_TEXT_LIMIT: usize = 128;
/// Maximum length of an event's message.
const EVENT_NOTE_LIMIT: usize = 1024;

pub(super) fn secret(object: &Fields<'_>) {
    let mut size = 0;
    for (key, value) in object.entries("data") {
        for why in names::config_map_key(key) {
            object.push(FieldError::invalid(
                &object.path("data").key(key),
                key.as_str(),
                why,
            ));
        }
        size += value.as_str().unwrap_or_default().len() / 4 * 3;
    }
    if size > SECRET_LIMIT {
        object.too_long("data", SECRET_LIMIT);
    }
}

pub(super) fn secret_update(object: &Fields<'_>, old: &Object) {
    object.immutable(old, "type");
    if *at(old, "/immutable") == true {
        let why = "field is immutable when `immutable` is set";
        if *object.get("immutable") != true {
            object.forbidden("immutable", why);
        }
        if object.get("data") != at(old, "/data") {
            object.forbidden("data", why);
        }
    }
    secret(object);
}

pub(super) fn namespace_finalizers(object: &Fields<'_>) {
    let spec = object.child("spec");
    for (index, name) in spec.texts("finalizers").enumerate() {
        finalizer(&spec, &spec.path("finalizers").index(index), name, true);
    }
}

pub(super) fn namespace_status(object: &Fields<'_>) {
    let status = object.child("status");
    let phase = status.text("phase");
    let expected = if object.child("metadata").has("deletionTimestamp") {
        "Terminating"
    } else {
        "Active"
    };
    if phase != expected {
        let why = "may only be 'Terminating' if `deletionTimestamp` is not empty, and must be then";
        status.invalid("phase", phase, why);
    }
}

pub(super) fn lease(object: &Fields<'_>) {
    let spec = object.child("spec");
    spec.in_range("leaseDurationSeconds", 1.., "must be greater than 0");
    spec.in_range("leaseTransitions", 0.., "must be greater than or equal to 0");
}

/// An event, in the form of the core group; `old` is the version before an update.
pub(super) fn event(resource: &Resource, object: &Fields<'_>, old: Option<&Object>) {
    let involved = object.child("involvedObject");
    let about = involved.text("namespace");
    let namespace = object.child("metadata").text("namespace");
    let is_timed = object.has("eventTime");
    let agrees = if about.is_empty() {
        namespace == "default" || (is_timed && namespace == "kube-system")
    } else {
        is_timed || namespace == about
    };
    if !agrees {
        involved.invalid("namespace", about, "does not match event.namespace");
    }
    if is_timed {
        timed_event(object);
    }
    if resource.group.is_empty() {
        return;
    }
    match old {
        Some(old) => event_update(object, old),
        None => new_event(object),
    }
}

/// An event of `events.k8s.io` can be counted, but not changed.
fn event_update(object: &Fields<'_>, old: &Object) {
    if object.get("series") != at(old, "/series") {
        event_series(object);
    }
    let kept = |name: &&String| !matches!(name.as_str(), "metadata" | "series");
    for name in object.object.keys().chain(old.keys()).filter(kept) {
        if object.get(name) != old.get(name).unwrap_or(&NULL) {
            object.invalid(name, object.get(name).clone(), IMMUTABLE);
        }
    }
}

fn new_event(object: &Fields<'_>) {
    event_series(object);
    if !object.has("eventTime") {
        object.required("eventTime", "");
    }
    object.one_of("type", &["Normal", "Warning"]);
    let source = object.child("source");
    for (name, value) in [
        ("firstTimestamp", object.get("firstTimestamp")),
        ("lastTimestamp", object.get("lastTimestamp")),
        ("count", object.get("count")),
        ("source", source.get("component")),
    ] {
        if !value.is_null() && value.as_i64() != Some(0) && value.as_str() != Some("") {
            object.invalid(name, value.clone(), "needs to be unset");
        }
    }
}

fn event_series(object: &Fields<'_>) {
    let Some(series) = object.given("series") else {
        return;
    };
    if series.integer("count").unwrap_or_default() < 2 {
        series.invalid("count", series.get("count").clone(), "should be at least 2");
    }
    if !series.has("lastObservedTime") {
        series.required("lastObservedTime", "");
    }
}

/// Validates an event with `eventTime`.
fn timed_event(object: &Fields<'_>) {
    object.check_required("reportingComponent", names::qualified);
    for name in ["reportingInstance", "action", "reason"] {
        if object.require(name).len() > EVENT_TEXT_LIMIT {
            object.too_long(name, EVENT_TEXT_LIMIT);
        }
    }
    if object.text("message").len() > EVENT_NOTE_LIMIT {
        object.too_long("message", EVENT_NOTE_LIMIT);
    }
}
