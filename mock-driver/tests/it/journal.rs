//! Contents of the journal, and redaction of secrets.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use csi_mock_driver::fault::RuleKind;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::{self, CapacityRange};
use jiff::Timestamp;
use serde_json::json;
use tokio::time;
use tonic::Code;

use crate::privilege;
use crate::server::{
    DEADLINE, Server, cancel_after, line_in, lines, mk_block, mk_create, mk_map, mk_publish, mk_unpublish,
};

const SECRET: &str = "hunter2-is-no-good-password";

async fn journalled() -> Server {
    Server::start_with(|directory, settings| {
        settings.initial_volumes = 5;
        settings.journal = Some(directory.join("journal"));
    })
    .await
}

#[tokio::test]
async fn call_has_a_begin_and_an_end_line_with_all_fields() {
    let server = journalled().await;
    let mut client = server.controller().await;
    let request = v1::ControllerPublishVolumeRequest {
        volume_capability: Some(mk_block(Mode::MultiNodeMultiWriter)),
        readonly: true,
        volume_context: mk_map(&[("tier", "gold")]),
        ..mk_publish("vol-0", "node-0")
    };
    client.controller_publish_volume(request).await.unwrap();
    client
        .controller_publish_volume(mk_publish("vol-9", "node-0"))
        .await
        .unwrap_err();

    let lines = lines(&server.path("journal"));
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(
        events,
        ["begin", "end", "begin", "end"],
        "a received response is journaled"
    );
    let (begin, end, refused) = (&lines[0], &lines[1], &lines[3]);
    assert_eq!(begin["request"], end["request"]);
    assert_eq!(begin["call"], end["call"]);
    assert_ne!(end["call"], refused["call"]);
    assert_eq!(end["method"], "/csi.v1.Controller/ControllerPublishVolume");
    assert_eq!(end["code"], "OK");
    assert_eq!(end["message"], "");
    assert_eq!(
        end["request"],
        json!({
            "volume_id": "vol-0",
            "node_id": "node-0",
            "readonly": true,
            "volume_context": {"tier": "gold"},
            "volume_capability": {"block": {}, "access_mode": {"mode": "MULTI_NODE_MULTI_WRITER"}},
        })
    );
    assert!(end["response"]["publish_context"]["device"].is_string(), "{end}");
    assert_eq!(end["peer"]["pid"], std::process::id());

    assert_eq!(refused["code"], "NOT_FOUND");
    assert!(refused["message"].as_str().unwrap().contains("vol-9"));
    assert_eq!(refused.get("response"), None);

    let time = |field: &str| end[field].as_str().unwrap();
    assert_eq!(time("start").len(), "2026-01-01T00:00:00.000000Z".len(), "{end}");
    let (start, stop): (Timestamp, Timestamp) =
        (time("start").parse().unwrap(), time("end").parse().unwrap());
    assert!(start <= stop);
}

#[tokio::test]
async fn sizes_are_numbers() {
    let server = journalled().await;
    let capacity_range = Some(CapacityRange {
        required_bytes: 1 << 30,
        limit_bytes: 0,
    });
    let request = v1::CreateVolumeRequest {
        capacity_range,
        ..mk_create("a")
    };
    server.controller().await.create_volume(request).await.unwrap();
    let end = line_in(&server.path("journal"), |line| line["event"] == "end").await;
    assert_eq!(end["request"]["capacity_range"]["required_bytes"], 1 << 30);
    assert_eq!(end["response"]["volume"]["capacity_bytes"], 1 << 30);
}

