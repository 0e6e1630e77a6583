//! Rules for server-streaming calls, before the stream and after some messages, in the driver and in a proxy in front of it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use csi_mock_driver::fault::{Rule, RuleKind};
use csi_mock_driver::store::volume_files::FileId;
use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use csi_proto::v1::{self, GetMetadataAllocatedRequest, GetMetadataDeltaRequest};
use serde_json::{Value, json};
use tokio::time;
use tonic::{Code, Status};

use super::proxy::Fronted;
use crate::server::{DEADLINE, Server, connect, lines};

/// A driver with a snapshot of five blocks, and a proxy in front of it. Rules are set on one of the two.
struct Scene {
    fronted: Fronted,
    snapshot: String,
    by_proxy: bool,
}

// === impl Scene ===

impl Scene {
    async fn start(by_proxy: bool) -> Self {
        let behind = Server::start_with(|directory, settings| {
            settings.initial_volumes = 1;
            settings.array.sizes.default = 1 << 20;
            settings.journal = Some(directory.join("journal"));
        })
        .await;
        let medium = FileId::Volume("vol-0".to_owned());
        let disk = behind
            .driver()
            .volume_files
            .ensure(&medium, 1 << 20)
            .await
            .unwrap();
        let disk = fs::OpenOptions::new().write(true).open(disk).unwrap();
        // Every second one, so that each is an extent.
        for block in 0..5 {
            disk.write_all_at(&[1; 4096], 2 * block * 4096).unwrap();
        }
        let request = v1::CreateSnapshotRequest {
            name: "s".to_owned(),
            source_volume_id: "vol-0".to_owned(),
            ..Default::default()
        };
        let taken = behind.controller().await.create_snapshot(request).await.unwrap();
        Self {
            snapshot: taken.into_inner().snapshot.unwrap().snapshot_id,
            fronted: Fronted::before(behind, &[]),
            by_proxy,
        }
    }

    fn put(&self, rule: Value) {
        let rule = Rule::from_value(rule).unwrap();
        let driver = if self.by_proxy {
            self.fronted.front()
        } else {
            self.fronted.behind()
        };
        driver.faults.put(rule).unwrap();
    }

    /// Number of messages, and the status of the stream.
    async fn stream(&self, delta: bool) -> (usize, Result<(), Status>) {
        let mut client = SnapshotMetadataClient::new(connect(&self.fronted.socket()).await);
        let mut count = 0;
        let read = async {
            if delta {
                let request = GetMetadataDeltaRequest {
                    base_snapshot_id: self.snapshot.clone(),
                    target_snapshot_id: self.snapshot.clone(),
                    max_results: 1,
                    ..Default::default()
                };
                let mut stream = client.get_metadata_delta(request).await?.into_inner();
                while stream.message().await?.is_some() {
                    count += 1;
                }
            } else {
                let request = GetMetadataAllocatedRequest {
                    snapshot_id: self.snapshot.clone(),
                    max_results: 1,
                    ..Default::default()
                };
                let mut stream = client.get_metadata_allocated(request).await?.into_inner();
                while stream.message().await?.is_some() {
                    count += 1;
                }
            }
            Ok(())
        };
        let ended = time::timeout(DEADLINE, read).await.expect("must end");
        (count, ended)
    }

    /// Code and fault of the last call in the journal of the process that has the rules.
    fn last_outcome(&self) -> (Value, Value) {
        let journal = if self.by_proxy {
            self.fronted.journal()
        } else {
            self.fronted.behind_journal()
        };
        let lines = lines(&journal);
        let last = lines.iter().rev().find(|line| line["event"] == "end").unwrap();
        (last["code"].clone(), last["fault"].clone())
    }
}

const STREAM: &str = "GetMetadataAllocated";

#[tokio::test]
async fn rules_fail_streams_before_their_first_message() {
    for by_proxy in [false, true] {
        let scene = Scene::start(by_proxy).await;
        assert!(matches!(scene.stream(false).await, (5, Ok(()))));
        scene.put(
            json!({"id": "no", "match": {"method": "GetMetadata*"}, "action": {"code": "UNAVAILABLE"}, "times": 2}),
        );
        for delta in [false, true] {
            let (count, ended) = scene.stream(delta).await;
            assert_eq!((count, ended.unwrap_err().code()), (0, Code::Unavailable));
            assert_eq!(scene.last_outcome(), (json!("UNAVAILABLE"), json!("no")));
        }
        // `phase: after` acts once all messages are known: none is sent.
        scene.put(
            json!({"id": "late", "match": {"method": STREAM}, "phase": "after", "action": {"code": "ABORTED"}, "times": 1}),
        );
        let (count, ended) = scene.stream(false).await;
        assert_eq!((count, ended.unwrap_err().code()), (0, Code::Aborted));
        assert!(
            matches!(scene.stream(false).await, (5, Ok(()))),
            "by proxy: {by_proxy}"
        );
    }
}

