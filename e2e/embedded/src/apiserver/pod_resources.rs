//! Resources of a whole pod (`k8s.io/component-helpers/resource`), and their defaults.

use std::collections::BTreeMap;

use serde_json::Value;

use super::object::{self, Object, entries, list, text};
use super::quantity::Quantity;

pub(crate) const HUGE_PAGES: &str = "hugepages-";

type Amounts = BTreeMap<String, Quantity>;

/// The sum of the containers' `limits` or `requests`, or what the init containers need before these run if it is more.
pub(crate) fn aggregate(spec: &Object, kind: &str) -> Amounts {
    let amounts_of = |containers: &str| {
        let containers = list(spec, containers).iter().filter_map(Value::as_object);
        containers.map(move |container| {
            let is_sidecar = text(container, "/restartPolicy") == "Always";
            (is_sidecar, amounts(container, &format!("/resources/{kind}")))
        })
    };
    let mut total = Amounts::new();
    for (_, own) in amounts_of("/containers") {
        add(&mut total, &own);
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for (is_sidecar, mut own) in amounts_of("/initContainers") {
        if is_sidecar {
            add(&mut total, &own);
            add(&mut sidecars, &own);
            own.clone_from(&sidecars);
        } else {
            add(&mut own, &sidecars);
        }
        raise(&mut peak, own);
    }
    raise(&mut total, peak);
    total
}

fn amounts(owner: &Object, pointer: &str) -> Amounts {
    let parsed = |(name, value): (&String, &Value)| Some((name.clone(), Quantity::parse(value.as_str()?)?));
    entries(owner, pointer).filter_map(parsed).collect()
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = total.get(name).map_or(*amount, |before| before.plus(*amount));
        total.insert(name.clone(), sum);
    }
}

fn raise(least: &mut Amounts, amounts: Amounts) {
    for (name, amount) in amounts {
        if least
            .get(&name)
            .is_none_or(|before| amount.compare(*before).is_gt())
        {
            least.insert(name, amount);
        }
    }
}

/// Completes the resources of a pod that has some: limits of huge pages, then requests.
pub(crate) fn set_defaults(spec: &mut Object) {
    if is_empty(spec, "limits") && is_empty(spec, "requests") {
        return;
    }
    let (limits, requests) = (aggregate(spec, "limits"), aggregate(spec, "requests"));
    for (name, amount) in limits {
        let is_requested = entries(spec, "/resources/requests").any(|(found, _)| *found == name);
        if name.starts_with(HUGE_PAGES) && !is_requested {
            set_default(spec, "limits", name, amount.to_string().into());
        }
    }
    if is_empty(spec, "limits") {
        return;
    }
    for (name, amount) in requests {
        if matches!(name.as_str(), "cpu" | "memory") {
            set_default(spec, "requests", name, amount.to_string().into());
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
    let amounts = object::at(spec, &format!("/resources/{kind}"));
    amounts.as_object().is_none_or(Object::is_empty)
}

/// Whether a whole pod can have this resource.
pub(crate) fn is_supported_pod_level_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with(HUGE_PAGES)
}

fn set_default(spec: &mut Object, kind: &str, name: String, amount: Value) {
    let amounts = object::struct_mut(spec, &format!("/resources/{kind}"));
    amounts.entry(name).or_insert(amount);
}
