//! The strategy of Pods (`pkg/registry/core/pod/strategy.go` of Kubernetes).

use serde_json::{Value, json};

use super::super::object::{Object, copy, list, set};
use super::super::schema::Struct;
use super::increase_generation;

pub(super) fn prepare_for_create(object: &mut Object, now: &str) {
    let mut status = json!({ "phase": "Pending" });
    if !list(object, "/spec/schedulingGates").is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "lastTransitionTime": now,
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    set(object, "/metadata/generation", 1);
    set(object, "/status", status);
}

/// Prepares a changed spec.
pub(super) fn prepare_new_spec(schema: &Struct, object: &mut Object, old: &Object) {
    let mut normalized = object.clone();
    schema.normalize(&mut normalized);
    if normalized.get("spec") != old.get("spec") {
        increase_generation(object, old);
    }
}

pub(super) fn prepare_status(object: &mut Object, old: &Object) {
    set(object, "/metadata/deletionTimestamp", Value::Null);
    copy(object, old, "/metadata/ownerReferences");
}
