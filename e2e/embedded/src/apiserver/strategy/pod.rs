//! The strategy of Pods (`pkg/registry/core/pod/strategy.go` and `pkg/api/pod/util.go` of Kubernetes).

use serde_json::{Value, json};

use super::super::object::{self, Object, list, set, text};
use crate::quantity::Quantity;

pub(super) fn prepare_for_create(object: &mut Object, now: &str) {
    let class = qos_class(object);
    set(object, "/metadata/generation", 1);
    set(
        object,
        "/status",
        json!({ "phase": "Pending", "qosClass": class }),
    );
    drop_disabled(object);
    scheduling_gated(object, now);
    merge_label_keys(object);
}

/// Drops the fields of the feature gates ContainerStopSignals and GenericWorkload, which are off (`DropDisabledPodFields`).
pub(super) fn drop_disabled(object: &mut Object) {
    set(object, "/spec/schedulingGroup", Value::Null);
    object::visit_containers(object::struct_mut(object, "/spec"), drop_stop_signal);
}

fn drop_stop_signal(container: &mut Object) {
    let lifecycle = container.get_mut("lifecycle").and_then(Value::as_object_mut);
    if lifecycle.is_some_and(|lifecycle| lifecycle.remove("stopSignal").is_some() && lifecycle.is_empty()) {
        container.remove("lifecycle");
    }
}

fn scheduling_gated(object: &mut Object, now: &str) {
    if list(object, "/spec/schedulingGates").is_empty() {
        return;
    }
    let condition = json!({
        "type": "PodScheduled",
        "status": "False",
        "lastTransitionTime": now,
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    });
    set(object, "/status/conditions", json!([condition]));
}

/// Adds the pod's values of `matchLabelKeys` and `mismatchLabelKeys` to the label selectors.
fn merge_label_keys(object: &mut Object) {
    const LISTS: [&str; 5] = [
        "/topologySpreadConstraints",
        "/affinity/podAffinity/preferredDuringSchedulingIgnoredDuringExecution",
        "/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution",
        "/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution",
        "/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution",
    ];
    let labels = object::at(object, "/metadata/labels").clone();
    let Some(spec) = object.get_mut("spec") else {
        return;
    };
    for list in LISTS {
        let items = spec.pointer_mut(list).and_then(Value::as_array_mut);
        for item in items.into_iter().flatten() {
            if let Some(term) = item.get_mut("podAffinityTerm") {
                merge_keys(term, &labels);
            } else {
                merge_keys(item, &labels);
            }
        }
    }
}

fn merge_keys(term: &mut Value, labels: &Value) {
    let mut requirements = Vec::new();
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys = term.get(field).and_then(Value::as_array);
        for key in keys.into_iter().flatten().filter_map(Value::as_str) {
            if let Some(value) = labels.get(key) {
                requirements.push(json!({ "key": key, "operator": operator, "values": [value] }));
            }
        }
    }
    if requirements.is_empty() {
        return;
    }
    if let Some(Value::Object(selector)) = term.get_mut("labelSelector")
        && let Value::Array(expressions) = selector.entry("matchExpressions").or_insert_with(|| json!([]))
    {
        expressions.extend(requirements);
    }
}

/// The quality-of-service class, from the CPU and memory requests and limits of the pod, or else of its containers.
fn qos_class(object: &Object) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    let spec = object::struct_at(object, "spec");
    let owners: Vec<&Object> = if object::has(spec, "/resources") {
        vec![spec]
    } else {
        let containers = ["/containers", "/initContainers"].map(|name| list(spec, name));
        let containers = containers.into_iter().flatten();
        containers.filter_map(Value::as_object).collect()
    };
    for owner in owners {
        for resource in ["cpu", "memory"] {
            let amount = |kind: &str| {
                let amount = Quantity::parse(text(owner, &format!("/resources/{kind}/{resource}")));
                amount.filter(|amount| amount.cmp_zero().is_gt())
            };
            let (request, limit) = (amount("requests"), amount("limits"));
            any |= request.is_some() || limit.is_some();
            let both = request.zip(limit);
            guaranteed &= both.is_some_and(|(request, limit)| request.compare(limit).is_eq());
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
