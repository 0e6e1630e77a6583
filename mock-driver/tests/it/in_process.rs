//! Drivers without sockets, threads and files, for simulations.

use std::sync::Arc;
use std::time::Duration;

use csi_mock_driver::driver::{Driver, Settings};
use csi_mock_driver::fault::{Origin, Rule};
use csi_mock_driver::journal::clock::Clock;
use csi_mock_driver::service::services;
use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::node_client::NodeClient;
use jiff::Timestamp;
use tokio::runtime;
use tokio::time::Instant;
use tonic::Code;
use tonic::service::Routes;

use crate::server::{mk_create, mk_publish, mk_unpublish};

const LATENCY: Duration = Duration::from_secs(5);

/// A time in the future.
const EPOCH: &str = "2031-05-06T07:08:09Z";

fn mk_driver() -> Arc<Driver> {
    let (epoch, started): (Timestamp, _) = (EPOCH.parse().unwrap(), Instant::now());
    Driver::in_memory(Settings {
        latency: LATENCY,
        seed: Some(7),
        clock: Clock::new(move || epoch + started.elapsed()),
        ..Settings::default()
    })
    .unwrap()
}

fn node(driver: &Driver, id: &str) -> NodeClient<Routes> {
    NodeClient::new(services(&driver.on_node(id).unwrap()))
}

fn mk_stage(volume: &str, attached: &v1::ControllerPublishVolumeResponse) -> v1::NodeStageVolumeRequest {
    v1::NodeStageVolumeRequest {
        volume_id: volume.to_owned(),
        publish_context: attached.publish_context.clone(),
        staging_target_path: "/no/such/directory/globalmount".to_owned(),
        volume_capability: mk_publish(volume, "").volume_capability,
        ..Default::default()
    }
}

fn mk_node_publish(stage: &v1::NodeStageVolumeRequest) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_id: stage.volume_id.clone(),
        publish_context: stage.publish_context.clone(),
        staging_target_path: stage.staging_target_path.clone(),
        target_path: "/no/such/directory/mount".to_owned(),
        volume_capability: stage.volume_capability.clone(),
        ..Default::default()
    }
}

/// Runs the life cycle of a volume; returns its id and the time of its snapshot, for comparison.
async fn life(driver: &Arc<Driver>) -> (String, Timestamp) {
    let mut controller = ControllerClient::new(services(driver));
    let (mut here, mut elsewhere) = (node(driver, "node-0"), node(driver, "node-1"));
    let created = controller
        .create_volume(mk_create("a"))
        .await
        .unwrap()
        .into_inner();
    let volume = created.volume.unwrap();
    let id = volume.volume_id;
    let begun = Instant::now();
    let attached = controller
        .controller_publish_volume(mk_publish(&id, "node-0"))
        .await;
    let attached = attached.unwrap().into_inner();
    assert_eq!(begun.elapsed(), LATENCY, "on the runtime's clock");

    let stage = mk_stage(&id, &attached);
    let publish = mk_node_publish(&stage);
    let refused = elsewhere.node_stage_volume(stage.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let refused = here.node_publish_volume(publish.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "not staged: {refused}");
    for _ in 0..2 {
        here.node_stage_volume(stage.clone()).await.unwrap();
        here.node_publish_volume(publish.clone()).await.unwrap();
    }
    let other = v1::NodePublishVolumeRequest {
        readonly: true,
        ..publish.clone()
    };
    let refused = here.node_publish_volume(other).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    let stats = v1::NodeGetVolumeStatsRequest {
        volume_id: id.clone(),
        volume_path: publish.target_path.clone(),
        ..Default::default()
    };
    let usage = here
        .node_get_volume_stats(stats.clone())
        .await
        .unwrap()
        .into_inner()
        .usage;
    assert_eq!(usage[0].total, volume.capacity_bytes);

    let taken = snapshot(&mut controller, &id).await;
    grow(
        &mut controller,
        &mut here,
        &id,
        &publish.target_path,
        2 * volume.capacity_bytes,
    )
    .await;

    let unpublish = v1::NodeUnpublishVolumeRequest {
        volume_id: id.clone(),
        target_path: publish.target_path,
    };
    let unstage = v1::NodeUnstageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: stage.staging_target_path,
    };
    let early = here.node_unstage_volume(unstage.clone()).await.unwrap_err();
    assert_eq!(early.code(), Code::FailedPrecondition, "{early}");
    for _ in 0..2 {
        here.node_unpublish_volume(unpublish.clone()).await.unwrap();
        here.node_unstage_volume(unstage.clone()).await.unwrap();
    }
    assert_eq!(
        here.node_get_volume_stats(stats).await.unwrap_err().code(),
        Code::NotFound
    );
    controller
        .controller_unpublish_volume(mk_unpublish(&id, "node-0"))
        .await
        .unwrap();
    (id, taken)
}

