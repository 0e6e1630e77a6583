//! CRDs of the kinds in `deploy/`, with the fields that it uses, so that the API server rejects a misspelt field as with the
//! original CRDs.

use anyhow::Result;
use csi_e2e::cluster::Cluster;
use csi_e2e::wait::{self, Progress};

use super::DEADLINE;

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
    for kinds in KINDS {
        cluster.apply_definitions(kinds).await?;
    }
    // Discovery is updated asynchronously.
    wait::poll(DEADLINE, "the kinds of other projects to be served", || async {
        let checked = cluster.check(PROBES).await;
        Ok(Progress::of(checked.is_ok(), || format!("{:?}", checked.err())))
    })
    .await
}
