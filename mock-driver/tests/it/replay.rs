//! Recorded journals as drivers.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use csi_mock_driver::run::replay::command_line;
use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::program::{Program, command};
use crate::server::{lines, mk_create, mk_publish, mk_unpublish, published};

/// The deadline of each call.
const PATIENCE: Duration = Duration::from_secs(2);

fn within<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(PATIENCE);
    request
}

/// A client's calls, with what came back: codes, publish contexts, and lists of attachments.
async fn use_driver(program: &Program) -> Vec<String> {
    let mut seen = Vec::new();
    let mut client: ControllerClient<Channel> = program.controller().await;
    for round in 0..2 {
        for volume in ["vol-0", "vol-1", "vol-2"] {
            let reply = client
                .controller_publish_volume(within(mk_publish(volume, "node-0")))
                .await;
            seen.push(match reply {
                Ok(reply) => format!("publish {:?}", reply.into_inner().publish_context.get("device")),
                Err(status) => format!("publish {:?}", status.code()),
            });
            // A connection that a rule closed is opened again.
            client = program.controller().await;
        }
        let created = client
            .create_volume(within(mk_create(&format!("new-{round}"))))
            .await;
        seen.push(format!(
            "create {:?}",
            created.map_or_else(|status| status.code(), |_| Code::Ok)
        ));
        for volume in ["vol-0", "vol-1"] {
            let reply = client
                .controller_unpublish_volume(within(mk_unpublish(volume, "node-0")))
                .await;
            seen.push(format!(
                "unpublish {:?}",
                reply.map_or_else(|status| status.code(), |_| Code::Ok)
            ));
            client = program.controller().await;
        }
        let mut listed = published(&mut client).await;
        listed.sort();
        // The ids of created volumes differ between runs of one driver, not between a driver and its replay.
        seen.push(format!("{listed:?}"));
    }
    seen
}

async fn replay(directory: &Path, journal: &Path) -> Program {
    let socket = directory.join("replay.sock");
    let driver = command(&socket);
    let mut replay = Command::new(driver.get_program());
    let tmp = directory.join("tmp");
    fs::create_dir_all(&tmp).unwrap();
    replay.env("TMPDIR", tmp).arg("replay").args(driver.get_args());
    replay.arg(format!("--journal={}", journal.display()));
    Program::run(replay, &socket).await
}

#[tokio::test]
async fn replay_reproduces_the_failures_of_recorded_scenarios() {
    let scenarios = [
        "array-busy",
        "attach-full",
        "attach-uncertain",
        "create-exhausted",
        "detach-fails",
        "detach-hangs",
        "detach-lost",
        "flaky-10pct",
        "limit-lie",
        "list-lies",
    ];
    let mut differing = Vec::new();
    for scenario in scenarios {
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("journal");
        let flags = [
            "--volumes=3".to_owned(),
            format!("--scenario={scenario}"),
            format!("--journal={}", journal.display()),
        ];
        let program = Program::start(&directory.path().join("csi.sock"), flags).await;
        let recorded = use_driver(&program).await;
        drop(program);
        let program = replay(directory.path(), &journal).await;
        let replayed = use_driver(&program).await;
        if recorded != replayed {
            differing.push((scenario, recorded, replayed));
        }
    }
    // Nine of ten.
    assert!(differing.len() <= 1, "{differing:#?}");
}