#[tokio::test]
async fn streams_fail_after_the_given_number_of_messages() {
    for by_proxy in [false, true] {
        let scene = Scene::start(by_proxy).await;
        // (after-messages, received messages, whether it fails)
        for (after, count) in [(0, 0), (1, 1), (3, 3), (5, 5), (9, 5)] {
            scene.put(
                json!({"id": "cut", "match": {"method": STREAM}, "phase": "after", "times": 1,
                "action": {"after-messages": after, "code": "DATA_LOSS", "message": "half is gone"}}),
            );
            let (came, ended) = scene.stream(false).await;
            let status = ended.unwrap_err();
            assert_eq!(
                (came, status.code(), status.message()),
                (count, Code::DataLoss, "half is gone"),
                "after {after}, by proxy: {by_proxy}"
            );
            assert_eq!(scene.last_outcome(), (json!("DATA_LOSS"), json!("cut")));
            assert!(matches!(scene.stream(false).await, (5, Ok(()))), "once");
        }
    }
}

#[tokio::test]
async fn streams_stall_continue_and_lose_their_connection() {
    for by_proxy in [false, true] {
        let scene = Scene::start(by_proxy).await;
        scene.put(
            json!({"id": "slow", "match": {"method": STREAM}, "phase": "after", "times": 1,
            "action": {"after-messages": 2, "delay": "300ms"}}),
        );
        let begin = time::Instant::now();
        assert!(matches!(scene.stream(false).await, (5, Ok(()))));
        assert!(begin.elapsed() >= Duration::from_millis(300));
        assert_eq!(scene.last_outcome(), (json!("OK"), json!("slow")));

        scene.put(
            json!({"id": "torn", "match": {"method": STREAM}, "phase": "after", "times": 1,
            "action": {"after-messages": 2, "drop-connection": true}}),
        );
        let (count, ended) = scene.stream(false).await;
        assert_eq!(count, 2, "by proxy: {by_proxy}");
        ended.unwrap_err();

        // A stream that fails without the rule does not count as a firing.
        scene.put(
            json!({"id": "cut", "match": {"method": STREAM}, "phase": "after", "times": 1,
            "action": {"after-messages": 2, "code": "INTERNAL"}}),
        );
        let mut client = SnapshotMetadataClient::new(connect(&scene.fronted.socket()).await);
        let unknown = GetMetadataAllocatedRequest {
            snapshot_id: "gone".to_owned(),
            ..Default::default()
        };
        let refused = client.get_metadata_allocated(unknown).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound);
        let (count, ended) = scene.stream(false).await;
        assert_eq!((count, ended.unwrap_err().code()), (2, Code::Internal));
    }
}

#[tokio::test]
async fn without_change_tracking_only_deltas_are_refused() {
    let scene = Scene::start(false).await;
    let fault = json!({"id": "off", "type": "tracking-off"});
    let faults = &scene.fronted.behind().faults;
    faults
        .put(Rule::backend_fault_from_value(fault).unwrap())
        .unwrap();
    let (_, ended) = scene.stream(true).await;
    assert_eq!(ended.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(scene.last_outcome(), (json!("FAILED_PRECONDITION"), json!("off")));
    assert!(matches!(scene.stream(false).await, (5, Ok(()))));
    faults.remove(RuleKind::BackendFault, "off");
    assert!(
        matches!(scene.stream(true).await, (1, Ok(()))),
        "nothing has changed"
    );
}

#[test]
fn after_messages_is_refused_for_unary_calls() {
    for (rule, field, word) in [
        (
            json!({"id": "a", "match": {"method": "Probe"}, "phase": "after", "action": {"after-messages": 1, "code": "ABORTED"}}),
            "action.after-messages",
            "one message",
        ),
        (
            json!({"id": "a", "match": {"method": STREAM}, "action": {"after-messages": 1, "code": "ABORTED"}}),
            "action.after-messages",
            "phase: after",
        ),
        (
            json!({"id": "a", "phase": "after", "action": {"after-messages": 1, "code": "ABORTED"}}),
            "action.after-messages",
            "GetMetadataDelta",
        ),
        (
            json!({"id": "a", "match": {"method": STREAM}, "phase": "after", "action": {"after-messages": 1, "set-state": "x"}}),
            "action.after-messages",
            "must be something",
        ),
    ] {
        let text = Rule::from_value(rule.clone()).unwrap_err().to_string();
        assert!(text.contains(field) && text.contains(word), "{rule}: {text}");
    }
    let foreign = json!({"id": "a", "match": {"method": "/vendor.v1.Copy/Start"}, "phase": "after",
        "action": {"after-messages": 1, "code": "ABORTED"}});
    Rule::from_value(foreign).unwrap();
}
