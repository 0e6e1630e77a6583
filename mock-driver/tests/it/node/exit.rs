//! The end of the driver in the middle of work on a node.

use std::time::Duration;

use csi_mock_driver::fault::Exit;
use csi_mock_driver::run;
use tokio::task::JoinSet;

use super::*;
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
    let ended = end_during_node_stage(DEADLINE, |server| server.driver().exit().order(Exit::Status(3))).await;
    assert!(
        ended.is_none_or(|ended| ended.is_err()),
        "an ordered exit is an error"
    );
}

#[tokio::test]
async fn end_of_the_grace_period_during_node_stage_leaves_neither_mount_nor_loop_device() {
    let ended = end_during_node_stage(Duration::from_millis(20), Server::begin_stop).await;
    assert!(ended.is_none_or(|ended| ended.is_ok()), "a shutdown is no error");
}

/// Returns the result of the driver, or `None` without root.
async fn end_during_node_stage(grace: Duration, end: impl FnOnce(&Server)) -> Option<Result<(), run::Error>> {
    if !privilege::is_there() {
        return None;
    }
    let server = Server::start_with_grace(grace, |_, settings| {
        settings.node_id = Some(HERE.to_owned());
        settings.node.devices = Choice::Loop;
    });
    let mut site = Site::on(server.await).await;
    let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let (staging, media) = (site.staging(&volume), site.server.media());
    // The thread that stages waits for the lock on the disk, as it does for another node of this machine.
    let disk = fs::File::open(site.server.disk(&volume.id)).unwrap();
    disk.lock().unwrap();
    let (mut node, request) = (site.node.clone(), site.mk_stage(&volume, &staging));
    let mut calls = JoinSet::new();
    calls.spawn(async move { node.node_stage_volume(request).await });
    until("NodeStageVolume must have begun", || is_waited_for(&disk)).await;

    end(&site.server);
    let result = {
        let mut ended = std::pin::pin!(site.server.ended());
        // A driver that waits for nobody is at its end long before this.
        let early = tokio::time::timeout(Duration::from_millis(300), &mut ended).await;
        disk.unlock().unwrap();
        match early {
            Ok(result) => result,
            Err(_) => ended.await,
        }
    };
    let answer = calls.join_next().await.unwrap().unwrap();
    assert!(answer.is_err(), "the call was cut off: {answer:?}");
    until("the thread must have gone on", || !is_waited_for(&disk)).await;
    drop(disk);
    for _ in 0..50 {
        nothing_is_left(&staging);
        nothing_is_left(&media);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Some(result)
}
