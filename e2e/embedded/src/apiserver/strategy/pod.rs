//! The strategy of Pods (`pkg/registry/core/pod/strategy.go` and `pkg/api/pod/util.go` of Kubernetes).

use serde_json::{Value, json};

use super::super::object::{self, Object, copy, list, set, structs, text};
use super::super::schema::Struct;
use super::increase_generation;
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

/// Prepares a changed spec.
pub(super) fn prepare_new_spec(schema: &Struct, object: &mut Object, old: &Object) {
    drop_disabled(object);
    let mut normalized = object.clone();
    schema.normalize(&mut normalized);
    if normalized.get("spec") != old.get("spec") {
        increase_generation(object, old);
    }
}

/// Prepares a changed status. Drops the fields of ImageVolumeWithDigest and DRANodeAllocatableResources, whose feature gates are
/// off.
pub(super) fn prepare_status(object: &mut Object, old: &Object) {
    set(object, "/metadata/deletionTimestamp", Value::Null);
    copy(object, old, "/metadata/ownerReferences");
    if text(object, "/status/qosClass").is_empty() {
        copy(object, old, "/status/qosClass");
    }
    keep_observed_generations(object, old);
    set(
        object,
        "/status/nodeAllocatableResourceClaimStatuses",
        Value::Null,
    );
    let status = object::struct_mut(object, "/status");
    for list in [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ] {
        for container in structs(status.get_mut(list)) {
            for mount in structs(container.get_mut("volumeMounts")) {
                mount.remove("volumeStatus");
            }
        }
    }
}

/// An update that omits an observed generation keeps the old one; conditions of equal type are matched in order.
fn keep_observed_generations(object: &mut Object, old: &Object) {
    const FIELD: &str = "observedGeneration";
    let is_missing = |owner: &Object| owner.get(FIELD).and_then(Value::as_i64).unwrap_or_default() == 0;
    let mut old_conditions = list(old, "/status/conditions").to_vec();
    let status = object::struct_mut(object, "/status");
    if is_missing(status) {
        copy(status, object::struct_at(old, "status"), "/observedGeneration");
    }
    for condition in structs(status.get_mut("conditions")) {
        let kind = condition.get("type");
        let same_kind = old_conditions.iter().position(|old| old.get("type") == kind);
        let before = same_kind.map(|at| old_conditions.remove(at));
        if let Some(before) = before
            .as_ref()
            .and_then(Value::as_object)
            .filter(|_| is_missing(condition))
        {
            copy(condition, before, "/observedGeneration");
        }
    }
}

/// Drops the fields of feature gates that are off: ContainerStopSignals, GenericWorkload, ClusterTrustBundleProjection and
/// PodCertificateRequest (`DropDisabledPodFields`).
fn drop_disabled(object: &mut Object) {
    set(object, "/spec/schedulingGroup", Value::Null);
    let spec = object::struct_mut(object, "/spec");
    for volume in structs(spec.get_mut("volumes")) {
        let sources = volume
            .get_mut("projected")
            .and_then(|source| source.get_mut("sources"));
        for source in structs(sources) {
            source.retain(|kind, _| !matches!(kind.as_str(), "clusterTrustBundle" | "podCertificate"));
        }
    }
    object::visit_containers(spec, drop_stop_signal);
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
