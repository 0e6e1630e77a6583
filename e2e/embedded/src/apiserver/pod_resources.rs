//! Resources of a whole pod (`k8s.io/component-helpers/resource`), and their defaults.

use std::collections::BTreeMap;

use serde_json::Value;

use super::object::{self, Object, entries, list, text};
use crate::quantity::Quantity;

pub(crate) const HUGE_PAGES: &str = "hugepages-";

type ResourceList = BTreeMap<String, Quantity>;

/// The sum of the containers' `limits` or `requests`, or what the init containers need before these run if it is more.
pub(crate) fn aggregate(spec: &Object, kind: &str) -> ResourceList {
    let lists_of = |containers: &str| {
        let containers = list(spec, containers).iter().filter_map(Value::as_object);
        containers.map(move |container| {
            let is_sidecar = text(container, "/restartPolicy") == "Always";
            (
                is_sidecar,
                resource_list(container, &format!("/resources/{kind}")),
            )
        })
    };
    let mut total = ResourceList::new();
    for (_, own) in lists_of("/containers") {
        add_resource_list(&mut total, &own);
    }
    let (mut sidecars, mut peak) = (ResourceList::new(), ResourceList::new());
    for (is_sidecar, mut own) in lists_of("/initContainers") {
        if is_sidecar {
            add_resource_list(&mut total, &own);
            add_resource_list(&mut sidecars, &own);
            own.clone_from(&sidecars);
        } else {
            add_resource_list(&mut own, &sidecars);
        }
        max_resource_list(&mut peak, own);
    }
    max_resource_list(&mut total, peak);
    total
}

fn resource_list(owner: &Object, pointer: &str) -> ResourceList {
    let parsed = |(name, value): (&String, &Value)| Some((name.clone(), Quantity::parse(value.as_str()?)?));
    entries(owner, pointer).filter_map(parsed).collect()
}

fn add_resource_list(list: &mut ResourceList, new: &ResourceList) {
    for (name, quantity) in new {
        let sum = list.get(name).map_or(*quantity, |old| old.plus(*quantity));
        list.insert(name.clone(), sum);
    }
}

fn max_resource_list(list: &mut ResourceList, new: ResourceList) {
    for (name, quantity) in new {
        if list.get(&name).is_none_or(|old| quantity.compare(*old).is_gt()) {
            list.insert(name, quantity);
        }
    }
}

/// Completes the resources of a pod that has some: limits of huge pages, then requests.
pub(crate) fn set_defaults(spec: &mut Object) {
    if is_empty(spec, "limits") && is_empty(spec, "requests") {
        return;
    }
    let (limits, requests) = (aggregate(spec, "limits"), aggregate(spec, "requests"));
    for (name, quantity) in limits {
        let is_requested = entries(spec, "/resources/requests").any(|(found, _)| *found == name);
        if name.starts_with(HUGE_PAGES) && !is_requested {
            set_default(spec, "limits", name, quantity.to_string().into());
        }
    }
    if is_empty(spec, "limits") {
        return;
    }
    for (name, quantity) in requests {
        if matches!(name.as_str(), "cpu" | "memory") {
            set_default(spec, "requests", name, quantity.to_string().into());
        }
    }
    let limits = object::at(spec, "/resources/limits").as_object().cloned();
    for (name, limit) in limits.into_iter().flatten() {
        if is_supported_pod_level_resource(&name) {
            set_default(spec, "requests", name, limit);
        }
    }
}

fn is_empty(spec: &Object, kind: &str) -> bool {
    let list = object::at(spec, &format!("/resources/{kind}"));
    list.as_object().is_none_or(Object::is_empty)
}

/// Whether a whole pod can have this resource.
pub(crate) fn is_supported_pod_level_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with(HUGE_PAGES)
}

fn set_default(spec: &mut Object, kind: &str, name: String, quantity: Value) {
    let list = object::struct_mut(spec, &format!("/resources/{kind}"));
    list.entry(name).or_insert(quantity);
}
