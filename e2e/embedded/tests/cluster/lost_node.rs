//! A node goes down without a word.

use std::time::Duration;

use embedded_cluster::attach_detach::ForceDetachReason;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::world::World;

async fn with_pod_on_a() -> World {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOnce").await;
    world.pod("web", Some("a"), &["data"]).await;
    world.until_running("web").await;
    world
}

async fn until_unreachable(world: &World) {
    world
        .until("node a unreachable", || async {
            let conditions = world.node("a").await.status.unwrap().conditions.unwrap();
            conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn volume_is_taken_from_an_unhealthy_node_after_six_minutes() {
    let mut world = with_pod_on_a().await;
    world.cluster.crash_node("a");
    until_unreachable(&world).await;
    let force = DeleteParams::default().grace_period(0);
    world.namespaced::<Pod>().delete("web", &force).await.unwrap();
    world.pod("web-2", Some("b"), &["data"]).await;
    world
        .until_event(
            "web-2",
            "FailedAttachVolume",
            "Volume is already exclusively attached to one node and can't be attached to another",
        )
        .await;
    let waited = world.until_running("web-2").await;
    assert!(waited > Duration::from_secs(350), "{waited:?}");
    assert!(waited < Duration::from_secs(380), "{waited:?}");
    let view = world.cluster.attach_detach();
    assert_eq!(view.forced_detaches(ForceDetachReason::Timeout), 1);
    assert!(
        view.metrics()
            .contains("attachdetach_controller_forced_detaches{reason=\"timeout\"} 1")
    );
    world.until_attached(&[("data", "b")]).await;
}

#[tokio::test(start_paused = true)]
async fn volume_stays_on_a_healthy_node_that_does_not_unmount() {
    let world = with_pod_on_a().await;
    world.driver.state().unstage_error = Some(tonic::Status::internal("device is busy"));
    world.delete_pod("web").await;
    world.until_gone("web").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.attached().await.len(), 1);
    let view = world.cluster.attach_detach();
    assert_eq!(view.forced_detaches(ForceDetachReason::Timeout), 0);
    world.driver.state().unstage_error = None;
    world.until_attached(&[]).await;
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn out_of_service_taint_moves_the_volume_at_once() {
    let mut world = with_pod_on_a().await;
    world.cluster.crash_node("a");
    until_unreachable(&world).await;
    let node = world.node("a").await;
    let mut taints = node.spec.unwrap().taints.unwrap_or_default();
    taints.push(
        serde_json::from_value(json!({
            "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute",
        }))
        .unwrap(),
    );
    let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
    world
        .all::<Node>()
        .patch("a", &PatchParams::default(), &patch)
        .await
        .unwrap();
    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.pod("web-2", Some("b"), &["data"]).await;
    let waited = world.until_running("web-2").await;
    assert!(waited < Duration::from_secs(60), "{waited:?}");
    assert_eq!(
        world
            .cluster
            .attach_detach()
            .forced_detaches(ForceDetachReason::OutOfService),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_lost_node_are_evicted_after_their_toleration() {
    let mut world = with_pod_on_a().await;
    world.cluster.crash_node("a");
    let waited = world
        .until("pod deleting", || async {
            let pod = world.namespaced::<Pod>().get("web").await.unwrap();
            pod.metadata.deletion_timestamp.is_some()
        })
        .await;
    assert!(
        waited > Duration::from_secs(340) && waited < Duration::from_secs(380),
        "{waited:?}"
    );
    // The node comes back and finishes what it missed.
    world.cluster.start_node("a");
    world.until_gone("web").await;
    world.until_attached(&[]).await;
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_node_are_removed_and_its_volumes_detached() {
    let mut world = with_pod_on_a().await;
    world.cluster.remove_node("a");
    world
        .all::<Node>()
        .delete("a", &DeleteParams::default())
        .await
        .unwrap();
    world.until_gone("web").await;
    world.until_attached(&[]).await;
}
