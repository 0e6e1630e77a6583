//! Claims get volumes, and volumes go with them.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::driver::ZONE;
use crate::world::World;

impl World {
    async fn claim_phase(&self, name: &str) -> Option<String> {
        let claim = self
            .namespaced::<PersistentVolumeClaim>()
            .get_opt(name)
            .await
            .unwrap();
        claim.and_then(|claim| claim.status?.phase)
    }

    async fn volumes(&self) -> Vec<PersistentVolume> {
        self.all::<PersistentVolume>()
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
    }

    async fn delete_claim(&self, name: &str) {
        self.namespaced::<PersistentVolumeClaim>()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn provisioned_volume_goes_with_its_claim() {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOnce").await;
    world
        .until("claim bound", || async {
            world.claim_phase("data").await.as_deref() == Some("Bound")
        })
        .await;
    world
        .until_event(
            "data",
            "ProvisioningSucceeded",
            "Successfully provisioned volume pvc-",
        )
        .await;
    world
        .until_event(
            "data",
            "ExternalProvisioning",
            "Waiting for a volume to be created",
        )
        .await;
    let volume = world.volumes().await.remove(0);
    let finalizers = volume.metadata.finalizers.unwrap();
    assert!(finalizers.contains(&"external-provisioner.volume.kubernetes.io/finalizer".to_owned()));
    assert!(finalizers.contains(&"kubernetes.io/pv-protection".to_owned()));
    assert_eq!(world.driver.state().volumes.len(), 1);

    world.delete_claim("data").await;
    world
        .until("volume deleted", || async { world.volumes().await.is_empty() })
        .await;
    assert!(world.driver.state().volumes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn retained_volume_is_released() {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOnce").await;
    world
        .until("claim bound", || async {
            world.claim_phase("data").await.as_deref() == Some("Bound")
        })
        .await;
    let volume = world.volumes().await.remove(0).metadata.name.unwrap();
    let patch = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    world
        .all::<PersistentVolume>()
        .patch(&volume, &PatchParams::default(), &patch)
        .await
        .unwrap();
    world.delete_claim("data").await;
    world
        .until("volume released", || async {
            let volume = world.all::<PersistentVolume>().get(&volume).await.unwrap();
            volume.status.unwrap().phase.as_deref() == Some("Released")
        })
        .await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(world.driver.state().volumes.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn claim_in_use_is_deleted_only_after_its_pod() {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOnce").await;
    world.pod("web", Some("a"), &["data"]).await;
    world.until_running("web").await;
    world.delete_claim("data").await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert_eq!(world.claim_phase("data").await.as_deref(), Some("Bound"));
    world.delete_pod("web").await;
    world
        .until("volume deleted", || async {
            world.driver.state().volumes.is_empty()
        })
        .await;
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn late_claim_is_provisioned_where_its_pod_goes() {
    let world = World::start_with(|state| state.topology = true).await;
    world.claim("data", "late", "ReadWriteOnce").await;
    world
        .until_event("data", "WaitForFirstConsumer", "waiting for first consumer")
        .await;
    world.pod("web", Some("b"), &["data"]).await;
    world.until_running("web").await;
    let volume = world.volumes().await.remove(0);
    let affinity = serde_json::to_value(volume.spec.unwrap().node_affinity).unwrap();
    let requirement = &affinity["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(
        (&requirement["key"], &requirement["values"][0]),
        (&json!(ZONE), &json!("z2"))
    );

    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.pod("elsewhere", Some("a"), &["data"]).await;
    world
        .until_event(
            "elsewhere",
            "FailedScheduling",
            "node(s) didn't match PersistentVolume's node affinity",
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn ephemeral_volume_lives_as_long_as_its_pod() {
    let world = World::start().await;
    let template = json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "late",
        "resources": {"requests": {"storage": "1Gi"}}}});
    let volumes = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]);
    world.pod_with_volumes("web", None, volumes).await;
    world.until_running("web").await;
    assert_eq!(world.claim_phase("web-scratch").await.as_deref(), Some("Bound"));
    world.delete_pod("web").await;
    world
        .until("volume deleted", || async {
            world.driver.state().volumes.is_empty()
        })
        .await;
    assert_eq!(world.claim_phase("web-scratch").await, None);
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn volume_made_by_hand_is_bound_to_the_claim_that_names_it() {
    let world = World::start().await;
    world
        .create::<PersistentVolume>(json!({
            "metadata": {"name": "by-hand"},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": {"driver": crate::driver::DRIVER, "volumeHandle": "vol-by-hand"}},
        }))
        .await;
    world.claim("data", "", "ReadWriteOnce").await;
    world.pod("web", Some("a"), &["data"]).await;
    world.until_running("web").await;
    assert_eq!(world.driver.state().published["vol-by-hand"].len(), 1);
}
