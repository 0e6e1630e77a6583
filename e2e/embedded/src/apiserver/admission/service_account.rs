//! The admission plugin ServiceAccount. It does not enforce mountable Secrets.

use std::sync::Arc;

use fastrand::Rng;
use serde_json::{Value, json};

use super::super::names;
use super::super::object::{self, ANN_MIRROR_POD, CONTAINER_LISTS, Object, at, list, set, text};
use super::super::resource::{Kind, Resource};
use super::super::status::Status;
use super::super::storage::Store;
use super::super::stored::key;
use super::shown_name;

const TOKEN_MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Names the namespace's default account and mounts a token of the account.
pub(super) fn admit(
    store: &Store,
    rng: &mut Rng,
    resource: &Resource,
    object: &mut Object,
    namespace: &str,
) -> Result<(), Status> {
    if at(object, "/metadata/annotations").get(ANN_MIRROR_POD).is_some() {
        let why = mirror_pod(object::struct_at(object, "spec"));
        return why.map_or(Ok(()), |why| {
            Err(Status::forbidden(resource, shown_name(object), why))
        });
    }
    if text(object, "/spec/serviceAccountName").is_empty() {
        set(object, "/spec/serviceAccountName", "default");
    }
    let account = text(object, "/spec/serviceAccountName").to_owned();
    set(object, "/spec/serviceAccount", account);
    let found = account_of(store, resource, object, namespace)?;
    let wanted = |object: &Object, pointer: &str| at(object, pointer).as_bool();
    let mounts = wanted(object, "/spec/automountServiceAccountToken")
        .or_else(|| wanted(&found, "/automountServiceAccountToken"))
        .unwrap_or(true);
    if mounts {
        mount_token(rng, object);
    }
    if list(object, "/spec/imagePullSecrets").is_empty() {
        let secrets = at(&found, "/imagePullSecrets").clone();
        set(object, "/spec/imagePullSecrets", secrets);
    }
    Ok(())
}

/// The ServiceAccount of a pod, which must exist.
pub(super) fn account_of(
    store: &Store,
    resource: &Resource,
    pod: &Object,
    namespace: &str,
) -> Result<Arc<Object>, Status> {
    let account = text(pod, "/spec/serviceAccountName");
    let table = store.table(Kind::ServiceAccount as usize);
    let found = table.get(&key(namespace, account)).map(|found| found.object());
    found.ok_or_else(|| {
        let why = format!(
            "error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"
        );
        Status::forbidden(resource, shown_name(pod), &why)
    })
}

fn mount_token(rng: &mut Rng, object: &mut Object) {
    let name = names::generate("kube-api-access-", rng);
    let mut mounted = false;
    for field in ["initContainers", "containers"] {
        let Some(Value::Array(containers)) = object::struct_mut(object, "/spec").get_mut(field) else {
            continue;
        };
        for container in containers.iter_mut().filter_map(Value::as_object_mut) {
            let has_one = list(container, "/volumeMounts")
                .iter()
                .any(|mount| mount["mountPath"] == TOKEN_MOUNT);
            if has_one {
                continue;
            }
            mounted = true;
            let mount = json!({ "name": name, "readOnly": true, "mountPath": TOKEN_MOUNT });
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            if let Value::Array(mounts) = mounts {
                mounts.push(mount);
            }
        }
    }
    if !mounted {
        return;
    }
    let namespace =
        json!({ "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } });
    let sources = json!([
        { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
        { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
        { "downwardAPI": { "items": [namespace] } },
    ]);
    let volume = json!({ "name": name, "projected": { "sources": sources, "defaultMode": 420 } });
    let volumes = object::struct_mut(object, "/spec")
        .entry("volumes")
        .or_insert_with(|| json!([]));
    if let Value::Array(volumes) = volumes {
        volumes.push(volume);
    }
}

/// Why a mirror pod is forbidden: it must not refer to a service account or to Secrets.
fn mirror_pod(spec: &Object) -> Option<&'static str> {
    let projections = list(spec, "/volumes").iter();
    let mut projections = projections
        .filter_map(|volume| volume["projected"]["sources"].as_array())
        .flatten();
    if !text(spec, "/serviceAccountName").is_empty() {
        Some("a mirror pod may not reference service accounts")
    } else if has_secrets(spec) {
        Some("a mirror pod may not reference secrets")
    } else {
        let why = "a mirror pod may not use ServiceAccountToken volume projections";
        projections
            .any(|source| !source["serviceAccountToken"].is_null())
            .then_some(why)
    }
}

/// Whether a pod refers to a Secret (`VisitPodSecretNames` of Kubernetes).
fn has_secrets(spec: &Object) -> bool {
    const IN_VOLUMES: [&str; 11] = [
        "azureFile/secretName",
        "cephfs/secretRef/name",
        "cinder/secretRef/name",
        "csi/nodePublishSecretRef/name",
        "flexVolume/secretRef/name",
        "iscsi/secretRef/name",
        "rbd/secretRef/name",
        "scaleIO/secretRef/name",
        "secret/secretName",
        "storageos/secretRef/name",
        "projected/sources/*/secret/name",
    ];
    const IN_CONTAINERS: [&str; 2] = ["envFrom/*/secretRef/name", "env/*/valueFrom/secretKeyRef/name"];
    let in_containers = CONTAINER_LISTS
        .iter()
        .flat_map(|list| IN_CONTAINERS.map(|path| format!("{list}/*/{path}")));
    let spec = Value::Object(spec.clone());
    let mut paths = IN_VOLUMES
        .iter()
        .map(|path| format!("volumes/*/{path}"))
        .chain(in_containers)
        .chain(["imagePullSecrets/*/name".to_owned()]);
    paths.any(|path| has_text(&spec, &path))
}

/// Whether there is a text at a path, in which `*` stands for the items of a list.
fn has_text(value: &Value, path: &str) -> bool {
    match path.split_once('/') {
        Some(("*", rest)) => value
            .as_array()
            .into_iter()
            .flatten()
            .any(|item| has_text(item, rest)),
        Some((field, rest)) => has_text(&value[field], rest),
        None => value[path].as_str().is_some_and(|text| !text.is_empty()),
    }
}
