//! Attach and detach for pods that are created, moved and deleted, and failed attaches.

use std::collections::BTreeSet;
use std::time::Duration;

use embedded_cluster::apiserver::{Fault, Rule};
use embedded_cluster::cluster::CONTROLLERS;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde_json::json;
use tokio::time::sleep;
use tonic::Status;

use crate::driver::DRIVER;
use crate::world::World;

#[tokio::test(start_paused = true)]
async fn pod_runs_after_its_volume_is_attached_and_mounted() {
    let world = World::with_pod_on_a().await;

    assert_eq!(world.attached().await.len(), 1);
    let status = world.node("a").await.status.unwrap();
    let in_use = status.volumes_in_use.unwrap();
    assert!(
        in_use[0].starts_with(&format!("kubernetes.io/csi/{DRIVER}^vol-pvc-")),
        "{in_use:?}"
    );
    assert_eq!(status.volumes_attached.unwrap()[0].name, in_use[0]);
    world
        .until_event(
            "web",
            "SuccessfulAttachVolume",
            "AttachVolume.Attach succeeded for volume",
        )
        .await;
    world
        .until_event("web", "Scheduled", "Successfully assigned default/web to a")
        .await;

    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.until_attached(&[]).await;
    let status = world.node("a").await.status.unwrap();
    assert_eq!((status.volumes_in_use, status.volumes_attached), (None, None));
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn volume_is_detached_from_the_old_node_before_the_new_attach() {
    let world = World::with_pod_on_a().await;
    world.pod("web-2", Some("b"), &["data"]).await;
    world
        .until_event(
            "web-2",
            "FailedAttachVolume",
            "Volume is already used by pod(s) web",
        )
        .await;
    world.delete_pod("web").await;
    world.until_running("web-2").await;
    world.until_attached(&[("data", "b")]).await;
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn shared_volume_is_attached_to_both_nodes() {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteMany").await;
    world.pod("one", Some("a"), &["data"]).await;
    world.pod("two", Some("b"), &["data"]).await;
    world.until_running("one").await;
    world.until_running("two").await;
    world.until_attached(&[("data", "a"), ("data", "b")]).await;
    world.delete_pod("one").await;
    world.until_attached(&[("data", "b")]).await;
}

#[tokio::test(start_paused = true)]
async fn failed_attach_is_reported_and_retried() {
    let world = World::start().await;
    world.driver.state().publish_error = Some(Status::internal("array is on fire"));
    world.claim("data", "now", "ReadWriteOnce").await;
    world.pod("web", Some("a"), &["data"]).await;
    let text = "rpc error: code = Internal desc = array is on fire";
    world.until_event("web", "FailedAttachVolume", text).await;
    let view = world.cluster.attach_detach().volumes();
    let (_, volume) = view.into_iter().next().unwrap();
    assert_eq!(
        (volume.actual, volume.desired_by),
        (Some("uncertain"), vec!["default/web".to_owned()])
    );

    world.driver.state().publish_error = None;
    world.until_running("web").await;
}

#[tokio::test(start_paused = true)]
async fn failed_attach_of_a_deleted_pod_is_undone() {
    let world = World::start().await;
    world.driver.state().publish_error = Some(Status::deadline_exceeded("no response"));
    world.claim("data", "now", "ReadWriteOnce").await;
    world.pod("web", Some("a"), &["data"]).await;
    world
        .until_event("web", "FailedAttachVolume", "no response")
        .await;
    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.until_attached(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn failed_mount_is_reported_and_retried() {
    let world = World::start().await;
    world.driver.state().stage_error = Some(Status::unavailable("device is absent"));
    world.claim("data", "now", "ReadWriteOnce").await;
    world.pod("web", Some("a"), &["data"]).await;
    let text = "rpc error: code = Unavailable desc = device is absent";
    world.until_event("web", "FailedMount", text).await;
    world.driver.state().stage_error = None;
    world.until_running("web").await;
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn driver_without_attach_gets_no_attachments() {
    let world = World::start().await;
    world.delete::<CSIDriver>(DRIVER).await;
    world
        .create::<CSIDriver>(json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": false}}))
        .await;
    world.run_pod_on_a().await;
    assert!(world.list::<VolumeAttachment>().await.is_empty());
    world.delete_pod("web").await;
    world.until_gone("web").await;
}

#[tokio::test(start_paused = true)]
async fn pod_runs_with_a_volume_that_was_not_unstaged_since_the_last_pod() {
    let world = World::with_pod_on_a().await;
    world.driver.state().unstage_error = Some(Status::unavailable("device is busy"));
    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.pod("web-2", Some("a"), &["data"]).await;
    world.until_running("web-2").await;
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn failed_node_status_patch_does_not_delay_other_nodes() {
    let world = World::start().await;
    let rule = Rule::always(Fault::Conflict)
        .verbs(&["patch"])
        .resource("nodes/status")
        .name("a")
        .user_agent(CONTROLLERS);
    world.cluster.api_server().set_faults(vec![rule]);
    for (claim, pod, node) in [("one", "stuck", "a"), ("two", "web", "b")] {
        world.claim(claim, "now", "ReadWriteOnce").await;
        world.pod(pod, Some(node), &[claim]).await;
        world
            .until_event(pod, "SuccessfulAttachVolume", "AttachVolume.Attach succeeded")
            .await;
    }
    world.until_running("web").await;
}

/// The UIDs of the VolumeAttachments.
async fn attachment_uids(world: &World) -> BTreeSet<Option<String>> {
    let attachments = world.list::<VolumeAttachment>().await;
    attachments
        .into_iter()
        .map(|attachment| attachment.metadata.uid)
        .collect()
}

/// Deletes pods while the controllers are down, so that their detaches are planned together, and the first one waits for its node's
/// status.
async fn plan_detaches(world: &mut World, pods: [&str; 2]) {
    world.cluster.crash_controllers();
    for pod in pods {
        world.delete_pod(pod).await;
        world.until_gone(pod).await;
    }
    sleep(Duration::from_secs(60)).await;
    let slow = Rule::always(Fault::Latency(Duration::from_secs(30)))
        .verbs(&["patch"])
        .resource("nodes/status")
        .user_agent(CONTROLLERS)
        .times(1);
    world.cluster.api_server().set_faults(vec![slow]);
    world.cluster.restart_controllers();
}

/// Both detaches are planned together, and the first one waits for its node's status: the second one is planned anew.
#[tokio::test(start_paused = true)]
async fn volume_that_is_needed_again_before_its_detach_stays_attached() {
    let mut world = World::start().await;
    for claim in ["one", "two"] {
        world.claim(claim, "now", "ReadWriteOnce").await;
        world.pod(&format!("old-{claim}"), Some("a"), &[claim]).await;
        world.until_running(&format!("old-{claim}")).await;
    }
    let before = attachment_uids(&world).await;
    plan_detaches(&mut world, ["old-one", "old-two"]).await;
    sleep(Duration::from_secs(10)).await;
    // The kubelet does not report the volumes as in use, which would prevent both detaches.
    world.cluster.crash_node("a");
    for claim in ["one", "two"] {
        world.pod(&format!("new-{claim}"), Some("a"), &[claim]).await;
    }
    sleep(Duration::from_secs(25)).await;
    world.cluster.start_node("a");
    for pod in ["new-one", "new-two"] {
        world.until_running(pod).await;
    }
    let after = attachment_uids(&world).await;
    assert_eq!(before.intersection(&after).count(), 1, "{before:?} {after:?}");
}

/// As in kube-controller-manager, a slow update of one node's status delays the detaches from other nodes.
#[tokio::test(start_paused = true)]
async fn detaches_begin_one_after_the_other() {
    let mut world = World::start().await;
    for (claim, node) in [("one", "a"), ("two", "b")] {
        world.claim(claim, "now", "ReadWriteOnce").await;
        world.pod(node, Some(node), &[claim]).await;
        world.until_running(node).await;
    }
    plan_detaches(&mut world, ["a", "b"]).await;
    sleep(Duration::from_secs(25)).await;
    assert_eq!(world.driver.state().published.len(), 2);
    world
        .until("volumes detached", || async {
            world.driver.state().published.is_empty()
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn pod_with_an_unbound_claim_on_its_node_gets_an_event() {
    let world = World::start().await;
    world.claim("unbound", "", "ReadWriteOnce").await;
    world
        .pod_with("web", "unbound", json!({}), json!({"nodeName": "a"}))
        .await;
    let text = "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], failed to process \
                volumes=[data]: error processing PVC default/unbound: PVC is not bound";
    world.until_event("web", "FailedMount", text).await;
}

#[tokio::test(start_paused = true)]
async fn single_pod_volume_is_not_mounted_for_a_second_pod() {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOncePod").await;
    for name in ["one", "two"] {
        world
            .pod_with(name, "data", json!({}), json!({"nodeName": "a"}))
            .await;
        if name == "one" {
            world.until_running(name).await;
        }
    }
    let text = " : volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    world.until_event("two", "FailedMount", text).await;
    world.delete_pod("one").await;
    world.until_running("two").await;
}

#[tokio::test(start_paused = true)]
async fn events_are_written_after_a_reconnect() {
    let world = World::start().await;
    let rule = Rule::always(Fault::LostRequest)
        .verbs(&["create"])
        .resource("events")
        .user_agent(CONTROLLERS);
    world.cluster.api_server().set_faults(vec![rule]);
    world.pod("web", Some("a"), &[]).await;
    world.until_running("web").await;
    sleep(Duration::from_secs(30)).await;
    world.cluster.api_server().set_faults(Vec::new());
    world
        .until_event("web", "Scheduled", "Successfully assigned default/web to a")
        .await;
}

#[tokio::test(start_paused = true)]
async fn pod_with_an_inline_migrated_volume_waits_for_its_attachment() {
    let world = World::start().await;
    world.driver.state().publish_error = Some(Status::unavailable("the array is down"));
    let volumes = json!([{"name": "data", "awsElasticBlockStore": {"volumeID": "aws://z1/vol-1"}}]);
    world.pod_with_volumes("web", Some("a"), volumes).await;
    world
        .until_event("web", "FailedAttachVolume", "the array is down")
        .await;
    sleep(Duration::from_secs(60)).await;
    let pod = world.api::<Pod>().get("web").await.unwrap();
    assert_ne!(pod.status.unwrap().phase.as_deref(), Some("Running"));
    world.driver.state().publish_error = None;
    world.until_running("web").await;
    assert!(
        world
            .driver
            .state()
            .staged
            .contains(&("a".to_owned(), "vol-1".to_owned()))
    );
    world.delete_pod("web").await;
    world
        .until("volume detached", || async {
            world.driver.state().published.is_empty()
        })
        .await;
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn pod_with_an_untranslatable_volume_does_not_run() {
    let world = World::start().await;
    let volumes = json!([{"name": "data", "awsElasticBlockStore": {"volumeID": "aws://z1/1"}}]);
    world.pod_with_volumes("web", Some("a"), volumes).await;
    let why = "failed to translate in-tree pv to CSI";
    world.until_event("web", "FailedMount", why).await;
}