#[tokio::test]
async fn calls_that_the_recording_does_not_have_are_refused_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    let flags = [
        "--volumes=2".to_owned(),
        format!("--journal={}", journal.display()),
    ];
    let program = Program::start(&directory.path().join("csi.sock"), flags).await;
    let mut client = program.controller().await;
    client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
    drop(program);
    let program = replay(directory.path(), &journal).await;
    let mut client = program.controller().await;
    client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
    for volume in ["vol-0", "vol-1"] {
        let refused = client
            .controller_publish_volume(mk_publish(volume, "node-0"))
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{volume}");
        assert!(
            refused.message().contains("the recording has no such call"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn journal_of_a_driver_that_was_started_twice_is_replayed_whole() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    let flag = format!("--journal={}", journal.display());
    for volume in ["vol-0", "vol-1"] {
        let flags = ["--volumes=2".to_owned(), flag.clone()];
        let program = Program::start(&directory.path().join("csi.sock"), flags).await;
        let mut client = program.controller().await;
        client
            .controller_publish_volume(mk_publish(volume, "node-0"))
            .await
            .unwrap();
    }
    let program = replay(directory.path(), &journal).await;
    let mut client = program.controller().await;
    for volume in ["vol-0", "vol-1"] {
        client
            .controller_publish_volume(mk_publish(volume, "node-0"))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn recorded_braces_are_no_templates() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    let line = json!({"event": "end", "call": 1, "method": "/csi.v1.Controller/ControllerPublishVolume",
        "start": "2026-01-01T00:00:00.000000Z", "end": "2026-01-01T00:00:01.000000Z", "code": "OK", "message": "",
        "request": {"volume_id": "a", "node_id": "node-0"}, "response": {"publish_context": {"device": "{{request.x}} {{"}}});
    fs::write(&journal, format!("{line}\n")).unwrap();
    let program = replay(directory.path(), &journal).await;
    let mut client = program.controller().await;
    let reply = client
        .controller_publish_volume(mk_publish("a", "node-0"))
        .await
        .unwrap();
    assert_eq!(reply.into_inner().publish_context["device"], "{{request.x}} {{");
}

/// A line of a call that ended.
fn mk_line(number: u64, method: &str, request: Value, response: Option<Value>) -> String {
    let mut line = json!({"event": "end", "call": number, "method": format!("/csi.v1.{method}"),
        "start": "2026-01-01T00:00:00.000000Z", "end": "2026-01-01T00:00:01.000000Z", "code": "OK", "message": "",
        "request": request});
    if let Some(response) = response {
        line["response"] = response;
    }
    format!("{line}\n")
}

#[tokio::test]
async fn call_for_another_node_or_page_is_a_departure() {
    let page = |volume: &str, next: &str| {
        Some(json!({"entries": [{"volume": {"volume_id": volume}}], "next_token": next}))
    };
    let publish = "Controller/ControllerPublishVolume";
    let recorded = [
        mk_line(1, "Controller/ListVolumes", json!({}), page("a", "2")),
        mk_line(
            2,
            "Controller/ListVolumes",
            json!({"starting_token": "2"}),
            page("b", ""),
        ),
        mk_line(
            3,
            publish,
            json!({"volume_id": "a", "node_id": "node-0"}),
            Some(json!({})),
        ),
        mk_line(
            4,
            publish,
            json!({"volume_id": "a", "node_id": "node-1"}),
            Some(json!({})),
        ),
    ];
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    fs::write(&journal, recorded.concat()).unwrap();
    let program = replay(directory.path(), &journal).await;
    let mut client = program.controller().await;
    for _ in 0..2 {
        for (token, expected) in [("", "a"), ("2", "b")] {
            let request = v1::ListVolumesRequest {
                starting_token: token.to_owned(),
                ..Default::default()
            };
            let entries = client.list_volumes(request).await.unwrap().into_inner().entries;
            assert_eq!(entries[0].volume.as_ref().unwrap().volume_id, expected);
        }
    }
    let unknown = v1::ListVolumesRequest {
        starting_token: "3".to_owned(),
        ..Default::default()
    };
    let departed = client.list_volumes(unknown).await.unwrap_err();
    assert_eq!(departed.code(), Code::FailedPrecondition);
    for (node, code) in [
        ("node-2", Code::FailedPrecondition),
        ("node-1", Code::Ok),
        ("node-1", Code::FailedPrecondition),
        ("node-0", Code::Ok),
    ] {
        let reply = client.controller_publish_volume(mk_publish("a", node)).await;
        assert_eq!(
            reply.map_or_else(|status| status.code(), |_| Code::Ok),
            code,
            "{node}"
        );
    }
}

/// A proxy does not read the messages of a stream.
#[tokio::test]
async fn stream_without_recorded_messages_is_a_departure_and_a_killed_replay_leaves_no_stubs() {
    let method = "SnapshotMetadata/GetMetadataAllocated";
    let line = mk_line(1, method, json!({"snapshot_id": "s"}), None);
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    fs::write(&journal, line).unwrap();
    let program = replay(directory.path(), &journal).await;
    let request = v1::GetMetadataAllocatedRequest {
        snapshot_id: "s".to_owned(),
        ..Default::default()
    };
    let mut client = SnapshotMetadataClient::new(program.channel().await);
    let departed = client
        .get_metadata_allocated(request)
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(departed.code(), Code::FailedPrecondition);
    drop(program);
    for left in fs::read_dir(directory.path().join("tmp")).unwrap() {
        let name = left.unwrap().file_name().into_string().unwrap();
        assert!(
            name.starts_with("csi-mock-driver-"),
            "`clean` does not remove {name}"
        );
    }
}

#[test]
fn journal_with_dropped_calls_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    let line = json!({"event": "lost", "time": "2026-01-01T00:00:00.000000Z", "lines": 3});
    fs::write(&journal, format!("{line}\n")).unwrap();
    let words = [
        "csi-mock-driver".to_owned(),
        "replay".to_owned(),
        format!("--journal={}", journal.display()),
    ];
    let refused = command_line(&words.map(OsString::from)).unwrap_err().to_string();
    assert!(
        refused.contains("line 1") && refused.contains("has dropped calls"),
        "{refused}"
    );
}

#[tokio::test]
async fn recording_without_secrets_is_replayed_without_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    let flags = [
        "--volumes=1".to_owned(),
        format!("--journal={}", journal.display()),
    ];
    let program = Program::start(&directory.path().join("csi.sock"), flags).await;
    let mut request = mk_publish("vol-0", "node-0");
    request.secrets = [("password".to_owned(), "hush-hush".to_owned())].into();
    program
        .controller()
        .await
        .controller_publish_volume(request.clone())
        .await
        .unwrap();
    drop(program);
    assert!(!fs::read_to_string(&journal).unwrap().contains("hush-hush"));
    assert!(lines(&journal).iter().any(|line| line["code"] == json!("OK")));
    let program = replay(directory.path(), &journal).await;
    program
        .controller()
        .await
        .controller_publish_volume(request)
        .await
        .unwrap();
}

#[test]
fn replay_without_a_journal_says_how_it_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let driver = command(&directory.path().join("x.sock"));
    let missing = directory.path().join("missing").display().to_string();
    for flags in [&[][..], &["--journal", &missing]] {
        let ended = Command::new(driver.get_program())
            .arg("replay")
            .args(flags)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && text.contains("--journal"), "{text}");
    }
}