async fn snapshot(controller: &mut ControllerClient<Routes>, volume: &str) -> Timestamp {
    let request = v1::CreateSnapshotRequest {
        name: "s".to_owned(),
        source_volume_id: volume.to_owned(),
        ..Default::default()
    };
    let taken = controller.create_snapshot(request).await.unwrap().into_inner();
    let taken = taken.snapshot.unwrap().creation_time.unwrap();
    Timestamp::new(taken.seconds, taken.nanos).unwrap()
}

async fn grow(
    controller: &mut ControllerClient<Routes>,
    node: &mut NodeClient<Routes>,
    volume: &str,
    path: &str,
    bytes: i64,
) {
    let request = v1::ControllerExpandVolumeRequest {
        volume_id: volume.to_owned(),
        capacity_range: Some(v1::CapacityRange {
            required_bytes: bytes,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    controller.controller_expand_volume(request).await.unwrap();
    let request = v1::NodeExpandVolumeRequest {
        volume_id: volume.to_owned(),
        volume_path: path.to_owned(),
        ..Default::default()
    };
    let grown = node.node_expand_volume(request).await.unwrap().into_inner();
    assert_eq!(grown.capacity_bytes, bytes);
}

#[tokio::test(start_paused = true)]
async fn volume_life_cycle_in_simulated_time_is_deterministic() {
    let mut lives = Vec::new();
    for _ in 0..2 {
        lives.push(life(&mk_driver()).await);
    }
    assert_eq!(lives[0].1, EPOCH.parse::<Timestamp>().unwrap() + LATENCY);
    assert_eq!(lives[0], lives[1]);
}

#[tokio::test(start_paused = true)]
async fn fault_rules_and_array_are_shared_with_the_processes_on_nodes() {
    let driver = mk_driver();
    let script =
        "rules: [{id: gone, match: {method: NodeGetInfo, node: node-2}, action: {code: UNAVAILABLE}}]";
    driver
        .faults
        .load(Origin::Admin, Rule::read_list(script).unwrap())
        .unwrap();
    for (id, code) in [("node-0", Code::Ok), ("node-2", Code::Unavailable)] {
        let response = node(&driver, id).node_get_info(v1::NodeGetInfoRequest {}).await;
        assert_eq!(
            response.map_or_else(|status| status.code(), |_| Code::Ok),
            code,
            "{id}"
        );
    }
}

#[test]
fn in_process_driver_needs_no_thread() {
    let runtime = runtime::Builder::new_current_thread()
        .enable_time()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    // Occupies the only thread of the runtime for blocking work.
    let (done, wait) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || wait.recv());
    runtime.block_on(async {
        let settings = Settings {
            seed: Some(7),
            ..Settings::default()
        };
        let driver = Driver::in_memory(settings).unwrap();
        let mut controller = ControllerClient::new(services(&driver));
        let all = async {
            let created = controller
                .create_volume(mk_create("a"))
                .await
                .unwrap()
                .into_inner();
            let id = created.volume.unwrap().volume_id;
            let attached = controller
                .controller_publish_volume(mk_publish(&id, "node-0"))
                .await;
            let stage = mk_stage(&id, &attached.unwrap().into_inner());
            let mut here = node(&driver, "node-0");
            here.node_stage_volume(stage.clone()).await.unwrap();
            here.node_publish_volume(mk_node_publish(&stage)).await.unwrap();
        };
        tokio::time::timeout(crate::server::DEADLINE, all)
            .await
            .expect("must need no thread");
    });
    drop(done);
}
