//! The manifests of `deploy/`, read without kustomize.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde::Deserialize;

use crate::toolchain::workspace_root;

/// Name of the attacher's ServiceAccount in `deploy/`, which is the subject of its role bindings.
const ATTACHER: &str = "csi-attacher";

/// A kustomization that only lists files. Any other field is an error, as it could change objects without the harness's
/// knowledge.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    resources: Vec<String>,
}

/// The attacher and its permissions: everything in `deploy/base`.
pub fn base() -> Result<Vec<DynamicObject>> {
    kustomization(&workspace_root().join("deploy/base"))
}

/// The permissions to read publish Secrets.
pub fn publish_secrets() -> Result<Vec<DynamicObject>> {
    kustomization(&workspace_root().join("deploy/components/publish-secrets"))
}

/// The permissions of the mock driver's other sidecars: the attacher's ServiceAccount and its roles in the overlays.
pub fn sidecars() -> Result<Vec<DynamicObject>> {
    let mut objects = base()?;
    objects.retain(|object| is_kind(object, "ServiceAccount"));
    for overlay in [
        "mock-driver-nodes",
        "mock-driver-snapshots",
        "mock-driver-group-snapshots",
    ] {
        let file = workspace_root().join(format!("deploy/overlays/{overlay}/rbac.yaml"));
        objects.extend(parse(&read(&file)?).with_context(|| format!("read {}", file.display()))?);
    }
    Ok(objects)
}

/// The objects of a YAML stream.
pub fn parse(yaml: &str) -> Result<Vec<DynamicObject>> {
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(yaml).context("parse YAML")?;
    let objects = documents.into_iter().filter(|document| !document.is_null());
    objects
        .map(|object| serde_json::from_value(object).context("a document must be a Kubernetes object"))
        .collect()
}

/// Whether the object creates pods or is about them: in the harness the programs are processes.
pub(super) fn is_workload(object: &DynamicObject) -> bool {
    object
        .types
        .as_ref()
        .is_some_and(|types| types.api_version == "apps/v1")
        || is_kind(object, "NetworkPolicy")
        || is_kind(object, "ResourceQuota")
}

/// Whether the object is of this kind.
pub(super) fn is_kind(object: &DynamicObject, kind: &str) -> bool {
    object.types.as_ref().is_some_and(|types| types.kind == kind)
}

/// Objects that grant `account` in `namespace` all permissions of the attacher's account in `objects`: the
/// ServiceAccount, Roles and bindings. ClusterRoleBindings are renamed by [`cluster_binding`], so that several accounts
/// do not conflict.
pub(super) fn for_account(
    objects: &[DynamicObject],
    namespace: &str,
    account: &str,
) -> Result<Vec<DynamicObject>> {
    let mut derived = Vec::new();
    for object in objects {
        let kind = object.types.as_ref().map_or("", |types| types.kind.as_str());
        let mut object = object.clone();
        object.metadata.namespace = Some(namespace.to_owned());
        match kind {
            "ServiceAccount" if object.name_any() == ATTACHER => {
                object.metadata.name = Some(account.to_owned())
            }
            "Role" => {}
            "RoleBinding" => {
                object.metadata.name = Some(format!("{}-{account}", object.name_any()));
                bind_to(&mut object, namespace, account)?;
            }
            "ClusterRoleBinding" => {
                object.metadata.name = Some(cluster_binding(&object.name_any(), namespace, account));
                object.metadata.namespace = None;
                bind_to(&mut object, namespace, account)?;
            }
            _ => continue,
        }
        derived.push(object);
    }
    ensure!(
        !derived.is_empty(),
        "deploy/ must hold a ServiceAccount or bindings for {ATTACHER}"
    );
    Ok(derived)
}

/// Name of an account's copy of a ClusterRoleBinding.
fn cluster_binding(original: &str, namespace: &str, account: &str) -> String {
    format!("{original}-{namespace}-{account}")
}

/// Replaces the attacher's account among the subjects of a binding.
fn bind_to(binding: &mut DynamicObject, namespace: &str, account: &str) -> Result<()> {
    let name = binding.name_any();
    let subjects = binding
        .data
        .get_mut("subjects")
        .and_then(serde_json::Value::as_array_mut);
    let subjects = subjects.with_context(|| format!("binding {name} must have subjects"))?;
    for subject in subjects {
        ensure!(
            subject["kind"] == "ServiceAccount" && subject["name"] == ATTACHER,
            "binding {name} is for {subject}, where only the service account {ATTACHER} is known"
        );
        subject["name"] = account.into();
        subject["namespace"] = namespace.into();
    }
    Ok(())
}

fn kustomization(dir: &Path) -> Result<Vec<DynamicObject>> {
    let file = dir.join("kustomization.yaml");
    let kustomization: Kustomization = serde_saphyr::from_str(&read(&file)?)
        .with_context(|| format!("{} may only list resources", file.display()))?;
    let mut objects = Vec::new();
    for resource in kustomization.resources {
        let file = dir.join(&resource);
        if !file.is_file() {
            bail!("{} is listed in {} but is no file", resource, dir.display());
        }
        objects.extend(parse(&read(&file)?).with_context(|| format!("read {}", file.display()))?);
    }
    Ok(objects)
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds_and_names(objects: &[DynamicObject]) -> Vec<String> {
        let kind = |object: &DynamicObject| object.types.clone().unwrap_or_default().kind;
        objects
            .iter()
            .map(|object| format!("{} {}", kind(object), object.name_any()))
            .collect()
    }

    #[test]
    fn an_account_gets_its_own_bindings_and_no_cluster_role() {
        let mut objects = base().unwrap();
        objects.extend(publish_secrets().unwrap());
        let derived = for_account(&objects, "scenario", "attacher-1").unwrap();
        assert_eq!(
            kinds_and_names(&derived),
            [
                "ServiceAccount attacher-1",
                "ClusterRoleBinding csi-attacher-scenario-attacher-1",
                "Role csi-attacher-lease",
                "RoleBinding csi-attacher-lease-attacher-1",
                "RoleBinding csi-attacher-publish-secrets-attacher-1",
            ]
        );
        for binding in derived
            .iter()
            .filter(|object| object.data.get("subjects").is_some())
        {
            assert_eq!(
                binding.data["subjects"],
                serde_json::json!([{"kind": "ServiceAccount", "name": "attacher-1", "namespace": "scenario"}])
            );
        }
    }

    #[test]
    fn a_kustomization_that_does_more_than_list_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let text = "apiVersion: v1\nkind: Kustomization\nresources: []\nnamePrefix: x-\n";
        std::fs::write(dir.path().join("kustomization.yaml"), text).unwrap();
        let error = format!("{:#}", kustomization(dir.path()).unwrap_err());
        assert!(error.contains("namePrefix"), "{error}");
    }

    #[test]
    fn empty_documents_are_no_objects() {
        let objects =
            parse("---\n# nothing\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n")
                .unwrap();
        assert_eq!(kinds_and_names(&objects), ["Namespace a"]);
    }
}
