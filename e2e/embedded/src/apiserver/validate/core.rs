//! Validation of Secrets, ServiceAccounts, Namespaces, Events and Leases.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::super::field::{FieldError, IMMUTABLE, Path};
use super::super::go_format;
use super::super::names;
use super::super::object::{NULL, Object, at};
use super::super::resource::Resource;
use super::fields::Fields;
use super::metadata::{self, qualified_finalizer};

const SECRET_LIMIT: usize = 1024 * 1024;
/// Maximum length of an event's `reportingInstance`, `action` and `reason`.
const EVENT_TEXT_LIMIT: usize = 128;
/// Maximum length of an event's message.
const EVENT_NOTE_LIMIT: usize = 1024;

pub(super) fn service_account(object: &Fields<'_>) {
    metadata::validate(object, true, names::subdomain_name);
}

pub(super) fn secret(object: &Fields<'_>) {
    metadata::validate(object, true, names::subdomain_name);
    let data = object.child("data");
    let path = object.path("data");
    let mut size = 0;
    for (key, value) in object.entries("data") {
        for why in names::config_map_key(key) {
            object.push(FieldError::invalid(&path.key(key), key.as_str(), why));
        }
        size += value.as_str().unwrap_or_default().len() / 4 * 3;
    }
    if size > SECRET_LIMIT {
        object.too_long("data", SECRET_LIMIT);
    }
    let require = |key: &str| object.push(FieldError::required(&path.key(key), ""));
    match object.text("type") {
        "kubernetes.io/service-account-token" => {
            let name = "kubernetes.io/service-account.name";
            let metadata = object.child("metadata");
            if metadata.child("annotations").text(name).is_empty() {
                let path = metadata.path("annotations").key(name);
                object.push(FieldError::required(&path, ""));
            }
        }
        "kubernetes.io/dockercfg" => json_object(&data, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => json_object(&data, ".dockerconfigjson"),
        "kubernetes.io/basic-auth" if !data.has("username") && !data.has("password") => {
            require("username");
            require("password");
        }
        "kubernetes.io/ssh-auth" if data.text("ssh-privatekey").is_empty() => require("ssh-privatekey"),
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"] {
                if !data.has(key) {
                    require(key);
                }
            }
        }
        _ => {}
    }
}

/// A key whose value is required to be a JSON object.
fn json_object(data: &Fields<'_>, key: &str) {
    let path = data.own_path().key(key);
    let Some(encoded) = data.get(key).as_str() else {
        return data.push(FieldError::required(&path, ""));
    };
    let parsed = STANDARD.decode(encoded).unwrap_or_default();
    let why = match go_format::parse_json(&parsed) {
        Ok(Value::Object(_) | Value::Null) => return,
        Ok(value) => go_format::cannot_unmarshal(&value, "map[string]interface {}"),
        Err(why) => why,
    };
    data.push(FieldError::invalid(&path, "<secret contents redacted>", why));
}

pub(super) fn secret_update(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    object.immutable(old, "type");
    if at(old, "/immutable").as_bool() == Some(true) {
        let why = "field is immutable when `immutable` is set";
        if object.get("immutable").as_bool() != Some(true) {
            object.forbidden("immutable", why);
        }
        if object.get("data") != at(old, "/data") {
            object.forbidden("data", why);
        }
    }
    secret(object);
}

pub(super) fn namespace(object: &Fields<'_>) {
    metadata::validate(object, false, names::label_name);
    let spec = object.child("spec");
    for finalizer in spec.texts("finalizers") {
        namespace_finalizer(&spec, &spec.path("finalizers"), finalizer);
    }
}

pub(super) fn namespace_finalizers(object: &Fields<'_>) {
    let spec = object.child("spec");
    for (index, finalizer) in spec.texts("finalizers").enumerate() {
        namespace_finalizer(&spec, &spec.path("finalizers").index(index), finalizer);
    }
}

fn namespace_finalizer(spec: &Fields<'_>, path: &Path, finalizer: &str) {
    for why in names::qualified(finalizer) {
        spec.push(FieldError::invalid(path, finalizer, why));
    }
    qualified_finalizer(spec, path, finalizer);
}

pub(super) fn namespace_status(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    let status = object.child("status");
    let phase = status.text("phase");
    if object.child("metadata").has("deletionTimestamp") {
        if phase != "Terminating" {
            let why = "may only be 'Terminating' if `deletionTimestamp` is not empty";
            status.invalid("Phase", phase, why);
        }
    } else if phase != "Active" {
        let why = "may only be 'Active' if `deletionTimestamp` is empty";
        status.invalid("Phase", phase, why);
    }
}

pub(super) fn lease(object: &Fields<'_>) {
    metadata::validate_apimachinery(object, true, names::subdomain_name);
    lease_spec(object);
}

