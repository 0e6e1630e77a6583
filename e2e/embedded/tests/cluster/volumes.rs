//! Provisioning, binding and deletion of volumes.

use std::time::Duration;

use embedded_cluster::apiserver::{Fault, Rule};
use embedded_cluster::cluster::CONTROLLERS;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Status;

use crate::driver::ZONE;
use crate::world::World;

impl World {
    async fn create_secret(&self, name: &str) {
        self.create::<Secret>(json!({"metadata": {"name": name}})).await;
    }

    pub(crate) async fn delete_claim(&self, name: &str) {
        self.delete::<PersistentVolumeClaim>(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn provisioned_volume_is_deleted_with_its_claim() {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOnce").await;
    world.until_bound("data").await;
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
    let volume = world.list::<PersistentVolume>().await.remove(0);
    let finalizers = volume.metadata.finalizers.unwrap();
    assert!(finalizers.contains(&"external-provisioner.volume.kubernetes.io/finalizer".to_owned()));
    assert!(finalizers.contains(&"kubernetes.io/pv-protection".to_owned()));
    assert_eq!(world.driver.state().volumes.len(), 1);

    world.delete_claim("data").await;
    world.until_deleted().await;
}

#[tokio::test(start_paused = true)]
async fn volume_of_a_claim_that_was_recreated_before_it_was_bound_is_deleted() {
    let world = World::start().await;
    world.driver.state().create_error = Some(tonic::Status::deadline_exceeded("slow"));
    world.claim("data", "now", "ReadWriteOnce").await;
    world
        .until_event("data", "ProvisioningFailed", "failed to provision volume")
        .await;
    world.delete_claim("data").await;
    world
        .until("claim deleted", || async {
            let claims = world.api::<PersistentVolumeClaim>();
            claims.get_opt("data").await.unwrap().is_none()
        })
        .await;
    world.claim("data", "now", "ReadWriteOnce").await;
    sleep(Duration::from_secs(10)).await;
    world.driver.state().create_error = None;
    world.until_bound("data").await;
    world
        .until("one volume left", || async {
            world.driver.state().volumes.len() == 1 && world.list::<PersistentVolume>().await.len() == 1
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn secret_of_a_class_is_needed_to_create_a_volume_but_not_to_delete_it() {
    let world = World::start().await;
    world
        .create::<StorageClass>(json!({
            "metadata": {"name": "secret"}, "provisioner": crate::driver::DRIVER, "parameters": {
                "csi.storage.k8s.io/provisioner-secret-name": "s",
                "csi.storage.k8s.io/provisioner-secret-namespace": "default",
            },
        }))
        .await;
    world.claim("data", "secret", "ReadWriteOnce").await;
    let text = "failed to provision volume with StorageClass \"secret\": error getting secret s in namespace default: \
                secrets \"s\" not found";
    world.until_event("data", "ProvisioningFailed", text).await;
    world.create_secret("s").await;
    world.until_bound("data").await;
    world.delete::<Secret>("s").await;
    world.delete_claim("data").await;
    world.until_deleted().await;
}

#[tokio::test(start_paused = true)]
async fn retained_volume_is_released() {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOnce").await;
    world.until_bound("data").await;
    let volume = world
        .list::<PersistentVolume>()
        .await
        .remove(0)
        .metadata
        .name
        .unwrap();
    let patch = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    world.patch::<PersistentVolume>(&volume, patch).await;
    world.delete_claim("data").await;
    world
        .until("volume released", || async {
            let volume = world.api::<PersistentVolume>().get(&volume).await.unwrap();
            volume.status.unwrap().phase.as_deref() == Some("Released")
        })
        .await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.driver.state().volumes.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn claim_in_use_is_deleted_only_after_its_pod() {
    let world = World::with_pod_on_a().await;
    world.delete_claim("data").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.claim_phase("data").await.as_deref(), Some("Bound"));
    world.delete_pod("web").await;
    world.until_deleted().await;
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn wait_for_first_consumer_claim_is_provisioned_for_the_node_of_its_pod() {
    let world = World::start_with(|state| state.topology = true).await;
    world.claim("data", "late", "ReadWriteOnce").await;
    world
        .until_event("data", "WaitForFirstConsumer", "waiting for first consumer")
        .await;
    world.pod("web", Some("b"), &["data"]).await;
    world.until_running("web").await;
    let volume = world.list::<PersistentVolume>().await.remove(0);
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
async fn ephemeral_volume_is_deleted_with_its_pod() {
    let world = World::start().await;
    let template = json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "late",
        "resources": {"requests": {"storage": "1Gi"}}}});
    let volumes = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]);
    world.pod_with_volumes("web", None, volumes).await;
    world.until_running("web").await;
    assert_eq!(world.claim_phase("web-scratch").await.as_deref(), Some("Bound"));
    world.delete_pod("web").await;
    world.until_deleted().await;
    assert_eq!(world.claim_phase("web-scratch").await, None);
    world.assert_no_violations();
}

impl World {
    async fn create_static_volume(&self) {
        self.create_static_volume_with(json!({})).await;
    }

    /// Creates a volume with these fields of its CSI source.
    async fn create_static_volume_with(&self, fields: Value) {
        let mut csi = json!({"driver": crate::driver::DRIVER, "volumeHandle": "vol-by-hand"});
        csi.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        self.create::<PersistentVolume>(json!({
            "metadata": {"name": "by-hand"},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain", "csi": csi},
        }))
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn static_volume_is_bound_to_the_claim_that_names_it() {
    let world = World::start().await;
    world.create_static_volume().await;
    world.claim("data", "", "ReadWriteOnce").await;
    world.pod("web", Some("a"), &["data"]).await;
    world.until_running("web").await;
    assert_eq!(world.driver.state().published["vol-by-hand"].len(), 1);
}

#[tokio::test(start_paused = true)]
async fn claim_is_not_bound_to_an_unsuitable_volume_that_it_names() {
    let world = World::start().await;
    world.create_static_volume().await;
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "by-hand",
            "resources": {"requests": {"storage": "2Gi"}}},
    });
    world.create::<PersistentVolumeClaim>(claim).await;
    let text = "Cannot bind to requested volume \"by-hand\": requested PV is too small";
    world.until_event("data", "VolumeMismatch", text).await;
    assert_eq!(world.claim_phase("data").await.as_deref(), Some("Pending"));
}

#[tokio::test(start_paused = true)]
async fn volume_is_not_mounted_on_a_node_outside_its_affinity() {
    let world = World::start().await;
    world.create_static_volume().await;
    let expressions = json!([{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]);
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}});
    let patch = json!({"spec": {"nodeAffinity": affinity}});
    world.patch::<PersistentVolume>("by-hand", patch).await;
    world.claim("data", "", "ReadWriteOnce").await;
    world
        .pod_with("web", "data", json!({}), json!({"nodeName": "b"}))
        .await;
    let text = "MountVolume.NodeAffinity check failed for volume \"by-hand\" : no matching NodeSelectorTerms";
    world.until_event("web", "FailedMount", text).await;
}

