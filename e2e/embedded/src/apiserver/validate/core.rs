//! Validation of Secrets, ServiceAccounts, Namespaces, Events and Leases.

use serde_json::Value;

use super::super::field::{Errors, FieldError, IMMUTABLE, Path};
use super::super::names;
use super::super::object::{self, Object, at, entries, text};
use super::super::resource::Resource;
use super::{each, immutable, metadata};

const SECRET_LIMIT: usize = 1024 * 1024;
/// Longest `reportingInstance`, `action` and `reason` of an event.
const EVENT_TEXT_LIMIT: usize = 128;
/// Longest message of an event.
const EVENT_NOTE_LIMIT: usize = 1024;

pub(super) fn service_account(object: &Object, errors: &mut Errors) {
    metadata::validate(object, true, names::subdomain_name, errors);
}

pub(super) fn secret(object: &Object, errors: &mut Errors) {
    metadata::validate(object, true, names::subdomain_name, errors);
    let data = Path::new("data");
    let mut size = 0;
    for (key, value) in entries(object, "/data") {
        each(errors, &data.key(key), key, names::config_map_key(key));
        size += value.as_str().unwrap_or_default().len() / 4 * 3;
    }
    if size > SECRET_LIMIT {
        errors.push(FieldError::too_long(&data, SECRET_LIMIT));
    }
    let given = at(object, "/data");
    let has = |key: &str| given.get(key).is_some();
    let mut require = |key: &str| errors.push(FieldError::required(&data.key(key), ""));
    match text(object, "/type") {
        "kubernetes.io/service-account-token" => {
            let name = "kubernetes.io/service-account.name";
            let annotation = at(object, "/metadata/annotations").get(name);
            if annotation.and_then(Value::as_str).is_none_or(str::is_empty) {
                let path = Path::new("metadata").child("annotations").key(name);
                errors.push(FieldError::required(&path, ""));
            }
        }
        "kubernetes.io/dockercfg" if !has(".dockercfg") => require(".dockercfg"),
        "kubernetes.io/dockerconfigjson" if !has(".dockerconfigjson") => require(".dockerconfigjson"),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            require("username");
            require("password");
        }
        "kubernetes.io/ssh-auth" if given["ssh-privatekey"].as_str().is_none_or(str::is_empty) => {
            require("ssh-privatekey");
        }
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"] {
                if !has(key) {
                    require(key);
                }
            }
        }
        _ => {}
    }
}

pub(super) fn secret_update(object: &Object, old: &Object, errors: &mut Errors) {
    metadata::validate_update(object, old, errors);
    immutable(errors, &Path::new("type"), object, old, "/type");
    if at(old, "/immutable").as_bool() == Some(true) {
        let why = "field is immutable when `immutable` is set";
        if at(object, "/immutable").as_bool() != Some(true) {
            errors.push(FieldError::forbidden(&Path::new("immutable"), why));
        }
        if at(object, "/data") != at(old, "/data") {
            errors.push(FieldError::forbidden(&Path::new("data"), why));
        }
    }
    secret(object, errors);
}

pub(super) fn namespace(object: &Object, errors: &mut Errors) {
    metadata::validate(object, false, names::label_name, errors);
    let path = Path::new("spec").child("finalizers");
    for finalizer in super::texts(object, "/spec/finalizers") {
        namespace_finalizer(&path, finalizer, errors);
    }
}

fn namespace_finalizer(path: &Path, finalizer: &str, errors: &mut Errors) {
    each(errors, path, finalizer, names::qualified(finalizer));
    let standard = matches!(finalizer, "kubernetes" | "orphan" | "foregroundDeletion");
    if !finalizer.contains('/') && !standard {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(FieldError::invalid(path, finalizer, why));
    }
}

pub(super) fn namespace_finalizers(object: &Object, errors: &mut Errors) {
    let path = Path::new("spec").child("finalizers");
    for (index, finalizer) in super::texts(object, "/spec/finalizers").enumerate() {
        namespace_finalizer(&path.index(index), finalizer, errors);
    }
}

pub(super) fn namespace_status(object: &Object, old: &Object, errors: &mut Errors) {
    metadata::validate_update(object, old, errors);
    let phase = text(object, "/status/phase");
    let path = Path::new("status").child("Phase");
    if object::is_deleting(object) {
        if phase != "Terminating" {
            let why = "may only be 'Terminating' if `deletionTimestamp` is not empty";
            errors.push(FieldError::invalid(&path, phase, why));
        }
    } else if phase != "Active" {
        let why = "may only be 'Active' if `deletionTimestamp` is empty";
        errors.push(FieldError::invalid(&path, phase, why));
    }
}

pub(super) fn lease(object: &Object, errors: &mut Errors) {
    metadata::validate_apimachinery(object, true, names::subdomain_name, errors);
    lease_spec(object, errors);
}