/// The recorded snapshots of a volume by their names.
fn mk_snapshot_lines(names: &[&str]) -> Vec<String> {
    let line = |(number, name): (u64, &&str)| {
        let snapshot = json!({"snapshot_id": format!("id-of-{name}"), "source_volume_id": "vol-0"});
        let request = json!({"source_volume_id": "vol-0", "name": name});
        let reply = json!({ "snapshot": snapshot });
        mk_line(number, "Controller/CreateSnapshot", request, Some(reply))
    };
    (1..).zip(names).map(line).collect()
}

async fn snapshot(program: &Program, name: &str) -> Result<String, Code> {
    let request = v1::CreateSnapshotRequest {
        source_volume_id: "vol-0".to_owned(),
        name: name.to_owned(),
        ..Default::default()
    };
    let reply = program.controller().await.create_snapshot(request).await;
    reply
        .map(|reply| reply.into_inner().snapshot.unwrap().snapshot_id)
        .map_err(|status| status.code())
}

#[tokio::test]
async fn snapshots_of_a_volume_are_replayed_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let journal = directory.path().join("journal");
    fs::write(&journal, mk_snapshot_lines(&["a", "b"]).concat()).unwrap();
    let program = replay(directory.path(), &journal).await;
    assert_eq!(snapshot(&program, "b").await, Ok("id-of-b".to_owned()));
    assert_eq!(snapshot(&program, "c").await, Err(Code::FailedPrecondition));
    assert_eq!(snapshot(&program, "a").await, Ok("id-of-a".to_owned()));
}

#[tokio::test]
async fn rotated_journal_is_replayed_from_its_begin() {
    let directory = tempfile::tempdir().unwrap();
    let (journal, before) = (
        directory.path().join("journal"),
        directory.path().join("journal.1"),
    );
    let lines = mk_snapshot_lines(&["a", "b", "c"]);
    fs::write(&before, &lines[0]).unwrap();
    fs::write(&journal, lines[1..].concat()).unwrap();
    let program = replay(directory.path(), &journal).await;
    for name in ["a", "b", "c"] {
        assert_eq!(snapshot(&program, name).await, Ok(format!("id-of-{name}")));
    }
    drop(program);
    // The file with the first call was replaced by a later one.
    fs::write(&before, &lines[1]).unwrap();
    fs::write(&journal, &lines[2]).unwrap();
    let words = ["csi-mock-driver", "replay", "--journal"].map(OsString::from);
    let words = [&words[..], &[journal.into_os_string()]].concat();
    let refused = command_line(&words).unwrap_err().to_string();
    assert!(refused.contains("--journal-max-size"), "{refused}");
}
