//! kubelet: deadlines of its calls, block volumes, unused volumes, CSINode.

use std::collections::BTreeMap;
use std::time::Duration;

use embedded_cluster::cluster::NodeOptions;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Status;

use crate::driver::{DRIVER, ZONE};
use crate::world::World;

impl World {
    /// Creates a block volume, and the claim `data` for it.
    async fn create_block_volume(&self) {
        self.create::<PersistentVolume>(json!({
            "metadata": {"name": "raw"},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "",
                "volumeMode": "Block", "claimRef": {"namespace": "default", "name": "data"},
                "csi": {"driver": DRIVER, "volumeHandle": "vol-raw"}},
        }))
        .await;
        let claim = json!({
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeMode": "Block",
                "volumeName": "raw", "resources": {"requests": {"storage": "1Gi"}}},
        });
        self.create::<PersistentVolumeClaim>(claim).await;
    }

    async fn csi_node(&self, name: &str) -> Option<CSINode> {
        self.api::<CSINode>().get_opt(name).await.unwrap()
    }

    /// Waits until the CSINode of node a has the driver.
    async fn until_registered(&self) -> CSINode {
        self.until("driver registered", || async {
            let csi_node = self.csi_node("a").await;
            csi_node.is_some_and(|csi_node| csi_node.spec.drivers.len() == 1)
        })
        .await;
        self.csi_node("a").await.unwrap()
    }

    async fn delete_csi_node(&self) {
        self.delete::<CSINode>("a").await;
    }

    async fn set_update_period(&self, seconds: Option<u32>) {
        let patch = json!({"spec": {"nodeAllocatableUpdatePeriodSeconds": seconds}});
        self.patch::<CSIDriver>(DRIVER, patch).await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_have_the_deadlines_of_kubelet_and_provisioner() {
    let world = World::with_pod_on_a().await;
    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.delete_claim("data").await;
    world.until_deleted().await;
    let expected = BTreeMap::from([
        ("CreateVolume", "10000m".to_owned()),
        ("DeleteVolume", "10000m".to_owned()),
        ("NodeGetInfo", "120000m".to_owned()),
        ("NodePublishVolume", "120000m".to_owned()),
        ("NodeStageVolume", "120000m".to_owned()),
        ("NodeUnpublishVolume", "120000m".to_owned()),
        ("NodeUnstageVolume", "120000m".to_owned()),
    ]);
    assert_eq!(world.driver.state().timeouts, expected);
}

#[tokio::test(start_paused = true)]
async fn block_volume_is_mapped() {
    let world = World::start().await;
    world.create_block_volume().await;
    world.driver.state().stage_error = Some(Status::internal("no staging"));
    let devices = json!({"containers": [{"name": "app", "image": "pause",
        "volumeDevices": [{"name": "data", "devicePath": "/dev/data"}]}], "nodeName": "a"});
    world.pod_with("web", "data", json!({}), devices).await;
    let text =
        "MapVolume.SetUpDevice failed for volume \"raw\" : rpc error: code = Internal desc = no staging";
    world.until_event("web", "FailedMapVolume", text).await;
    world.driver.state().stage_error = None;
    world.driver.state().node_publish_error = Some(Status::internal("no publishing"));
    let text =
        "MapVolume.MapPodDevice failed for volume \"raw\" : rpc error: code = Internal desc = no publishing";
    world.until_event("web", "FailedMapVolume", text).await;
    world.driver.state().node_publish_error = None;
    world.until_running("web").await;

    let pod = world.api::<Pod>().get("web").await.unwrap();
    let uid = pod.metadata.uid.unwrap();
    let devices = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices";
    let links = format!("/var/lib/kubelet/pods/{uid}/volumeDevices/kubernetes.io~csi");
    for path in [
        format!("globalMapPath \"{devices}/raw/dev\""),
        format!("volumeMapPath \"{links}\""),
    ] {
        let text = format!("MapVolume.MapPodDevice succeeded for volume \"raw\" {path}");
        world.until_event("web", "SuccessfulMountVolume", &text).await;
    }
    assert_eq!(world.events("web", "FailedMount").await, [""; 0]);
    let target = ("a".to_owned(), format!("{devices}/publish/raw/{uid}"));
    assert!(world.driver.state().mounted.contains(&target));

    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn volume_that_no_container_uses_is_attached_but_not_mounted() {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOnce").await;
    let containers = json!({"containers": [{"name": "app", "image": "pause"}], "nodeName": "a"});
    world.pod_with("web", "data", json!({}), containers).await;
    world.until_running("web").await;
    world.until_attached(&[("data", "a")]).await;
    assert!(world.driver.state().staged.is_empty());
    assert_eq!(world.node("a").await.status.unwrap().volumes_in_use, None);
}

#[tokio::test(start_paused = true)]
async fn volume_beyond_the_attach_limit_fails_its_pod_after_two_minutes() {
    let world = World::start().await;
    world.set_update_period(Some(3600)).await;
    world.until_registered().await;
    world.driver.state().publish_error = Some(Status::resource_exhausted("the node is full"));
    world.driver.state().limit = 1;
    world.claim("data", "now", "ReadWriteOnce").await;
    world.pod("web", Some("a"), &["data"]).await;
    let text = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[data], unattached \
                volumes=[data], failed to process volumes=[]: context deadline exceeded";
    let waited = world
        .until("pod rejected", || async {
            let pod = world.api::<Pod>().get("web").await.unwrap();
            let status = pod.status.unwrap_or_default();
            status.phase.as_deref() == Some("Failed")
                && status.reason.as_deref() == Some("VolumeAttachmentLimitExceeded")
                && status.message == Some(format!("Pod was rejected: {text}"))
        })
        .await;
    assert!(waited > Duration::from_secs(120), "{waited:?}");
    world
        .until_event("web", "VolumeAttachmentLimitExceeded", text)
        .await;
    world
        .until("limit updated", || async {
            let csi_node = world.csi_node("a").await.unwrap();
            let allocatable = csi_node.spec.drivers[0].allocatable.clone();
            allocatable.and_then(|allocatable| allocatable.count) == Some(1)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn deleted_csi_node_is_created_again_when_the_driver_registers_or_its_limit_is_updated() {
    let mut world = World::start().await;
    world.until_registered().await;

    world.delete_csi_node().await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(world.csi_node("a").await, None, "kubelet does not watch it");
    world.cluster.register_driver("a");
    world.until_registered().await;

    world.set_update_period(Some(60)).await;
    world.delete_csi_node().await;
    world.until_registered().await;
    world.set_update_period(None).await;
    world.delete_csi_node().await;
    sleep(Duration::from_secs(600)).await;
    assert_eq!(world.csi_node("a").await, None, "no period");

    world.cluster.start_node("a");
    world.until_registered().await;
}

#[tokio::test(start_paused = true)]
async fn kubelet_creates_a_csi_node_without_a_driver() {
    let mut world = World::start().await;
    world.cluster.add_node(NodeOptions::new("c", None));
    world
        .until("CSINode created", || async {
            world.csi_node("c").await.is_some()
        })
        .await;
    let csi_node = world.csi_node("c").await.unwrap();
    assert!(csi_node.spec.drivers.is_empty());
    let owner = &csi_node.metadata.owner_references.unwrap()[0];
    assert_eq!(Some(&owner.uid), world.node("c").await.metadata.uid.as_ref());
    assert!(
        csi_node.metadata.annotations.unwrap()["storage.alpha.kubernetes.io/migrated-plugins"]
            .contains("aws-ebs")
    );
}

#[tokio::test(start_paused = true)]
async fn csi_node_of_an_earlier_node_is_replaced() {
    let mut world = World::start().await;
    let before = world.until_registered().await.metadata;
    world.cluster.crash_node("a");
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "earlier"});
    let patch = json!({"metadata": {"ownerReferences": [owner]}});
    world.patch::<CSINode>("a", patch).await;
    world.cluster.start_node("a");
    world
        .until("CSINode replaced", || async {
            let csi_node = world.csi_node("a").await;
            csi_node.is_some_and(|found| {
                found.metadata.uid != before.uid
                    && found.metadata.owner_references == before.owner_references
                    && found.spec.drivers.len() == 1
            })
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn changed_limit_is_updated_and_keeps_the_drivers_entry() {
    let world = World::start().await;
    world.until_registered().await;
    let limit = |csi_node: CSINode| csi_node.spec.drivers[0].allocatable.clone()?.count;
    world.driver.state().limit = 3;
    world.cluster.register_driver("a");
    world
        .until("limit updated", || async {
            limit(world.csi_node("a").await.unwrap()) == Some(3)
        })
        .await;
    world.set_update_period(Some(60)).await;
    world.driver.state().limit = 0;
    let waited = world
        .until("limit updated", || async {
            limit(world.csi_node("a").await.unwrap()).is_none()
        })
        .await;
    assert!(waited >= Duration::from_secs(60), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn node_has_addresses_a_version_and_the_node_id_of_the_driver() {
    let world = World::start().await;
    world.until_registered().await;
    let node = world.node("a").await;
    let status = node.status.unwrap();
    let addresses = status.addresses.unwrap();
    let kinds: Vec<_> = addresses.iter().map(|address| &address.type_).collect();
    assert_eq!(kinds, ["InternalIP", "Hostname"]);
    assert_eq!(status.node_info.unwrap().kubelet_version, "v1.37.2");
    let annotations = node.metadata.annotations.unwrap();
    let ids: Value = serde_json::from_str(&annotations["csi.volume.kubernetes.io/nodeid"]).unwrap();
    assert_eq!(ids, json!({DRIVER: "a"}));
}

#[tokio::test(start_paused = true)]
async fn driver_is_not_registered_while_a_label_contradicts_its_topology() {
    let mut world = World::start_with(|state| state.topology = true).await;
    world.until_registered().await;
    world.cluster.crash_node("a");
    world.delete_csi_node().await;
    let label = |zone: &str| json!({"metadata": {"labels": {ZONE: zone}}});
    world.patch::<Node>("a", label("z9")).await;
    world.cluster.start_node("a");
    sleep(Duration::from_secs(60)).await;
    assert!(world.csi_node("a").await.unwrap().spec.drivers.is_empty());
    world.patch::<Node>("a", label("z1")).await;
    world.until_registered().await;
}
