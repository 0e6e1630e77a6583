//! Crashes of controllers and kubelets, which restart with only the stored state.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use tokio::time::sleep;

use crate::world::World;

/// A world with a pod whose volume the driver does not attach.
async fn with_pending_attach() -> World {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOnce").await;
    world.driver.state().publish_error = Some(tonic::Status::unavailable("slow"));
    world.pod("web", Some("a"), &["data"]).await;
    world
        .until("attachment", || async { !world.attached().await.is_empty() })
        .await;
    world
}

#[tokio::test(start_paused = true)]
async fn restarted_controller_keeps_attached_volumes() {
    let mut world = World::with_pod_on_a().await;
    world.cluster.restart_controllers();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.attached().await.len(), 1);
    let view = world.cluster.attach_detach().volumes();
    assert_eq!(view.into_values().next().unwrap().actual, Some("attached"));
}

#[tokio::test(start_paused = true)]
async fn restarted_controller_detaches_volumes_of_pods_deleted_meanwhile() {
    let mut world = World::with_pod_on_a().await;
    world.cluster.crash_controllers();
    world.delete_pod("web").await;
    world.until_gone("web").await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(world.attached().await.len(), 1, "the controller is down");
    world.cluster.restart_controllers();
    world.until_attached(&[]).await;
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn restarted_controller_finishes_an_interrupted_attach() {
    let mut world = with_pending_attach().await;
    world.cluster.crash_controllers();
    world.driver.state().publish_error = None;
    sleep(Duration::from_secs(5)).await;
    world.cluster.restart_controllers();
    world.until_running("web").await;
}

#[tokio::test(start_paused = true)]
async fn dangling_attachment_is_detached_after_a_restart() {
    let mut world = with_pending_attach().await;
    world.cluster.crash_controllers();
    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.cluster.restart_controllers();
    world.until_attached(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn restarted_kubelet_keeps_running_pods() {
    let mut world = World::with_pod_on_a().await;
    let mounted = world.driver.state().mounted.clone();
    world.cluster.crash_node("a");
    world.cluster.start_node("a");
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.driver.state().mounted, mounted);
    assert_eq!(world.attached().await.len(), 1);
    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn restarted_kubelet_unmounts_volumes_of_pods_deleted_meanwhile() {
    let mut world = World::with_pod_on_a().await;
    world.cluster.crash_node("a");
    let force = DeleteParams::default().grace_period(0);
    world.api::<Pod>().delete("web", &force).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(
        world.attached().await.len(),
        1,
        "still mounted in the controller's state"
    );
    world.cluster.start_node("a");
    world.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn pods_survive_an_api_server_outage() {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOnce").await;
    world.pod("web", Some("a"), &["data"]).await;
    sleep(Duration::from_millis(300)).await;
    world.cluster.api_server().set_down(true);
    sleep(Duration::from_secs(30)).await;
    world.cluster.api_server().set_down(false);
    world.until_running("web").await;
    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.until_attached(&[]).await;
    world.assert_no_violations();
}
