//! CRDs of the kinds that `deploy/` uses, as far as they are used, so that the API server rejects a misspelt
//! field as with the original CRDs.

use anyhow::{Context, Result};
use csi_e2e::cluster::{Cluster, manifest};
use csi_e2e::wait::{self, Progress};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};

use super::{DEADLINE, PAUSE};

/// CRDs of the Prometheus operator, of snapshots, and of snapshot metadata.
const KINDS: [&str; 3] = [
    include_str!("monitoring_kinds.yaml"),
    include_str!("snapshot_kinds.yaml"),
    include_str!("snapshot_metadata_kinds.yaml"),
];
/// One object of each kind, to check that it is served.
const PROBES: &str = "apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: probe, namespace: default}
spec: {selector: {}}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: probe, namespace: default}
spec: {}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: probe}
driver: probe
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: probe, namespace: default}
spec: {source: {}}
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: probe}
driver: probe
deletionPolicy: Delete
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: probe, namespace: default}
spec: {source: {}}
---
apiVersion: cbt.storage.k8s.io/v1beta1
kind: SnapshotMetadataService
metadata: {name: probe}
spec: {address: probe, audience: probe, caCert: cHJvYmU=}
";

/// Creates the CRDs.
pub(super) async fn install(cluster: &Cluster) -> Result<()> {
    let definitions = Api::<CustomResourceDefinition>::all(cluster.client());
    for kinds in KINDS {
        cluster.apply(kinds).await?;
        for definition in manifest::parse(kinds)? {
            let name = definition.name_any();
            wait::for_object(&definitions, &name, DEADLINE, "a kind to be served", established).await?;
        }
    }
    // Discovery is updated asynchronously.
    let served = async {
        while cluster.check(PROBES).await.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let served = tokio::time::timeout(DEADLINE, served).await;
    served.context("the kinds that others bring are not served")
}

fn established(definition: Option<&CustomResourceDefinition>) -> Progress<()> {
    let status = definition.and_then(|definition| definition.status.as_ref());
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    let held = conditions.any(|condition| condition.type_ == "Established" && condition.status == "True");
    Progress::of(held, || "not established".to_owned())
}
