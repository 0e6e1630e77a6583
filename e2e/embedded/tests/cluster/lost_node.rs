//! Loss of a node.

use std::time::Duration;

use embedded_cluster::apiserver::{Fault, Rule};
use embedded_cluster::attach_detach::ForceDetachReason;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::driver::DRIVER;
use crate::world::World;

async fn until_unreachable(world: &World, node: &str) {
    world
        .until(&format!("node {node} unreachable"), || async {
            let conditions = world.node(node).await.status.unwrap().conditions.unwrap();
            conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn condition_keeps_its_transition_time_until_its_status_changes() {
    let world = World::start().await;
    let ready = || async {
        let conditions = world.node("a").await.status.unwrap().conditions.unwrap();
        let mut ready = conditions
            .into_iter()
            .filter(|condition| condition.type_ == "Ready");
        ready.next().unwrap()
    };
    let registered = || async { world.api::<Node>().get_opt("a").await.unwrap().is_some() };
    world.until("node a registered", registered).await;
    let first = ready().await;
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert!(ready().await.last_heartbeat_time > first.last_heartbeat_time);
    assert_eq!(ready().await.last_transition_time, first.last_transition_time);
    let unknown = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    let nodes = world.api::<Node>();
    nodes
        .patch_status("a", &PatchParams::default(), &Patch::Strategic(unknown))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(ready().await.status, "True");
    assert!(ready().await.last_transition_time > first.last_transition_time);
}

#[tokio::test(start_paused = true)]
async fn kubelet_creates_its_lease_again_and_the_node_stays_ready() {
    let world = World::start().await;
    let leases = Api::<Lease>::namespaced(world.cluster.client(), "kube-node-lease");
    let exists = || async { leases.get_opt("a").await.unwrap().is_some() };
    world.until("lease", exists).await;
    leases.delete("a", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(exists().await);
    let conditions = world.node("a").await.status.unwrap().conditions.unwrap();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    assert_eq!(ready.unwrap().status, "True");
}

#[tokio::test(start_paused = true)]
async fn volume_is_force_detached_from_an_unhealthy_node_after_six_minutes() {
    let mut world = World::with_pod_on_a().await;
    world.cluster.crash_node("a");
    until_unreachable(&world, "a").await;
    let force = DeleteParams::default().grace_period(0);
    world.api::<Pod>().delete("web", &force).await.unwrap();
    world.pod("web-2", Some("b"), &["data"]).await;
    world
        .until_event(
            "web-2",
            "FailedAttachVolume",
            "Volume is already exclusively attached to one node",
        )
        .await;
    let waited = world.until_running("web-2").await;
    assert!(waited > Duration::from_secs(350), "{waited:?}");
    assert!(waited < Duration::from_secs(380), "{waited:?}");
    let view = world.cluster.attach_detach();
    assert_eq!(view.forced_detaches(ForceDetachReason::Timeout), 1);
    assert!(view.metrics().contains(
        "\nattach_detach_controller_attachdetach_controller_forced_detaches{reason=\"timeout\"} 1"
    ));
    world.until_attached(&[("data", "b")]).await;
}

#[tokio::test(start_paused = true)]
async fn volume_stays_attached_to_a_healthy_node_that_does_not_unmount() {
    let world = World::with_pod_on_a().await;
    let in_use = format!(
        "storage_count_attachable_volumes_in_use{{node=\"a\",volume_plugin=\"kubernetes.io/csi:{DRIVER}\"}} 1\n"
    );
    assert!(world.cluster.attach_detach().metrics().contains(&in_use));
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
    let mut world = World::with_pod_on_a().await;
    world.cluster.crash_node("a");
    until_unreachable(&world, "a").await;
    let node = world.node("a").await;
    let mut taints = node.spec.unwrap().taints.unwrap_or_default();
    taints.push(
        serde_json::from_value(json!({
            "key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute",
        }))
        .unwrap(),
    );
    world
        .patch::<Node>("a", json!({"spec": {"taints": taints}}))
        .await;
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
    let mut world = World::with_pod_on_a().await;
    world.cluster.crash_node("a");
    let waited = world
        .until("pod deleting", || async {
            let pod = world.api::<Pod>().get("web").await.unwrap();
            pod.metadata.deletion_timestamp.is_some()
        })
        .await;
    assert!(
        waited > Duration::from_secs(340) && waited < Duration::from_secs(380),
        "{waited:?}"
    );
    // The node returns and completes the missed deletions.
    world.cluster.start_node("a");
    world.until_gone("web").await;
    world.until_attached(&[]).await;
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_deleted_node_are_removed_and_its_volumes_detached() {
    let mut world = World::with_pod_on_a().await;
    world.cluster.remove_node("a");
    world.delete::<Node>("a").await;
    world.until_gone("web").await;
    world.until_attached(&[]).await;
}

#[tokio::test(start_paused = true)]
async fn no_execute_taint_evicts_pods_that_do_not_tolerate_it() {
    let world = World::with_pod_on_a().await;
    let taint = json!([{"key": "example.com/maintenance", "effect": "NoExecute"}]);
    world.patch::<Node>("a", json!({"spec": {"taints": taint}})).await;
    world
        .until_event("web", "TaintManagerEviction", "Marking for deletion Pod")
        .await;
    world.until_gone("web").await;
    world.until_attached(&[]).await;
    world.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn lost_node_is_reflected_in_conditions_taints_pods_and_events() {
    let mut world = World::with_pod_on_a().await;
    world
        .until_event(
            "a",
            "RegisteredNode",
            "Node a event: Registered Node a in Controller",
        )
        .await;
    world.cluster.crash_node("a");
    until_unreachable(&world, "a").await;
    let node = world.node("a").await;
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        let conditions = node.status.as_ref().unwrap().conditions.iter().flatten();
        let found = conditions.clone().find(|condition| condition.type_ == kind);
        assert_eq!(
            found.map(|condition| condition.status.as_str()),
            Some("Unknown"),
            "{kind}"
        );
    }
    world
        .until_event("a", "NodeNotReady", "Node a status is now: NodeNotReady")
        .await;
    world
        .until_event("web", "NodeNotReady", "Node is not ready")
        .await;
    let pod = world.api::<Pod>().get("web").await.unwrap();
    let mut conditions = pod.status.unwrap().conditions.unwrap().into_iter();
    let ready = conditions.find(|condition| condition.type_ == "Ready").unwrap();
    assert_eq!(ready.status, "False");
    world
        .until("taints with their time", || async {
            let taints = world.node("a").await.spec.unwrap().taints.unwrap_or_default();
            taints.len() == 2 && taints.iter().all(|taint| taint.time_added.is_some())
        })
        .await;
    world.cluster.remove_node("a");
    world.delete::<Node>("a").await;
    world
        .until_event(
            "a",
            "RemovingNode",
            "Node a event: Removing Node a from Controller",
        )
        .await;
}

#[tokio::test(start_paused = true)]
async fn failed_write_does_not_keep_other_pods_of_a_lost_node_ready() {
    let mut world = World::with_pod_on_a().await;
    world.claim("other", "now", "ReadWriteOnce").await;
    world.pod("zoo", Some("a"), &["other"]).await;
    world.until_running("zoo").await;
    let rule = Rule::always(Fault::Conflict)
        .verbs(&["patch"])
        .resource("pods/status")
        .name("web");
    world.cluster.api_server().set_faults(vec![rule]);
    world.cluster.crash_node("a");
    world
        .until_event("zoo", "NodeNotReady", "Node is not ready")
        .await;
}

#[tokio::test(start_paused = true)]
async fn node_whose_kubelet_never_reported_becomes_unknown() {
    let world = World::start().await;
    world.create::<Node>(json!({"metadata": {"name": "ghost"}})).await;
    let waited = world
        .until("node ghost unknown", || async {
            let conditions = world
                .node("ghost")
                .await
                .status
                .and_then(|status| status.conditions);
            conditions.iter().flatten().any(|condition| {
                condition.type_ == "Ready"
                    && condition.status == "Unknown"
                    && condition.reason.as_deref() == Some("NodeStatusNeverUpdated")
                    && condition.message.as_deref() == Some("Kubelet never posted node status.")
            })
        })
        .await;
    assert!(waited > Duration::from_secs(60), "{waited:?}");
    assert!(waited < Duration::from_secs(75), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn orphaned_pod_fails_with_a_condition_and_a_terminating_one_without() {
    const FINALIZER: &str = "example.com/keep";
    let mut world = World::start().await;
    for (name, node) in [("orphan", "a"), ("terminating", "b")] {
        world.claim(name, "now", "ReadWriteOnce").await;
        let metadata = json!({"finalizers": [FINALIZER]});
        world
            .pod_with(name, name, metadata, json!({"nodeName": node}))
            .await;
        world.until_running(name).await;
        world.cluster.crash_node(node);
    }
    world.delete::<Node>("a").await;
    world.delete_pod("terminating").await;
    until_unreachable(&world, "b").await;
    let taint = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]);
    let patch = Patch::Strategic(json!({"spec": {"taints": taint}}));
    let nodes = world.api::<Node>();
    nodes.patch("b", &PatchParams::default(), &patch).await.unwrap();
    for name in ["orphan", "terminating"] {
        let pods = world.api::<Pod>();
        world
            .until(&format!("pod {name} failed"), || async {
                let pod = pods.get(name).await.unwrap();
                pod.status.unwrap().phase.as_deref() == Some("Failed")
            })
            .await;
        let pod = pods.get(name).await.unwrap();
        let status = pod.status.unwrap();
        let conditions = status.conditions.unwrap();
        let condition = conditions
            .iter()
            .find(|condition| condition.reason.as_deref() == Some("DeletionByPodGC"));
        if name == "orphan" {
            let condition = condition.unwrap();
            assert_eq!(condition.message.as_deref(), Some("PodGC: node no longer exists"));
            assert!(condition.last_transition_time.is_some());
            assert!(status.observed_generation.is_some());
        } else {
            assert_eq!(condition, None);
        }
    }
}