pub(super) fn lease_spec(object: &Object, errors: &mut Errors) {
    let path = Path::new("spec");
    let number = |name: &str| at(object, &format!("/spec/{name}")).as_i64();
    if let Some(seconds) = number("leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
        let why = "must be greater than 0";
        errors.push(FieldError::invalid(
            &path.child("leaseDurationSeconds"),
            seconds,
            why,
        ));
    }
    if let Some(transitions) = number("leaseTransitions").filter(|transitions| *transitions < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(
            &path.child("leaseTransitions"),
            transitions,
            why,
        ));
    }
}

/// An event, in the form of the core group; `old` is the version before an update.
pub(super) fn event(resource: &Resource, object: &Object, old: Option<&Object>, errors: &mut Errors) {
    legacy_event(resource, object, errors);
    if resource.group.is_empty() {
        return;
    }
    let series = "/series";
    if let Some(old) = old {
        metadata::validate_update(object, old, errors);
        if at(object, series) != at(old, series) {
            event_series(object, errors);
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
            let pointer = format!("/{name}");
            let value = at(object, &pointer);
            if value != at(old, &pointer) {
                let shown = internal(name, value);
                errors.push(FieldError::invalid(&Path::new(name), shown, IMMUTABLE));
            }
        }
        let path = Path::new("reportingController");
        immutable(errors, &path, object, old, "/reportingComponent");
        let path = Path::new("reportingInstance");
        immutable(errors, &path, object, old, "/reportingInstance");
        return;
    }
    metadata::validate(object, true, names::subdomain_name, errors);
    event_series(object, errors);
    if !object::has(object, "/eventTime") {
        errors.push(FieldError::required(&Path::new("eventTime"), ""));
    }
    let kind = text(object, "/type");
    if !matches!(kind, "Normal" | "Warning") {
        let why = format!("has invalid value: {kind}");
        errors.push(FieldError::invalid(&Path::new("type"), "", why));
    }
    for (name, pointer) in [
        ("firstTimestamp", "/firstTimestamp"),
        ("lastTimestamp", "/lastTimestamp"),
        ("count", "/count"),
        ("source", "/source/component"),
    ] {
        let value = at(object, pointer);
        if !value.is_null() && value.as_i64() != Some(0) && value.as_str() != Some("") {
            errors.push(FieldError::invalid(&Path::new(name), "", "needs to be unset"));
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
    let empty = Object::new();
    let given = match value.as_object() {
        // Only `related` is a pointer.
        None if name == "related" => return Value::Null,
        given => given.unwrap_or(&empty),
    };
    let field = |(name, shown): &(&str, &str)| {
        let value = given.get(*name).cloned().unwrap_or_else(|| "".into());
        ((*shown).to_owned(), value)
    };
    Value::Object(fields.iter().map(field).collect())
}

fn event_series(object: &Object, errors: &mut Errors) {
    if !object::has(object, "/series") {
        return;
    }
    if at(object, "/series/count").as_i64().unwrap_or_default() < 2 {
        errors.push(FieldError::invalid(
            &Path::new("series.count"),
            "",
            "should be at least 2",
        ));
    }
    if !object::has(object, "/series/lastObservedTime") {
        errors.push(FieldError::required(&Path::new("series.lastObservedTime"), ""));
    }
}

fn legacy_event(resource: &Resource, object: &Object, errors: &mut Errors) {
    let about = text(object, "/involvedObject/namespace");
    let namespace = object::namespace(object);
    let timed = object::has(object, "/eventTime");
    let agrees = if about.is_empty() {
        namespace.is_empty() || namespace == "default" || (timed && namespace == "kube-system")
    } else {
        timed || namespace == about
    };
    if !agrees {
        let path = Path::new("involvedObject").child("namespace");
        errors.push(FieldError::invalid(
            &path,
            about,
            "does not match event.namespace",
        ));
    }
    if timed {
        timed_event(resource, object, errors);
    }
    let path = Path::new("namespace");
    each(errors, &path, namespace, names::dns1123_subdomain(namespace));
}

/// What an event with `eventTime` must have.
fn timed_event(resource: &Resource, object: &Object, errors: &mut Errors) {
    let name = if resource.group.is_empty() {
        "reportingComponent"
    } else {
        "reportingController"
    };
    let path = Path::new(name);
    let controller = text(object, "/reportingComponent");
    if controller.is_empty() {
        errors.push(FieldError::required(&path, ""));
    }
    each(errors, &path, controller, names::qualified(controller));
    for (name, limit) in [
        ("reportingInstance", EVENT_TEXT_LIMIT),
        ("action", EVENT_TEXT_LIMIT),
        ("reason", EVENT_TEXT_LIMIT),
        ("message", EVENT_NOTE_LIMIT),
    ] {
        let value = text(object, &format!("/{name}"));
        if value.is_empty() && name != "message" {
            errors.push(FieldError::required(&Path::new(name), ""));
        }
        if value.len() > limit {
            let why = format!("can have at most {limit} characters");
            errors.push(FieldError::invalid(&Path::new(name), "", why));
        }
    }
}