#[tokio::test]
async fn no_secret_is_journaled_for_any_outcome() {
    let server = journalled().await;
    let mut client = server.controller().await;
    let secrets = || {
        mk_map(&[
            ("password", SECRET),
            ("again", SECRET),
            ("user", "admin-of-everything"),
        ])
    };
    let create = v1::CreateVolumeRequest {
        secrets: secrets(),
        ..mk_create("a")
    };
    let volume = client
        .create_volume(create)
        .await
        .unwrap()
        .into_inner()
        .volume
        .unwrap()
        .volume_id;
    let publish = v1::ControllerPublishVolumeRequest {
        secrets: secrets(),
        ..mk_publish(&volume, "node-0")
    };
    client.controller_publish_volume(publish.clone()).await.unwrap();
    let refused = v1::ControllerPublishVolumeRequest {
        node_id: "gone".into(),
        ..publish.clone()
    };
    client.controller_publish_volume(refused).await.unwrap_err();
    let malformed = v1::ControllerPublishVolumeRequest {
        volume_id: String::new(),
        ..publish
    };
    client.controller_publish_volume(malformed).await.unwrap_err();
    let unpublish = v1::ControllerUnpublishVolumeRequest {
        secrets: secrets(),
        ..mk_unpublish(&volume, "node-0")
    };
    client.controller_unpublish_volume(unpublish).await.unwrap();
    let validate = v1::ValidateVolumeCapabilitiesRequest {
        volume_id: volume.clone(),
        secrets: secrets(),
        volume_capabilities: vec![mk_block(Mode::SingleNodeWriter)],
        ..Default::default()
    };
    client.validate_volume_capabilities(validate).await.unwrap();
    let delete = v1::DeleteVolumeRequest {
        volume_id: volume,
        secrets: secrets(),
    };
    client.delete_volume(delete).await.unwrap();
    let snapshot = v1::CreateSnapshotRequest {
        secrets: secrets(),
        ..Default::default()
    };
    client.create_snapshot(snapshot).await.unwrap_err();

    let text = fs::read_to_string(server.path("journal")).unwrap();
    assert!(
        !text.contains(SECRET) && !text.contains("admin-of-everything"),
        "{text}"
    );
    let lines = lines(&server.path("journal"));
    assert_eq!(lines.len(), 16);
    for line in &lines {
        let shown = &line["request"]["secrets"];
        assert!(shown["password"].as_str().unwrap().starts_with("hash:"), "{line}");
        assert_eq!(
            shown["password"], shown["again"],
            "equal secrets have equal hashes"
        );
        assert_ne!(shown["password"], shown["user"]);
        assert_eq!(shown, &lines[0]["request"]["secrets"], "in every call");
    }
}

