//! The admission plugins of kube-apiserver on which the attach/detach path depends: NamespaceLifecycle, TaintNodesByCondition,
//! DefaultTolerationSeconds, PodTopologyLabels, DefaultStorageClass, StorageObjectInUseProtection and
//! PersistentVolumeClaimResize.

use serde_json::{Value, json};

use super::object::{self, Object, at, list, set, text};
use super::resource::{self, Kind, Resource};
use super::status::Status;
use super::storage::Store;
use super::strategy::Part;
use crate::node::{NOT_READY, UNREACHABLE};
use crate::volume::ANN_BETA_STORAGE_CLASS;

/// `tolerationSeconds` of the default tolerations for nodes that are not ready or unreachable.
const TOLERATION_SECONDS: i64 = 300;
/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Admits a new object, and may modify it.
pub(crate) fn create(
    store: &Store,
    resource: &Resource,
    object: &mut Object,
    namespace: &str,
) -> Result<(), Status> {
    namespace_exists(store, resource, shown_name(object), namespace)?;
    match resource.kind {
        Kind::Pod => {
            default_tolerations(object);
            add_topology_labels(store, object);
        }
        Kind::Node => taint_until_ready(object),
        Kind::PersistentVolume => protect(object, "kubernetes.io/pv-protection"),
        Kind::PersistentVolumeClaim => {
            default_class(store, object);
            protect(object, "kubernetes.io/pvc-protection");
        }
        Kind::CsiDriver
        | Kind::CsiNode
        | Kind::CsiStorageCapacity
        | Kind::Event
        | Kind::Lease
        | Kind::Namespace
        | Kind::Secret
        | Kind::ServiceAccount
        | Kind::StorageClass
        | Kind::VolumeAttachment => {}
    }
    Ok(())
}

pub(crate) fn mutate_update(resource: &Resource, object: &mut Object) {
    if resource.kind == Kind::Pod {
        default_tolerations(object);
    }
}

pub(crate) fn validate_update(
    store: &Store,
    resource: &Resource,
    part: Part,
    object: &Object,
    old: &Object,
) -> Result<(), Status> {
    if part == Part::Main && resource.kind == Kind::PersistentVolumeClaim {
        resize(store, resource, object, old)?;
    }
    Ok(())
}

pub(crate) fn delete(resource: &Resource, name: &str) -> Result<(), Status> {
    if resource.kind == Kind::Namespace && IMMORTAL.contains(&name) {
        let why = "this namespace may not be deleted";
        return Err(Status::forbidden(resource, name, why));
    }
    Ok(())
}

/// NamespaceLifecycle: rejects a creation in a namespace that does not exist or is terminating.
pub(crate) fn namespace_exists(
    store: &Store,
    resource: &Resource,
    name: &str,
    namespace: &str,
) -> Result<(), Status> {
    if !resource.namespaced {
        return Ok(());
    }
    let namespaces = resource::of_kind(Kind::Namespace);
    let Some(found) = store.table(namespaces.table()).get(namespace) else {
        return Err(Status::not_found(namespaces, namespace));
    };
    if text(&found.object(), "/status/phase") != "Terminating" {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut status = Status::forbidden(resource, name, &why);
    let message = format!("namespace {namespace} is being terminated");
    status.details["causes"] = json!([{
        "reason": "NamespaceTerminating",
        "message": message,
        "field": "metadata.namespace",
    }]);
    Err(status)
}

/// The name of a new object in errors: admission precedes the generation of names.
fn shown_name(object: &Object) -> &str {
    let names = [object::name(object), text(object, "/metadata/generateName")];
    let given = names.into_iter().find(|name| !name.is_empty());
    given.unwrap_or("Unknown")
}

/// PodTopologyLabels: sets the zone and region labels of a pod to those of its node.
pub(crate) fn add_topology_labels(store: &Store, pod: &mut Object) {
    let nodes = store.table(Kind::Node as usize);
    let Some(node) = nodes.get(text(pod, "/spec/nodeName")) else {
        return;
    };
    let node = node.object();
    let labels = at(&node, "/metadata/labels");
    for name in ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"] {
        if let Some(value) = labels.get(name) {
            object::struct_mut(pod, "/metadata/labels").insert(name.to_owned(), value.clone());
        }
    }
}

fn default_tolerations(object: &mut Object) {
    let mut tolerations = list(object, "/spec/tolerations").to_vec();
    for key in [NOT_READY, UNREACHABLE] {
        let tolerates = |toleration: &Value| {
            let field = |name: &str| toleration[name].as_str().unwrap_or_default();
            let key_fits = field("key") == key || field("key").is_empty();
            key_fits && matches!(field("effect"), "NoExecute" | "")
        };
        if !tolerations.iter().any(tolerates) {
            tolerations.push(json!({
                "key": key,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": TOLERATION_SECONDS,
            }));
        }
    }
    set(object, "/spec/tolerations", tolerations);
}

/// TaintNodesByCondition: taints a new node as not ready.
fn taint_until_ready(object: &mut Object) {
    let mut taints = list(object, "/spec/taints").to_vec();
    let tainted = |taint: &Value| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule";
    if !taints.iter().any(tainted) {
        taints.push(json!({ "key": NOT_READY, "effect": "NoSchedule" }));
        set(object, "/spec/taints", taints);
    }
}

fn protect(object: &mut Object, finalizer: &str) {
    let mut finalizers = list(object, "/metadata/finalizers").to_vec();
    if !finalizers.iter().any(|found| found == finalizer) {
        finalizers.push(finalizer.into());
        set(object, "/metadata/finalizers", finalizers);
    }
}

/// DefaultStorageClass: the newest of the default classes, by name if they are equally old.
fn default_class(store: &Store, object: &mut Object) {
    let beta = at(object, "/metadata/annotations").get(ANN_BETA_STORAGE_CLASS);
    if object::has(object, "/spec/storageClassName") || beta.is_some() {
        return;
    }
    let table = store.table(Kind::StorageClass as usize);
    let defaults = table
        .range("", "")
        .map(|(_, class)| class.object())
        .filter(|class| object::is_default_class(class));
    let created = |class: &Object| text(class, "/metadata/creationTimestamp").to_owned();
    let newest = defaults.max_by(|a, b| {
        let by_age = created(a).cmp(&created(b));
        by_age.then_with(|| object::name(b).cmp(object::name(a)))
    });
    if let Some(class) = newest {
        let name = object::name(&class).to_owned();
        set(object, "/spec/storageClassName", name);
    }
}

/// PersistentVolumeClaimResize: only a bound claim whose class allows expansion may grow.
fn resize(store: &Store, resource: &Resource, object: &Object, old: &Object) -> Result<(), Status> {
    let size = |object: &Object| {
        let requested = at(object, "/spec/resources/requests/storage").as_str();
        requested.and_then(crate::quantity::Quantity::parse)
    };
    let (Some(new), Some(before)) = (size(object), size(old)) else {
        return Ok(());
    };
    if new.compare(before).is_le() {
        return Ok(());
    }
    let name = object::name(object);
    if text(old, "/status/phase") != "Bound" {
        let why = "Only bound persistent volume claims can be expanded";
        return Err(Status::forbidden(resource, name, why));
    }
    let class = store
        .table(Kind::StorageClass as usize)
        .get(text(object, "/spec/storageClassName"));
    let allows = |class: &Object| at(class, "/allowVolumeExpansion").as_bool() == Some(true);
    if class.is_some_and(|class| allows(&class.object())) {
        return Ok(());
    }
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
               support resize";
    Err(Status::forbidden(resource, name, why))
}
