//! Exit of the driver during node operations.

use std::time::Duration;

use csi_mock_driver::fault::Exit;
use csi_mock_driver::run;
use rustix::process::Signal;
use tokio::task::JoinSet;

use super::*;
use crate::program::Program;
use crate::server::DEADLINE;

/// Whether a thread of this process waits for a lock on the file.
fn is_waited_for(file: &fs::File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = format!(":{} ", file.metadata().unwrap().ino());
    let locks = fs::read_to_string("/proc/locks").unwrap();
    locks
        .lines()
        .any(|line| line.contains("-> FLOCK") && line.contains(&inode))
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, reached).await.expect(what);
}

#[tokio::test]
async fn exit_during_node_stage_leaves_neither_mount_nor_loop_device() {
    let ended = end_during_node_stage(DEADLINE, |server| server.driver().exit.request(Exit::Status(3))).await;
    assert!(
        ended.is_none_or(|ended| ended.is_err()),
        "an injected exit is an error"
    );
}

#[tokio::test]
async fn end_of_the_grace_period_during_node_stage_leaves_neither_mount_nor_loop_device() {
    let ended = end_during_node_stage(Duration::from_millis(20), Server::begin_stop).await;
    assert!(ended.is_none_or(|ended| ended.is_ok()), "a shutdown is no error");
}

#[tokio::test]
async fn second_signal_during_node_stage_leaves_neither_mount_nor_loop_device() {
    end_by_signals(2).await;
}

#[tokio::test]
async fn third_signal_ends_the_process_at_once_and_the_next_start_cleans_up() {
    end_by_signals(3).await;
}

/// Ends a driver by signals while NodeStageVolume waits for the lock on the disk.
async fn end_by_signals(signals: u32) {
    if !privilege::is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (socket, media) = (directory.path().join("csi.sock"), directory.path().join("media"));
    let staging = directory.path().join("staging");
    fs::create_dir(&staging).unwrap();
    let flags = [
        format!("--node-id={HERE}"),
        format!("--media-dir={}", media.display()),
        "--devices=loop".to_owned(),
    ];
    let mut program = Program::start(&socket, &flags).await;
    let mut controller = program.controller().await;
    let capability = mount(Mode::SingleNodeWriter);
    let request = v1::CreateVolumeRequest {
        volume_capabilities: vec![capability.clone()],
        ..mk_create("a")
    };
    let created = controller.create_volume(request).await.unwrap().into_inner();
    let volume = created.volume.unwrap().volume_id;
    let request = v1::ControllerPublishVolumeRequest {
        volume_capability: Some(capability.clone()),
        ..mk_publish(&volume, HERE)
    };
    let attached = controller.controller_publish_volume(request).await.unwrap();
    let request = v1::NodeStageVolumeRequest {
        volume_id: volume.clone(),
        publish_context: attached.into_inner().publish_context,
        staging_target_path: text(&staging),
        volume_capability: Some(capability),
        ..Default::default()
    };
    let disk = fs::File::open(media.join("volumes").join(&volume).join("disk")).unwrap();
    disk.lock().unwrap();
    let mut node = NodeClient::new(program.channel().await);
    let mut calls = JoinSet::new();
    calls.spawn(async move { node.node_stage_volume(request).await });
    until("NodeStageVolume must have begun", || is_waited_for(&disk)).await;

    program.signal(Signal::TERM);
    until("the first signal must have been handled", || !socket.exists()).await;
    program.signal(Signal::TERM);
    let response = calls.join_next().await.unwrap().unwrap();
    assert!(response.is_err(), "the call was cut off: {response:?}");
    if signals == 3 {
        program.signal(Signal::TERM);
        // The thread still waits for the lock.
        assert_eq!(program.ended().await.code(), Some(1));
        disk.unlock().unwrap();
        let mut program = Program::start(&socket, &flags).await;
        NodeClient::new(program.channel().await)
            .node_get_info(v1::NodeGetInfoRequest {})
            .await
            .unwrap();
        program.signal(Signal::TERM);
        assert_eq!(program.ended().await.code(), Some(0));
    } else {
        disk.unlock().unwrap();
        assert_eq!(program.ended().await.code(), Some(1));
    }
    drop(disk);
    assert_nothing_left(&staging);
    assert_nothing_left(&media);
}

/// Ends the driver during NodeStageVolume. Returns the driver's result, or `None` without root.
async fn end_during_node_stage(grace: Duration, end: impl FnOnce(&Server)) -> Option<Result<(), run::Error>> {
    if !privilege::is_there() {
        return None;
    }
    let server = Server::start_with_grace(grace, |_, settings| {
        settings.node_id = Some(HERE.to_owned());
        settings.node.devices = Choice::Loop;
    });
    let mut env = TestEnv::on(server.await).await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let (staging, media) = (env.staging(&volume), env.server.media());
    // The staging thread waits for the lock on the disk, as if another node of this machine had it.
    let disk = fs::File::open(env.server.disk(&volume.id)).unwrap();
    disk.lock().unwrap();
    let (mut node, request) = (env.node.clone(), env.mk_stage(&volume, &staging));
    let mut calls = JoinSet::new();
    calls.spawn(async move { node.node_stage_volume(request).await });
    until("NodeStageVolume must have begun", || is_waited_for(&disk)).await;

    end(&env.server);
    let result = {
        let mut ended = std::pin::pin!(env.server.ended());
        // A driver that does not wait for the call would have exited long before this.
        let early = tokio::time::timeout(Duration::from_millis(300), &mut ended).await;
        disk.unlock().unwrap();
        match early {
            Ok(result) => result,
            Err(_) => ended.await,
        }
    };
    let response = calls.join_next().await.unwrap().unwrap();
    assert!(response.is_err(), "the call was cut off: {response:?}");
    until("the thread must have gone on", || !is_waited_for(&disk)).await;
    drop(disk);
    for _ in 0..50 {
        assert_nothing_left(&staging);
        assert_nothing_left(&media);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Some(result)
}