pub(super) fn lease_spec(object: &Fields<'_>) {
    let spec = object.child("spec");
    spec.in_range("leaseDurationSeconds", 1.., "must be greater than 0");
    spec.in_range("leaseTransitions", 0.., "must be greater than or equal to 0");
}

/// An event, in the form of the core group; `old` is the version before an update.
pub(super) fn event(resource: &Resource, object: &Fields<'_>, old: Option<&Object>) {
    legacy_event(resource, object);
    if resource.group.is_empty() {
        return;
    }
    match old {
        Some(old) => event_update(object, old),
        None => new_event(object),
    }
}

fn event_update(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    if object.get("series") != at(old, "/series") {
        event_series(object);
    }
    for name in [
        "involvedObject",
        "reason",
        "message",
        "source",
        "firstTimestamp",
        "lastTimestamp",
        "count",
        "reason",
        "type",
        "eventTime",
        "action",
        "related",
    ] {
        let value = object.get(name);
        if value != old.get(name).unwrap_or(&NULL) {
            object.invalid(name, internal(name, value), IMMUTABLE);
        }
    }
    if object.get("reportingComponent") != at(old, "/reportingComponent") {
        let value = object.get("reportingComponent").clone();
        object.invalid("reportingController", value, IMMUTABLE);
    }
    object.immutable(old, "reportingInstance");
}

fn new_event(object: &Fields<'_>) {
    metadata::validate(object, true, names::subdomain_name);
    event_series(object);
    if !object.has("eventTime") {
        object.required("eventTime", "");
    }
    let kind = object.text("type");
    if !matches!(kind, "Normal" | "Warning") {
        object.invalid("type", "", format!("has invalid value: {kind}"));
    }
    let source = object.child("source");
    for (name, value) in [
        ("firstTimestamp", object.get("firstTimestamp")),
        ("lastTimestamp", object.get("lastTimestamp")),
        ("count", object.get("count")),
        ("source", source.get("component")),
    ] {
        if !value.is_null() && value.as_i64() != Some(0) && value.as_str() != Some("") {
            object.invalid(name, "", "needs to be unset");
        }
    }
}

/// A struct of an event as Kubernetes' internal type shows it: all fields, under their names in Go.
fn internal(name: &str, value: &Value) -> Value {
    let fields: &[(&str, &str)] = match name {
        "involvedObject" | "related" => &[
            ("kind", "Kind"),
            ("namespace", "Namespace"),
            ("name", "Name"),
            ("uid", "UID"),
            ("apiVersion", "APIVersion"),
            ("resourceVersion", "ResourceVersion"),
            ("fieldPath", "FieldPath"),
        ],
        "source" => &[("component", "Component"), ("host", "Host")],
        "count" if value.is_null() => return 0.into(),
        "reason" | "message" | "type" | "action" if value.is_null() => return "".into(),
        _ => return value.clone(),
    };
    // Only `related` is a pointer.
    if name == "related" && !value.is_object() {
        return Value::Null;
    }
    let field = |(name, shown): &(&str, &str)| {
        let value = value.get(*name).cloned().unwrap_or_else(|| "".into());
        ((*shown).to_owned(), value)
    };
    Value::Object(fields.iter().map(field).collect())
}

fn event_series(object: &Fields<'_>) {
    let Some(series) = object.given("series") else {
        return;
    };
    if series.integer("count").unwrap_or_default() < 2 {
        series.invalid("count", "", "should be at least 2");
    }
    if !series.has("lastObservedTime") {
        series.required("lastObservedTime", "");
    }
}

fn legacy_event(resource: &Resource, object: &Fields<'_>) {
    let involved = object.child("involvedObject");
    let about = involved.text("namespace");
    let namespace = object.child("metadata").text("namespace");
    let timed = object.has("eventTime");
    let agrees = if about.is_empty() {
        namespace.is_empty() || namespace == "default" || (timed && namespace == "kube-system")
    } else {
        timed || namespace == about
    };
    if !agrees {
        involved.invalid("namespace", about, "does not match event.namespace");
    }
    if timed {
        timed_event(resource, object);
    }
    object.found("namespace", namespace, names::dns1123_subdomain(namespace));
}

/// Validates an event with `eventTime`.
fn timed_event(resource: &Resource, object: &Fields<'_>) {
    let name = if resource.group.is_empty() {
        "reportingComponent"
    } else {
        "reportingController"
    };
    let controller = object.text("reportingComponent");
    if controller.is_empty() {
        object.required(name, "");
    }
    object.found(name, controller, names::qualified(controller));
    for (name, limit) in [
        ("reportingInstance", EVENT_TEXT_LIMIT),
        ("action", EVENT_TEXT_LIMIT),
        ("reason", EVENT_TEXT_LIMIT),
        ("message", EVENT_NOTE_LIMIT),
    ] {
        if name != "message" {
            object.require(name);
        }
        if object.text(name).len() > limit {
            object.invalid(name, "", format!("can have at most {limit} characters"));
        }
    }
}
