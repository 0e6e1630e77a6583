//! The informers that the controllers of one process share.

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use kube::{Api, Client};

use crate::informer::Informer;

/// The informers of kube-controller-manager and kube-scheduler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Informers {
    pub pods: Informer<Pod>,
    pub nodes: Informer<Node>,
    pub claims: Informer<PersistentVolumeClaim>,
    pub volumes: Informer<PersistentVolume>,
    pub attachments: Informer<VolumeAttachment>,
    pub csi_nodes: Informer<CSINode>,
    pub csi_drivers: Informer<CSIDriver>,
    pub classes: Informer<StorageClass>,
    pub capacities: Informer<CSIStorageCapacity>,
    pub namespaces: Informer<Namespace>,
}

/// The informers of external-provisioner.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProvisionerInformers {
    pub nodes: Informer<Node>,
    pub claims: Informer<PersistentVolumeClaim>,
    pub volumes: Informer<PersistentVolume>,
    pub attachments: Informer<VolumeAttachment>,
    pub csi_nodes: Informer<CSINode>,
    pub classes: Informer<StorageClass>,
}

// === impl Informers ===

impl Informers {
    /// Runs all informers until the future is dropped.
    pub(crate) async fn run(self, client: Client) {
        let running = [
            self.pods
                .run_with_transform(Api::all(client.clone()), strip_pod)
                .boxed(),
            self.nodes.run(Api::all(client.clone())).boxed(),
            self.claims.run(Api::all(client.clone())).boxed(),
            self.volumes.run(Api::all(client.clone())).boxed(),
            self.attachments.run(Api::all(client.clone())).boxed(),
            self.csi_nodes.run(Api::all(client.clone())).boxed(),
            self.csi_drivers.run(Api::all(client.clone())).boxed(),
            self.classes.run(Api::all(client.clone())).boxed(),
            self.capacities.run(Api::all(client.clone())).boxed(),
            self.namespaces.run(Api::all(client)).boxed(),
        ];
        run_all(running).await;
    }

    /// Waits until every first list is complete.
    pub(crate) async fn wait_for_sync(&self) {
        self.pods.wait_for_sync().await;
        self.nodes.wait_for_sync().await;
        self.claims.wait_for_sync().await;
        self.volumes.wait_for_sync().await;
        self.attachments.wait_for_sync().await;
        self.csi_nodes.wait_for_sync().await;
        self.csi_drivers.wait_for_sync().await;
        self.classes.wait_for_sync().await;
        self.capacities.wait_for_sync().await;
        self.namespaces.wait_for_sync().await;
    }
}

// === impl ProvisionerInformers ===

impl ProvisionerInformers {
    /// Runs all informers until the future is dropped.
    pub(crate) async fn run(self, client: Client) {
        let running = [
            self.nodes.run(Api::all(client.clone())).boxed(),
            self.claims.run(Api::all(client.clone())).boxed(),
            self.volumes.run(Api::all(client.clone())).boxed(),
            self.attachments.run(Api::all(client.clone())).boxed(),
            self.csi_nodes.run(Api::all(client.clone())).boxed(),
            self.classes.run(Api::all(client)).boxed(),
        ];
        run_all(running).await;
    }

    /// Waits until every first list is complete.
    pub(crate) async fn wait_for_sync(&self) {
        self.nodes.wait_for_sync().await;
        self.claims.wait_for_sync().await;
        self.volumes.wait_for_sync().await;
        self.attachments.wait_for_sync().await;
        self.csi_nodes.wait_for_sync().await;
        self.classes.wait_for_sync().await;
    }
}

// === functions ===

/// Removes the containers and projected volumes, which no controller reads: they take more than half of a pod's memory.
fn strip_pod(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    spec.containers = Vec::new();
    if let Some(volumes) = &mut spec.volumes {
        volumes.retain(|volume| volume.projected.is_none());
        volumes.shrink_to_fit();
    }
}

/// Runs futures until all have ended. Polls only woken futures, while `join_all` of up to 30 polls all of them.
pub(crate) async fn run_all(futures: impl IntoIterator<Item = BoxFuture<'static, ()>>) {
    let mut running: FuturesUnordered<_> = futures.into_iter().collect();
    while running.next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strip_pod_keeps_persistent_volume_claims() {
        let pod = |containers, volumes| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "p"},
                "spec": {"nodeName": "a", "containers": containers, "volumes": volumes},
            }))
            .unwrap()
        };
        let data = json!({"name": "data", "persistentVolumeClaim": {"claimName": "c"}});
        let token = json!({"name": "kube-api-access-x", "projected": {"sources": []}});
        let mut whole = pod(json!([{"name": "app"}]), json!([data, token]));
        strip_pod(&mut whole);
        assert_eq!(whole, pod(json!([]), json!([data])));
    }
}
