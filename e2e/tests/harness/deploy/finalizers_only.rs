//! `components/finalizers-only` on the API server: what the attacher's account may write of a PersistentVolume.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::kubeconfig;
use csi_e2e::wait::{self, Progress};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::DEADLINE;
use super::shape::Shape;
use crate::Harness;
use csi_e2e::objects;

const VOLUME: &str = "apiVersion: v1
kind: PersistentVolume
metadata:
  name: finalizers-only
  finalizers: [example.com/backup]
  labels: {zone: a}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  csi: {driver: example.com, volumeHandle: v}
";

/// What RBAC does not grant the attacher, so that the policy alone refuses it. The name is the account's.
fn excessive_role(account: &str, namespace: &str) -> String {
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: excessive-{account}
rules:
  - apiGroups: ['']
    resources: [persistentvolumes, persistentvolumes/status]
    verbs: [create, delete, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: excessive-{account}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: excessive-{account}
subjects:
  - kind: ServiceAccount
    name: {account}
    namespace: {namespace}
"
    )
}

trials! { "deploy":
    policy_allows_the_attachers_finalizer_only,
}

async fn policy_allows_the_attachers_finalizer_only(harness: Arc<Harness>) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    // No other test has this combination, and so its names.
    let shape = Shape::base_with(&["finalizers-only", "publish-secrets"])?;
    let namespace = shape.namespace();
    cluster.create_namespace(&namespace).await?;
    let own = shape.build_for_its_namespace(&harness).await?;
    cluster.apply(&own).await?;
    cluster.apply(VOLUME).await?;
    let path = harness.run.subdir("finalizers-only")?;
    let account = format!("csi-attacher-{namespace}");
    let path = cluster
        .service_account_kubeconfig(&namespace, &account, &path)
        .await?;
    let volumes = Api::<PersistentVolume>::all(kubeconfig::client(&path).await?);
    let write = async |patch: &Value| {
        let patch = Patch::Strategic(patch);
        volumes
            .patch("finalizers-only", &PatchParams::default(), &patch)
            .await
    };

    // Until the API server has read binding and policy, the write is forbidden by RBAC, or succeeds.
    let mut writes = 0;
    wait::poll(DEADLINE, "the policy to take effect", || {
        writes += 1;
        let label = json!({"metadata": {"labels": {"zone": format!("{writes}")}}});
        let write = &write;
        async move {
            Ok(match write(&label).await {
                Err(kube::Error::Api(status)) if status.message.contains("ValidatingAdmissionPolicy") => {
                    Progress::Reached(())
                }
                other => Progress::Pending(format!("{other:?}")),
            })
        }
    })
    .await?;
    for (refused, reason) in refused_patches() {
        let error = write(&refused).await.err();
        let message = error.as_ref().map(ToString::to_string).unwrap_or_default();
        ensure!(
            message.contains("ValidatingAdmissionPolicy") && message.contains(reason),
            "{refused} ended with {error:?}"
        );
    }

    let excessive = excessive_role(&account, &namespace);
    cluster.apply(&excessive).await?;
    refuses_other_operations(&volumes).await?;
    cluster.delete(&excessive).await?;

    // The attacher's patches, as ADR 0003 has them.
    let finalizer = "external-attacher/example-com";
    let added = write(&json!({"metadata": {"finalizers": [finalizer]}}))
        .await
        .context("add the finalizer")?;
    let finalizers = added.metadata.finalizers.unwrap_or_default();
    ensure!(
        ["example.com/backup", finalizer]
            .iter()
            .all(|wanted| finalizers.iter().any(|found| found == wanted)),
        "the finalizers are {finalizers:?}"
    );
    let removed = write(&json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [finalizer]}}))
        .await
        .context("remove the finalizer")?;
    let left = removed.metadata.finalizers.unwrap_or_default();
    ensure!(
        left.iter().any(|found| found == "example.com/backup")
            && !left.iter().any(|found| found == finalizer),
        "the finalizers are {left:?}"
    );
    cluster.delete(&own).await?;
    let release = json!({"metadata": {"finalizers": null}});
    let admin = Api::<PersistentVolume>::all(cluster.client());
    objects::patch(&admin, "finalizers-only", &Patch::Merge(&release)).await?;
    cluster.delete(VOLUME).await
}

/// The policy refuses to create, to delete and to write a status. RBAC does, too, until the API server has read the role.
async fn refuses_other_operations(volumes: &Api<PersistentVolume>) -> Result<()> {
    let mut other: PersistentVolume = serde_saphyr::from_str(VOLUME).context("read the volume")?;
    other.metadata.name = Some("finalizers-only-other".to_owned());
    other.metadata.finalizers = None;
    let status = json!({"status": {"phase": "Failed"}});
    wait::poll(DEADLINE, "the policy to refuse other operations", || async {
        let (patch, post) = (PatchParams::default(), PostParams::default());
        let created = volumes.create(&post, &other).await;
        let deleted = volumes.delete("finalizers-only", &DeleteParams::default()).await;
        let written = volumes
            .patch_status("finalizers-only", &patch, &Patch::Merge(&status))
            .await;
        let mut pending = Vec::new();
        for (operation, error) in [
            ("create", created.err()),
            ("delete", deleted.err()),
            ("status", written.err()),
        ] {
            let error = error.with_context(|| format!("the API server accepted {operation}"))?;
            if !error.to_string().contains("neither creates nor deletes") {
                pending.push(format!("{operation}: {error}"));
            }
        }
        Ok(Progress::of(pending.is_empty(), || pending.join("; ")))
    })
    .await
}

/// Patches that the policy refuses, and a part of its message.
fn refused_patches() -> [(Value, &'static str); 7] {
    [
        (
            json!({"metadata": {"labels": {"zone": "b"}}}),
            "does not change labels",
        ),
        (
            json!({"metadata": {"annotations": {"a": "b"}}}),
            "does not change labels",
        ),
        (
            json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
            "change the spec",
        ),
        (
            json!({"spec": {"capacity": {"storage": "2Gi"}}}),
            "change the spec",
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/backup"]}}),
            "no finalizer of a PersistentVolume but external-attacher/*",
        ),
        (
            json!({"metadata": {"finalizers": ["example.com/mine"]}}),
            "no finalizer of a PersistentVolume but external-attacher/*",
        ),
        (
            json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "Namespace", "name": "default", "uid": "u"}
            ]}}),
            "does not change labels",
        ),
    ]
}