#[tokio::test]
async fn journals_cancelled_call_and_later_the_result_of_its_operation() {
    let server = journalled().await;
    server.set_faults("[{id: held, match: {method: ControllerPublishVolume}, action: {hang: release}}]");
    let faults = &server.driver().faults;
    let is_held = async {
        while faults.reports(RuleKind::Rule)[0].blocked_calls == 0 {
            time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut client = server.controller().await;
    let attach = client.controller_publish_volume(mk_publish("vol-0", "node-0"));
    cancel_after(is_held, attach).await;
    line_in(&server.path("journal"), |line| line["event"] == "end").await;
    assert_eq!(faults.release(Some("held")), Some(1));
    let late = line_in(&server.path("journal"), |line| line["event"] == "late").await;
    let lines = lines(&server.path("journal"));
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["begin", "end", "late"]);
    assert_eq!(lines[1]["code"], "CANCELLED");
    assert_eq!((&late["code"], &late["call"]), (&json!("OK"), &lines[1]["call"]));
}

#[tokio::test]
async fn unimplemented_calls_are_journaled() {
    let server = Server::start_with(|directory, settings| {
        settings.journal = Some(directory.join("journal"));
        settings.capabilities = "-LIST_SNAPSHOTS".parse().unwrap();
    })
    .await;
    let mut client = server.controller().await;
    let status = client
        .list_snapshots(v1::ListSnapshotsRequest::default())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    let end = line_in(&server.path("journal"), |line| line["event"] == "end").await;
    assert_eq!(end["method"], "/csi.v1.Controller/ListSnapshots");
    assert_eq!(end["code"], "UNIMPLEMENTED");
}

#[tokio::test]
async fn journal_is_appended_to() {
    let directory = journalled().await.stop().await;
    let journal = directory.path().join("journal");
    fs::write(&journal, "{\"event\":\"mark\"}\n").unwrap();
    let server = Server::start_with(|_, settings| settings.journal = Some(journal.clone())).await;
    server
        .controller()
        .await
        .list_volumes(v1::ListVolumesRequest::default())
        .await
        .unwrap();
    let lines = lines(&journal);
    assert_eq!(lines[0]["event"], "mark");
    assert_eq!(lines.len(), 3);
}

#[tokio::test]
async fn undecodable_messages_and_unknown_methods_are_journaled() {
    let server = journalled().await;
    // Field 1 of the request is a string; this message has a number there.
    let foreign = v1::ListVolumesRequest {
        max_entries: 7,
        ..Default::default()
    };
    let mut grpc = tonic::client::Grpc::new(server.channel().await);
    for (path, code) in [
        ("/csi.v1.Controller/ControllerPublishVolume", "INTERNAL"),
        ("/csi.v1.Controller/Nope", "UNIMPLEMENTED"),
        ("/vendor.v1.Copy/Start", "UNIMPLEMENTED"),
    ] {
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<v1::ListVolumesRequest, v1::ListVolumesResponse>::default();
        let request = tonic::Request::new(foreign.clone());
        grpc.unary(request, path.parse().unwrap(), codec)
            .await
            .unwrap_err();
        let end = line_in(&server.path("journal"), |line| {
            line["event"] == "end" && line["method"] == path
        })
        .await;
        assert_eq!(end["code"], code, "{end}");
        assert_ne!(end["message"], "", "{end}");
        assert_eq!(end["peer"]["pid"], std::process::id());
    }
    let ends = lines(&server.path("journal"));
    assert_eq!(
        ends.iter().filter(|line| line["event"] == "end").count(),
        3,
        "each once"
    );
}

#[tokio::test]
async fn calls_pass_while_the_journal_is_stalled() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap();
    let reader = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(&pipe)
        .unwrap();
    let server = Server::start_with(|_, settings| {
        settings.initial_volumes = 1;
        settings.journal = Some(pipe.clone());
    })
    .await;
    let calls = async {
        let mut client = server.controller().await;
        // More than a pipe holds.
        let request = v1::ControllerPublishVolumeRequest {
            volume_context: mk_map(&[("x", &"x".repeat(4000))]),
            ..mk_publish("vol-0", "node-0")
        };
        for _ in 0..100 {
            client.controller_publish_volume(request.clone()).await.unwrap();
        }
    };
    time::timeout(DEADLINE, calls)
        .await
        .expect("a stalled reader must not block calls");
    drop(reader);
}

#[tokio::test]
async fn full_disk_leaves_no_part_of_a_line() {
    if !privilege::is_there() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let disk = Tmpfs::mount(directory.path());
    let journal = directory.path().join("journal");
    let server = Server::start_with(|_, settings| {
        settings.initial_volumes = 1;
        settings.journal = Some(journal.clone());
    })
    .await;
    let mut client = server.controller().await;
    let filler = directory.path().join("filler");
    // A page remains, which the lines of some calls fill.
    fs::write(&filler, vec![0; 60 << 10]).unwrap();
    for _ in 0..30 {
        client
            .controller_publish_volume(mk_publish("vol-0", "node-0"))
            .await
            .unwrap();
    }
    let text = fs::read_to_string(&journal).unwrap();
    assert!(text.ends_with('\n') && text.len() < 5000, "{}", text.len());
    fs::remove_file(&filler).unwrap();
    client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
    // Each line is JSON, and one says how many are missing.
    let lines = lines(&journal);
    let (lost, there): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["event"] == "lost");
    let missing: u64 = lost.iter().map(|line| line["lines"].as_u64().unwrap()).sum();
    assert!(missing > 0 && !there.is_empty(), "{lines:?}");
    assert_eq!(missing + u64::try_from(there.len()).unwrap(), 62, "{lost:?}");
    drop((client, server));
    drop(disk);
}

/// A file system of 64 KiB in memory, unmounted when dropped.
struct Tmpfs<'a>(&'a std::path::Path);

impl<'a> Tmpfs<'a> {
    fn mount(on: &'a std::path::Path) -> Self {
        rustix::mount::mount(
            "none",
            on,
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            Some(c"size=64k"),
        )
        .unwrap();
        Self(on)
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}
