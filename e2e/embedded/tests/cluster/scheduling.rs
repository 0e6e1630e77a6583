//! Unschedulable pods report the reason, and are scheduled once they fit.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSINode;
use serde_json::json;

use crate::driver::DRIVER;
use crate::world::World;

#[tokio::test(start_paused = true)]
async fn unschedulable_pod_reports_the_reason() {
    let world = World::start().await;
    world.pod("web", Some("nowhere"), &[]).await;
    let text = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.";
    world.until_event("web", "FailedScheduling", text).await;
    world
        .until("condition", || async {
            let pod = world.api::<Pod>().get("web").await.unwrap();
            let conditions = pod
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            conditions.iter().any(|condition| {
                condition.type_ == "PodScheduled"
                    && condition.status == "False"
                    && condition.reason.as_deref() == Some("Unschedulable")
                    && condition.message.as_deref() == Some(text)
            })
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn attach_limit_keeps_pods_pending_until_a_volume_is_detached() {
    let world = World::start_with(|state| state.limit = 1).await;
    world
        .until("drivers registered", || async {
            let node = world.api::<CSINode>().get_opt("a").await.unwrap();
            node.is_some_and(|node| node.spec.drivers.iter().any(|driver| driver.name == DRIVER))
        })
        .await;
    for claim in ["one", "two"] {
        world.claim(claim, "now", "ReadWriteOnce").await;
    }
    world.pod("first", Some("a"), &["one"]).await;
    world.until_running("first").await;
    world.pod("second", Some("a"), &["two"]).await;
    world
        .until_event("second", "FailedScheduling", "1 node(s) exceed max volume count")
        .await;
    world.delete_pod("first").await;
    world.until_running("second").await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_spread_over_the_nodes() {
    let world = World::start().await;
    for name in ["one", "two"] {
        world.pod(name, None, &[]).await;
        world.until_running(name).await;
    }
    let node = |name: &'static str| {
        let pods = world.api::<Pod>();
        async move { pods.get(name).await.unwrap().spec.unwrap().node_name.unwrap() }
    };
    assert_ne!(node("one").await, node("two").await);
}

#[tokio::test(start_paused = true)]
async fn volume_that_is_not_detached_yet_counts_against_the_attach_limit() {
    let world = World::start_with(|state| state.limit = 1).await;
    world.driver.state().unstage_error = Some(tonic::Status::unavailable("device is busy"));
    for claim in ["one", "two"] {
        world.claim(claim, "now", "ReadWriteOnce").await;
    }
    world.pod("first", Some("a"), &["one"]).await;
    world.until_running("first").await;
    world.delete_pod("first").await;
    world.until_gone("first").await;
    world.pod("second", Some("a"), &["two"]).await;
    world
        .until_event("second", "FailedScheduling", "1 node(s) exceed max volume count")
        .await;
    world.driver.state().unstage_error = None;
    world.until_running("second").await;
}

#[tokio::test(start_paused = true)]
async fn gated_pod_is_scheduled_after_its_gates_are_removed() {
    let world = World::start().await;
    world
        .create::<Pod>(json!({
            "metadata": {"name": "web"}, "spec": {"containers": [{"name": "app", "image": "pause"}],
                "schedulingGates": [{"name": "example.com/quota"}]},
        }))
        .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        world
            .api::<Pod>()
            .get("web")
            .await
            .unwrap()
            .spec
            .unwrap()
            .node_name,
        None
    );
    assert_eq!(world.events("web", "FailedScheduling").await, [""; 0]);
    world
        .patch::<Pod>("web", json!({"spec": {"schedulingGates": null}}))
        .await;
    world.until_running("web").await;
}