#[tokio::test(start_paused = true)]
async fn missing_secret_of_a_mount_is_reported() {
    let cases = [
        ("Stage", "MountVolume.MountDevice"),
        ("Publish", "MountVolume.SetUp"),
    ];
    for (call, step) in cases {
        let world = World::start().await;
        let field = format!("node{call}SecretRef");
        world
            .create_static_volume_with(json!({field: {"name": "s", "namespace": "default"}}))
            .await;
        world.claim("data", "", "ReadWriteOnce").await;
        world.pod("web", Some("a"), &["data"]).await;
        let text = format!(
            "{step} failed for volume \"by-hand\" : fetching Node{call}SecretRef default/s failed: kubernetes.io/csi: \
             failed to find the secret s in the namespace default with error: secrets \"s\" not found"
        );
        world.until_event("web", "FailedMount", &text).await;
    }
}

#[tokio::test(start_paused = true)]
async fn volume_that_may_be_mounted_is_unmounted_although_its_secret_is_gone() {
    let world = World::start().await;
    world.create_secret("s").await;
    let secret = json!({"nodePublishSecretRef": {"name": "s", "namespace": "default"}});
    world.create_static_volume_with(secret).await;
    world.driver.state().node_publish_error = Some(Status::deadline_exceeded("no response"));
    world.claim("data", "", "ReadWriteOnce").await;
    world.pod("web", Some("a"), &["data"]).await;
    world.until_event("web", "FailedMount", "no response").await;
    world.delete::<Secret>("s").await;
    let text = "fetching NodePublishSecretRef";
    world.until_event("web", "FailedMount", text).await;
    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.until_attached(&[]).await;
    assert!(world.driver.state().mounted.is_empty());
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn failed_read_of_capabilities_is_an_error_of_the_step_that_needs_them() {
    let world = World::start().await;
    let set_error = |error| world.driver.state().capabilities_error = error;
    let error = "rpc error: code = Internal desc = no capabilities";
    world.create_static_volume().await;
    world.claim("data", "", "ReadWriteOnce").await;
    set_error(Some(Status::internal("no capabilities")));
    world.pod("one", Some("a"), &["data"]).await;
    let text = format!("MountVolume.MountDevice failed for volume \"by-hand\" : {error}");
    world.until_event("one", "FailedMount", &text).await;
    set_error(None);
    world.until_running("one").await;

    // The volume is staged.
    set_error(Some(Status::internal("no capabilities")));
    world.pod("two", Some("a"), &["data"]).await;
    let text = format!(
        "MountVolume.SetUp failed for volume \"by-hand\" : kubernetes.io/csi: mounter.SetUpAt failed to check for \
         STAGE_UNSTAGE_VOLUME capability: {error}"
    );
    world.until_event("two", "FailedMount", &text).await;
}

impl World {
    /// Delays the controllers' watch events of a resource by a minute.
    async fn hide_changes(&self, resource: &str) {
        let rule = Rule::always(Fault::StaleWatch(Duration::from_secs(60)))
            .verbs(&["watch"])
            .resource(resource)
            .user_agent(CONTROLLERS);
        self.cluster.api_server().set_faults(vec![rule]);
        self.cluster.api_server().disconnect_watches();
        sleep(Duration::from_secs(5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn claim_of_a_pod_that_the_informer_lacks_is_protected() {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOnce").await;
    world.until_bound("data").await;
    world.hide_changes("pods").await;
    world
        .pod_with("web", "data", json!({}), json!({"nodeName": "a"}))
        .await;
    world.delete_claim("data").await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(world.claim_phase("data").await.as_deref(), Some("Bound"));
}

#[tokio::test(start_paused = true)]
async fn volume_of_a_claim_that_the_informer_lacks_is_not_released() {
    let world = World::start().await;
    world.hide_changes("persistentvolumeclaims").await;
    world.claim("data", "", "ReadWriteOnce").await;
    let claims = world.api::<PersistentVolumeClaim>();
    let uid = claims.get("data").await.unwrap().metadata.uid;
    world
        .create::<PersistentVolume>(json!({
            "metadata": {"name": "by-hand"},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "",
                "claimRef": {"namespace": "default", "name": "data", "uid": uid},
                "csi": {"driver": crate::driver::DRIVER, "volumeHandle": "vol-by-hand"}},
        }))
        .await;
    sleep(Duration::from_secs(20)).await;
    let volume = world.api::<PersistentVolume>().get("by-hand").await.unwrap();
    assert_ne!(volume.status.unwrap().phase.as_deref(), Some("Released"));
    world.until_bound("data").await;
}

#[tokio::test(start_paused = true)]
async fn wait_for_first_consumer_claim_reports_the_pods_that_it_waits_for() {
    let world = World::start().await;
    world.claim("data", "late", "ReadWriteOnce").await;
    let gates = json!({"schedulingGates": [{"name": "example.com/quota"}]});
    world.pod_with("one", "data", json!({}), gates.clone()).await;
    world
        .until_event(
            "data",
            "WaitForPodScheduled",
            "waiting for pod one to be scheduled",
        )
        .await;
    world.pod_with("two", "data", json!({}), gates).await;
    world
        .until_event(
            "data",
            "WaitForPodScheduled",
            "waiting for pods one,two to be scheduled",
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn claim_without_class_gets_a_later_default_class() {
    let world = World::start().await;
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    world.create::<PersistentVolumeClaim>(claim).await;
    world
        .until_event("data", "FailedBinding", "no storage class is set")
        .await;
    let annotations = json!({"storageclass.kubernetes.io/is-default-class": "true"});
    let patch = json!({"metadata": {"annotations": annotations}});
    world.patch::<StorageClass>("now", patch).await;
    world.until_bound("data").await;
    let claims = world.api::<PersistentVolumeClaim>();
    let class = claims.get("data").await.unwrap().spec.unwrap().storage_class_name;
    assert_eq!(class.as_deref(), Some("now"));
}
