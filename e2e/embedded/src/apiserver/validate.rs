//! Validation of objects (`pkg/apis/*/validation` of Kubernetes). The rules run in kube-apiserver's order, so
//! that the response lists the errors in the same order.
//!
//! Not validated: types of fields in JSON annotations.

mod affinity;
mod app_armor;
mod claim;
mod container;
mod core;
mod environment;
mod fields;
mod handlers;
mod metadata;
mod node;
mod pod;
mod pod_annotations;
mod pod_network;
mod pod_status;
mod pod_update;
mod pod_volume;
mod resources;
mod restart_policy;
mod security_context;
mod storage;
mod volume;
mod volume_source;
mod windows;

use std::cell::RefCell;

use serde_json::{Value, json};

use super::field::Errors;
use super::names;
use super::object::{CONTAINER_LISTS, Object};
use super::resource::{Kind, Resource};
use super::strategy::Part;
use fields::Fields;

/// Field of seccomp and AppArmor profiles with the path of a profile on the node.
const LOCALHOST_PROFILE: &str = "localhostProfile";

/// Validates a new object.
pub(crate) fn create(resource: &Resource, object: &Object) -> Errors {
    collect(object, |object| match resource.kind {
        Kind::CsiDriver => storage::csi_driver(object),
        Kind::CsiNode => storage::csi_node(object),
        Kind::CsiStorageCapacity => storage::csi_storage_capacity(object),
        Kind::Event => core::event(resource, object, None),
        Kind::Lease => core::lease(object),
        Kind::Namespace => core::namespace(object),
        Kind::Node => node::node(object),
        Kind::PersistentVolume => volume::persistent_volume(object),
        Kind::PersistentVolumeClaim => claim::claim(object),
        Kind::Pod => {
            pod::metadata_and_spec(object, None);
            pod::only_on_create(object);
        }
        Kind::Secret => core::secret(object),
        Kind::ServiceAccount => core::service_account(object),
        Kind::StorageClass => storage::storage_class(object),
        Kind::VolumeAttachment => storage::volume_attachment(object),
    })
}

/// Validates a new version of an object.
pub(crate) fn update(resource: &Resource, part: Part, object: &Object, old: &Object) -> Errors {
    collect(object, |object| match (resource.kind, part) {
        (Kind::CsiDriver, _) => storage::csi_driver_update(object, old),
        (Kind::CsiNode, _) => storage::csi_node_update(object, old),
        (Kind::CsiStorageCapacity, _) => storage::csi_storage_capacity_update(object, old),
        (Kind::Event, _) => core::event(resource, object, Some(old)),
        (Kind::Lease, _) => {
            metadata::validate_update_apimachinery(object, old);
            core::lease_spec(object);
        }
        (Kind::Namespace, Part::Main | Part::EphemeralContainers) => {
            core::namespace(object);
            metadata::validate_update(object, old);
        }
        (Kind::Namespace, Part::Status) => core::namespace_status(object, old),
        (Kind::Namespace, Part::Finalize) => {
            metadata::validate_update(object, old);
            core::namespace_finalizers(object);
        }
        (Kind::Node, Part::Main | Part::Finalize | Part::EphemeralContainers) => {
            node::node(object);
            node::update(object, old);
        }
        (Kind::Node, Part::Status) => node::update(object, old),
        (Kind::PersistentVolume, Part::Status) => metadata::validate_update(object, old),
        (Kind::PersistentVolume, _) => volume::persistent_volume_update(object, old),
        (Kind::PersistentVolumeClaim, Part::Status) => claim::claim_status(object, old),
        (Kind::PersistentVolumeClaim, _) => claim::claim_update(object, old),
        (Kind::Pod, Part::Status) => pod_status::update(object, old),
        (Kind::Pod, Part::EphemeralContainers) => pod_update::ephemeral_containers(object, old),
        (Kind::Pod, _) => pod_update::update(object, old),
        (Kind::Secret, _) => core::secret_update(object, old),
        (Kind::ServiceAccount, _) => {
            metadata::validate_update(object, old);
            core::service_account(object);
        }
        (Kind::StorageClass, _) => {
            storage::storage_class(object);
            storage::storage_class_update(object, old);
        }
        (Kind::VolumeAttachment, _) => storage::volume_attachment_update(object, old),
    })
}

/// Validates the fields that all kinds share in a new object.
pub(crate) fn common(resource: &Resource, object: &Object) -> Errors {
    collect(object, |object| {
        metadata::validate_apimachinery(object, resource.namespaced, names::path_segment_name);
    })
}

/// Validates the fields that all kinds share in an update.
pub(crate) fn common_update(resource: &Resource, object: &Object, old: &Object) -> Errors {
    let mut errors = common(resource, object);
    errors.extend(collect(object, |object| {
        metadata::validate_update_apimachinery(object, old);
    }));
    errors
}

fn collect(object: &Object, validate: impl FnOnce(&Fields<'_>)) -> Errors {
    let errors = RefCell::default();
    validate(&Fields::of(object, &errors));
    errors.into_inner()
}

/// The containers of all types.
fn all_containers<'a>(spec: &Fields<'a>) -> impl Iterator<Item = Fields<'a>> + use<'a> {
    let spec = spec.clone();
    let lists = CONTAINER_LISTS.into_iter();
    lists.flat_map(move |list| spec.structs(list))
}

/// The name of a CSI driver in a spec.
fn csi_driver_name(owner: &Fields<'_>, field: &str) {
    let name = owner.require(field);
    if name.is_empty() {
        return;
    }
    if name.len() > 63 {
        owner.too_long(field, 63);
    }
    owner.found(field, name, names::dns1123_subdomain(&name.to_ascii_lowercase()));
}

