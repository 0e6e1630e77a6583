//! Validation of objects: the rules on which controllers of the attach/detach path and attachers depend (`pkg/apis/*/validation`
//! of Kubernetes). Fields that none of them reads are accepted with any value of the right type.

mod claim;
mod core;
mod fields;
mod metadata;
mod node;
mod pod;
mod storage;
mod volume;

use std::cell::RefCell;

use super::field::Errors;
use super::names::{self, NameFn};
use super::object::Object;
use super::resource::{Kind, Resource};
use super::strategy::Part;
use fields::Fields;

/// Validates a new object.
pub(crate) fn create(resource: &Resource, object: &Object) -> Errors {
    collect(object, |object| {
        metadata::validate(resource, object, name_rule(resource));
        match resource.kind {
            Kind::CsiDriver => storage::csi_driver(object),
            Kind::CsiNode => storage::csi_node(object),
            Kind::CsiStorageCapacity => storage::csi_storage_capacity(object),
            Kind::Event => core::event(resource, object, None),
            Kind::Lease => core::lease(object),
            Kind::Namespace => core::namespace_finalizers(object),
            Kind::Node => node::node(object),
            Kind::PersistentVolume => volume::spec(&object.child("spec"), false),
            Kind::PersistentVolumeClaim => claim::spec(&object.child("spec")),
            Kind::Pod => pod::create(object),
            Kind::Secret => core::secret(object),
            Kind::ServiceAccount => {}
            Kind::StorageClass => storage::storage_class(object),
            Kind::VolumeAttachment => storage::volume_attachment(object),
        }
    })
}

/// Validates a new version of an object.
pub(crate) fn update(resource: &Resource, part: Part, object: &Object, old: &Object) -> Errors {
    collect(object, |object| {
        // A name cannot change, so its rule at creation does not count.
        metadata::validate(resource, object, names::path_segment_name);
        metadata::validate_update(object, old);
        match (resource.kind, part) {
            (Kind::CsiDriver, _) => storage::csi_driver_update(object, old),
            (Kind::CsiNode, _) => storage::csi_node_update(object, old),
            (Kind::CsiStorageCapacity, _) => storage::csi_storage_capacity_update(object, old),
            (Kind::Event, _) => core::event(resource, object, Some(old)),
            (Kind::Lease, _) => core::lease(object),
            (Kind::Namespace, Part::Status) => core::namespace_status(object),
            (Kind::Namespace, _) => core::namespace_finalizers(object),
            (Kind::Node, _) => node::update(object, old),
            (Kind::PersistentVolume, Part::Main) => volume::update(object, old),
            (Kind::PersistentVolumeClaim, Part::Status) => claim::status(object),
            (Kind::PersistentVolumeClaim, _) => claim::update(object, old),
            (Kind::Pod, Part::Main) => pod::update(object, old),
            (Kind::Secret, _) => core::secret_update(object, old),
            (Kind::StorageClass, _) => storage::storage_class_update(object, old),
            (Kind::VolumeAttachment, _) => storage::volume_attachment_update(object, old),
            (Kind::PersistentVolume | Kind::Pod | Kind::ServiceAccount, _) => {}
        }
    })
}

fn name_rule(resource: &Resource) -> NameFn {
    if resource.kind == Kind::Namespace {
        names::label_name
    } else if resource.kind == Kind::Event && resource.group.is_empty() {
        names::path_segment_name
    } else {
        names::subdomain_name
    }
}

fn collect(object: &Object, validate: impl FnOnce(&Fields<'_>)) -> Errors {
    let errors = RefCell::default();
    validate(&Fields::of(object, &errors));
    errors.into_inner()
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

fn label_selector(selector: &Fields<'_>) {
    metadata::labels(selector, "matchLabels");
    for expression in selector.structs("matchExpressions") {
        operator_and_key(&expression, false);
        expression.check_items("values", names::label_value);
    }
}

fn node_selector(selector: &Fields<'_>) {
    if selector.list("nodeSelectorTerms").is_empty() {
        selector.required("nodeSelectorTerms", "must have at least one node selector term");
    }
    for term in selector.structs("nodeSelectorTerms") {
        for expression in term.structs("matchExpressions") {
            operator_and_key(&expression, true);
            expression.check_items("values", names::label_value);
        }
        for field in term.structs("matchFields") {
            node_field_requirement(&field);
        }
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
        "In" | "NotIn" => requirement.required("values", "must be exactly one value"),
        other => requirement.invalid("operator", other, "not a valid selector operator"),
    }
    match requirement.text("key") {
        "metadata.name" => requirement.check_items("values", names::dns1123_subdomain),
        other => requirement.invalid("key", other, "not a valid field selector key"),
    }
}