/// A label selector in a spec.
fn label_selector(selector: &Fields<'_>) {
    metadata::labels(selector, "matchLabels");
    for expression in selector.structs("matchExpressions") {
        operator_and_key(&expression, false);
        expression.check_items("values", names::label_value);
    }
}

/// A node selector in a spec.
fn node_selector(selector: &Fields<'_>) {
    if selector.list("nodeSelectorTerms").is_empty() {
        selector.required("nodeSelectorTerms", "must have at least one node selector term");
    }
    for term in selector.structs("nodeSelectorTerms") {
        node_selector_term(&term, true);
    }
}

fn node_selector_term(term: &Fields<'_>, checks_values: bool) {
    for expression in term.structs("matchExpressions") {
        operator_and_key(&expression, true);
        if checks_values {
            expression.check_items("values", names::label_value);
        }
    }
    for field in term.structs("matchFields") {
        node_field_requirement(&field);
    }
}

/// Operator and key in a requirement of a label selector, or of a node selector, which can compare numbers.
fn operator_and_key(requirement: &Fields<'_>, compares: bool) {
    let values = requirement.list("values").len();
    match requirement.text("operator") {
        "In" | "NotIn" if values == 0 => {
            requirement.required("values", "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if values > 0 => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            requirement.forbidden("values", why);
        }
        "Gt" | "Lt" if compares && values != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            requirement.required("values", why);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        "Gt" | "Lt" if compares => {}
        other => requirement.invalid("operator", other, "not a valid selector operator"),
    }
    requirement.check("key", names::qualified);
}

fn node_field_requirement(requirement: &Fields<'_>) {
    match requirement.text("operator") {
        "In" | "NotIn" if requirement.list("values").len() == 1 => {}
        "In" | "NotIn" => {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            requirement.required("values", why);
        }
        other => requirement.invalid("operator", other, "not a valid selector operator"),
    }
    match requirement.text("key") {
        "metadata.name" => requirement.check_items("values", names::dns1123_subdomain),
        other => requirement.invalid("key", other, "not a valid field selector key"),
    }
}

/// A label selector as errors show it: in the order of Go's fields, without empty ones.
fn shown_label_selector(selector: &Value) -> Value {
    if selector.is_null() {
        return Value::Null;
    }
    let requirement = |found: &Value| {
        let text = |name: &str| found[name].as_str().unwrap_or_default();
        let mut shown = json!({ "key": text("key"), "operator": text("operator") });
        if let Some(values) = found["values"].as_array().filter(|values| !values.is_empty()) {
            shown["values"] = values.clone().into();
        }
        shown
    };
    let mut shown = json!({});
    if selector["matchLabels"]
        .as_object()
        .is_some_and(|labels| !labels.is_empty())
    {
        shown["matchLabels"] = fields::sorted(&selector["matchLabels"]);
    }
    let expressions = selector["matchExpressions"].as_array();
    if let Some(expressions) = expressions.filter(|expressions| !expressions.is_empty()) {
        shown["matchExpressions"] = expressions.iter().map(requirement).collect();
    }
    shown
}

/// A volume's node affinity as errors show it: as Go's internal type.
fn shown_affinity(affinity: &Value) -> Value {
    if affinity.is_null() {
        return Value::Null;
    }
    let required = &affinity["required"];
    let terms = || match required["nodeSelectorTerms"].as_array() {
        Some(terms) => terms.iter().map(shown_term).collect(),
        None => Value::Null,
    };
    let selector = (!required.is_null()).then(|| json!({ "NodeSelectorTerms": terms() }));
    json!({ "Required": selector })
}

/// A term of a node selector as errors show it: as Go's internal type.
fn shown_term(term: &Value) -> Value {
    let requirements = |list: &Value| {
        let shown = |found: &Value| json!({ "Key": found["key"], "Operator": found["operator"], "Values": found["values"] });
        let list = list.as_array().filter(|list| !list.is_empty());
        list.map_or(Value::Null, |list| list.iter().map(shown).collect())
    };
    json!({
        "MatchExpressions": requirements(&term["matchExpressions"]),
        "MatchFields": requirements(&term["matchFields"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_node_affinity_as_the_internal_type() {
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]});
        let shown = r#"{"Required":{"NodeSelectorTerms":[{"MatchExpressions":[{"Key":"zone","Operator":"Exists","Values":null}],"MatchFields":null}]}}"#;
        let cases = [
            (Value::Null, "null"),
            (json!({}), r#"{"Required":null}"#),
            (json!({"required": null}), r#"{"Required":null}"#),
            (
                json!({"required": {}}),
                r#"{"Required":{"NodeSelectorTerms":null}}"#,
            ),
            (json!({"required": {"nodeSelectorTerms": [term]}}), shown),
        ];
        for (affinity, expected) in cases {
            assert_eq!(shown_affinity(&affinity).to_string(), expected, "{affinity}");
        }
    }

    #[test]
    fn errors_show_label_selectors_in_the_order_of_the_fields() {
        let cases = [
            (Value::Null, "null"),
            (json!({"matchLabels": {}}), "{}"),
            (
                json!({"matchExpressions": [{"values": ["z"], "operator": "In", "key": "a"}],
                    "matchLabels": {"c": "d", "a": "b"}}),
                r#"{"matchLabels":{"a":"b","c":"d"},"matchExpressions":[{"key":"a","operator":"In","values":["z"]}]}"#,
            ),
            (
                json!({"matchExpressions": [{"operator": "Exists", "values": []}]}),
                r#"{"matchExpressions":[{"key":"","operator":"Exists"}]}"#,
            ),
        ];
        for (selector, expected) in cases {
            assert_eq!(
                shown_label_selector(&selector).to_string(),
                expected,
                "{selector}"
            );
        }
    }
}
