//! The state between tests: fixtures and resets.

use std::fs;
use std::path::Path;
use std::time::Duration;

use csi_mock_driver::admin_api::client::{Calls, Client};
use csi_mock_driver::admin_api::query::ResetQuery;
use csi_proto::v1;
use csi_proto::v1::node_client::NodeClient;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tonic::Code;

use crate::program::{Program, command};
use crate::server::{DEADLINE, Server, line_in, mk_create, mk_publish, mk_unpublish, published};

/// A driver as a process, with a state directory and an admin API.
async fn start(directory: &Path, flags: &[&str]) -> (Program, Client) {
    let path = |file: &str| directory.join(file).display().to_string();
    let kept = [
        "--volumes=3".to_owned(),
        format!("--state-dir={}", path("state")),
        format!("--admin-endpoint=unix://{}", path("admin.sock")),
    ];
    let flags = kept
        .into_iter()
        .chain(flags.iter().map(|flag| (*flag).to_owned()));
    let program = Program::start(&directory.join("csi.sock"), flags).await;
    (program, Client::new(path("admin.sock").parse().unwrap()))
}

async fn attached(program: &Program) -> Vec<(String, usize)> {
    let found = published(&mut program.controller().await).await;
    let mut found: Vec<_> = found.into_iter().map(|(id, nodes)| (id, nodes.len())).collect();
    found.sort();
    found
}

#[tokio::test]
async fn driver_starts_from_an_exported_fixture_in_place_of_its_state() {
    let directory = tempfile::tempdir().unwrap();
    let (mut program, admin) = start(directory.path(), &[]).await;
    let mut client = program.controller().await;
    client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
    let fixture = directory.path().join("fixture.json");
    fs::write(&fixture, admin.export().await.unwrap().to_string()).unwrap();
    client
        .controller_publish_volume(mk_publish("vol-1", "node-1"))
        .await
        .unwrap();
    client.create_volume(mk_create("new")).await.unwrap();
    assert_eq!(attached(&program).await.len(), 4);
    program.signal(Signal::KILL);
    program.ended().await;

    let flag = format!("--fixture={}", fixture.display());
    let (mut program, admin) = start(directory.path(), &[&flag]).await;
    let expected = [("vol-0", 1), ("vol-1", 0), ("vol-2", 0)].map(|(id, nodes)| (id.to_owned(), nodes));
    assert_eq!(attached(&program).await, expected);
    let mut client = program.controller().await;
    client
        .controller_publish_volume(mk_publish("vol-2", "node-2"))
        .await
        .unwrap();
    admin.reset(&ResetQuery::default()).await.unwrap();
    assert_eq!(
        attached(&program).await,
        expected,
        "a reset returns to the fixture"
    );
    program.signal(Signal::KILL);
    program.ended().await;

    let (program, _) = start(directory.path(), &[]).await;
    assert_eq!(
        attached(&program).await,
        expected,
        "it is the stored state from then on"
    );
}

#[tokio::test]
async fn imported_state_is_listed_and_a_contradiction_changes_nothing() {
    let (server, admin) = Server::start_administered(|_, settings| settings.initial_volumes = 2).await;
    let volume = |id: &str, name: &str, pool: &str| json!({"spec": {"id": id, "name": name, "capacity_bytes": 1 << 20, "pool": pool}});
    let attachment = json!({"number": 7, "capability": {"access": "block", "mode": "MULTI_NODE_MULTI_WRITER"}, "readonly": false});
    let mut shared = volume("shared", "pvc-1", "pool-0");
    shared["spec"]["capabilities"] = json!([{"access": {"mount": {"fs_type": "", "flags": [], "group": ""}}, "mode": "SINGLE_NODE_WRITER"}]);
    shared["attachments"] = json!({"node-0": attachment, "node-1": attachment});
    admin
        .import(&json!({"volumes": [shared, volume("b", "", "pool-0")]}))
        .await
        .unwrap();
    let mut client = server.controller().await;
    let listed = |listed: Vec<(String, Vec<String>)>| -> Vec<(String, String)> {
        listed
            .into_iter()
            .map(|(id, nodes)| (id, nodes.join(" ")))
            .collect()
    };
    let expected =
        [("b", ""), ("shared", "node-0 node-1")].map(|(id, nodes)| (id.to_owned(), nodes.to_owned()));
    assert_eq!(listed(published(&mut client).await), expected);
    // Idempotent by the name of the fixture.
    let again = client
        .create_volume(mk_create("pvc-1"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(again.volume.unwrap().volume_id, "shared");
    // (fixture, words of the error)
    let table = [
        (json!({"volumes": [volume("a", "", "pool-9")]}), "pool-0"),
        (
            json!({"volumes": [volume("a", "", "pool-0"), volume("a", "", "pool-0")]}),
            "twice",
        ),
        (
            json!({"volumes": [volume("a", "n", "pool-0"), volume("c", "n", "pool-0")]}),
            "twice",
        ),
        (json!({"volumes": [{"spec": {"id": "a", "size": 5}}]}), "size"),
        (json!({"disks": []}), "disks"),
    ];
    for (fixture, words) in table {
        let refused = admin.import(&fixture).await.unwrap_err().to_string();
        assert!(refused.contains(words), "{fixture}: {refused}");
    }
    assert_eq!(listed(published(&mut client).await), expected);
}

#[tokio::test]
async fn reset_returns_to_the_state_after_the_start() {
    let (server, admin) = Server::start_administered(|directory, settings| {
        settings.initial_volumes = 2;
        settings.journal = Some(directory.join("journal"));
        fs::write(
            directory.join("faults.yaml"),
            "[{id: f, match: {method: Probe}, action: {delay: 1ms}, times: 3}]",
        )
        .unwrap();
        settings.faults = Some(directory.join("faults.yaml"));
    })
    .await;
    let mut client = server.controller().await;
    client.create_volume(mk_create("new")).await.unwrap();
    client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
    let hang = json!({"id": "h", "match": {"method": "ControllerPublishVolume", "volume": "vol-1"}, "action": {"hang": "release"}});
    admin.put_fault(&hang).await.unwrap();
    admin.set_fault("f", false).await.unwrap();
    admin.set_scenario("array-busy", true).await.unwrap();
    admin
        .put_backend_fault(&json!({"id": "b", "type": "busy", "volume": "x"}))
        .await
        .unwrap();
    admin.set_capability("LIST_VOLUMES", false).await.unwrap();
    let mut other = client.clone();
    let mut hanging = JoinSet::new();
    hanging.spawn(async move {
        other
            .controller_publish_volume(mk_publish("vol-1", "node-1"))
            .await
            .map(drop)
    });
    line_in(&server.path("journal"), |line| {
        line["event"] == "begin" && line["request"]["volume_id"] == "vol-1"
    })
    .await;
    admin
        .wait(&Calls::all().volume("vol-1").fault("h").running(), 1, "10s")
        .await
        .unwrap();

    admin.reset(&ResetQuery::default()).await.unwrap();
    hanging.join_next().await.unwrap().unwrap().ok();
    let rules = admin.faults().await.unwrap().rules;
    let ids: Vec<_> = rules
        .iter()
        .map(|rule| (rule.id.as_str(), rule.enabled))
        .collect();
    assert_eq!(ids, [("f", true)]);
    assert!(admin.backend_faults().await.unwrap().is_empty());
    let ended = admin.journal(&Calls::of("CreateVolume")).await.unwrap();
    assert_eq!(ended.items.len(), 0, "the journal is empty");
    let listed = published(&mut client).await;
    let ids: Vec<_> = listed.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["vol-0", "vol-1"]);
    assert!(listed[0].1.is_empty(), "{listed:?}");
    assert_eq!(
        client
            .controller_publish_volume(mk_publish("vol-0", "node-1"))
            .await
            .map(drop)
            .map_err(|status| status.code()),
        Ok::<(), Code>(())
    );
}

#[tokio::test]
async fn reset_opens_a_socket_that_a_rule_has_removed() {
    let (server, admin) = Server::start_administered(|_, _| {}).await;
    let rule = json!({"id": "away", "match": {"method": "Probe"}, "action": {"socket-away": "1h"}});
    admin.put_fault(&rule).await.unwrap();
    let probe = || v1::ProbeRequest {};
    server.identity().await.probe(probe()).await.unwrap_err();
    let socket = server.path("csi.sock");
    let until = async |is_there: bool| {
        let changed = async {
            while UnixStream::connect(&socket).await.is_ok() != is_there {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, changed).await.unwrap();
    };
    until(false).await;
    admin.reset(&ResetQuery::default()).await.unwrap();
    until(true).await;
    server.identity().await.probe(probe()).await.unwrap();
}

/// A hand-written fixture has no counters.
#[tokio::test]
async fn context_of_an_imported_attachment_is_stale_after_the_next_attachments() {
    let (server, admin) = Server::start_administered(|_, _| {}).await;
    let attachment = json!({"number": 2, "capability": {"access": "block", "mode": "SINGLE_NODE_WRITER"}, "readonly": false});
    let volume = json!({"spec": {"id": "a", "capacity_bytes": 1 << 20, "pool": "pool-0"}, "attachments": {"node-0": attachment}});
    admin.import(&json!({"volumes": [volume]})).await.unwrap();
    let mut client = server.controller().await;
    client
        .controller_unpublish_volume(mk_unpublish("a", "node-0"))
        .await
        .unwrap();
    client
        .controller_publish_volume(mk_publish("a", "node-0"))
        .await
        .unwrap();
    let exported = admin.export().await.unwrap();
    assert_eq!(
        exported["volumes"][0]["attachments"]["node-0"]["number"], 3,
        "{exported}"
    );
}

#[test]
fn ready_file_of_an_earlier_driver_is_removed_by_a_start_that_fails() {
    let directory = tempfile::tempdir().unwrap();
    let path = |file: &str| directory.path().join(file);
    fs::write(path("ready.json"), "{}").unwrap();
    let mut driver = command(&path("csi.sock"));
    driver.arg(format!("--ready-file={}", path("ready.json").display()));
    driver.arg(format!("--fixture={}", path("missing.yaml").display()));
    assert!(!driver.output().unwrap().status.success());
    assert!(!path("ready.json").exists());
}

#[tokio::test]
async fn ready_file_names_the_sockets_of_a_driver_that_listens() {
    let directory = tempfile::tempdir().unwrap();
    let path = |file: &str| directory.path().join(file);
    let mut driver = command(&path("csi.sock"));
    driver.arg(format!("--ready-file={}", path("ready.json").display()));
    driver.arg(format!(
        "--admin-endpoint=unix://{}",
        path("admin.sock").display()
    ));
    let mut program = Program::run(driver, &path("csi.sock")).await;
    // A connection waits in the socket's queue; an answer comes after the file.
    published(&mut program.controller().await).await;
    let ready: Value = serde_json::from_str(&fs::read_to_string(path("ready.json")).unwrap()).unwrap();
    assert_eq!(
        ready["endpoint"],
        format!("unix://{}", path("csi.sock").display())
    );
    assert_eq!(
        ready["adminEndpoint"],
        format!("unix://{}", path("admin.sock").display())
    );
    assert!(ready["pid"].as_u64().is_some_and(|pid| pid > 1));
    assert_eq!(ready["driver"], "mock.csi.local");
    program.signal(Signal::TERM);
    assert!(program.ended().await.success());
    assert!(!path("ready.json").exists(), "a driver that ends is not ready");
}

#[tokio::test]
async fn volume_of_the_fixture_can_be_staged_after_a_reset() {
    let directory = tempfile::tempdir().unwrap();
    let node = ["--node-id=node-0", "--devices=emulated"];
    let (mut program, admin) = start(directory.path(), &node).await;
    let attach = || mk_publish("vol-0", "node-0");
    let mut controller = program.controller().await;
    controller.controller_publish_volume(attach()).await.unwrap();
    let fixture = directory.path().join("fixture.json");
    fs::write(&fixture, admin.export().await.unwrap().to_string()).unwrap();
    program.signal(Signal::KILL);
    program.ended().await;

    let flag = format!("--fixture={}", fixture.display());
    let (program, admin) = start(directory.path(), &[node[0], node[1], &flag]).await;
    admin.reset(&ResetQuery::default()).await.unwrap();
    let mut controller = program.controller().await;
    let attached = controller.controller_publish_volume(attach()).await.unwrap();
    let staging = directory.path().join("staging");
    fs::create_dir(&staging).unwrap();
    let request = v1::NodeStageVolumeRequest {
        volume_id: "vol-0".to_owned(),
        publish_context: attached.into_inner().publish_context,
        staging_target_path: staging.display().to_string(),
        volume_capability: attach().volume_capability,
        ..Default::default()
    };
    let mut node = NodeClient::new(program.channel().await);
    node.node_stage_volume(request).await.unwrap();
}

/// A test that failed leaves its volumes published.
#[tokio::test]
async fn forced_reset_unpublishes_what_the_node_uses() {
    let directory = tempfile::tempdir().unwrap();
    let (program, admin) = start(directory.path(), &["--node-id=node-0", "--devices=emulated"]).await;
    let attach = mk_publish("vol-0", "node-0");
    let mut controller = program.controller().await;
    let attached = controller
        .controller_publish_volume(attach.clone())
        .await
        .unwrap();
    let (staging, target) = (directory.path().join("staging"), directory.path().join("target"));
    fs::create_dir(&staging).unwrap();
    let stage = v1::NodeStageVolumeRequest {
        volume_id: "vol-0".to_owned(),
        publish_context: attached.into_inner().publish_context,
        staging_target_path: staging.display().to_string(),
        volume_capability: attach.volume_capability,
        ..Default::default()
    };
    let publish = v1::NodePublishVolumeRequest {
        volume_id: stage.volume_id.clone(),
        publish_context: stage.publish_context.clone(),
        staging_target_path: stage.staging_target_path.clone(),
        target_path: target.display().to_string(),
        volume_capability: stage.volume_capability.clone(),
        ..Default::default()
    };
    let mut node = NodeClient::new(program.channel().await);
    node.node_stage_volume(stage).await.unwrap();
    node.node_publish_volume(publish).await.unwrap();
    let refused = admin.reset(&ResetQuery::default()).await.unwrap_err();
    assert!(refused.to_string().contains("vol-0"), "{refused}");
    admin.reset(&ResetQuery { force: Some(true) }).await.unwrap();
    assert!(fs::symlink_metadata(&target).is_err());
    admin.reset(&ResetQuery::default()).await.unwrap();
}

#[tokio::test]
async fn driver_stops_when_stdin_ends() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let mut driver = command(&socket);
    let (reader, writer) = std::io::pipe().unwrap();
    driver.arg("--stop-on-stdin-eof").stdin(reader);
    let mut program = Program::run(driver, &socket).await;
    published(&mut program.controller().await).await;
    drop(writer);
    assert!(program.ended().await.success());
}

#[tokio::test]
async fn fixture_that_no_requests_could_create_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (program, admin) = start(directory.path(), &[]).await;
    let volume = |id: &str, bytes: u64, attachments: Value| json!({"spec": {"id": id, "capacity_bytes": bytes, "pool": "pool-0"}, "attachments": attachments});
    let none = || json!({});
    let exported = {
        let mut client = program.controller().await;
        client
            .controller_publish_volume(mk_publish("vol-0", "node-0"))
            .await
            .unwrap();
        admin.export().await.unwrap()
    };
    let attachment = exported["volumes"][0]["attachments"]["node-0"].clone();
    // (volumes, parts of the error)
    let table = [
        (vec![volume("", 1, none())], "volumes: an id is empty"),
        (vec![volume(&"x".repeat(300), 1, none())], "longer than 128 bytes"),
        (vec![volume("a", 0, none())], "volumes: \"a\" has no bytes"),
        (
            vec![volume("a", 1, none()), volume("a", 1, none())],
            "is there twice: remove one",
        ),
        (
            vec![volume("a", 1, json!({"elsewhere": attachment}))],
            "\"elsewhere\", which is no node",
        ),
    ];
    for (volumes, part) in table {
        let refused = admin
            .import(&json!({ "volumes": volumes }))
            .await
            .unwrap_err()
            .to_string();
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(attached(&program).await.len(), 3, "nothing has changed");
    admin.import(&exported).await.unwrap();
}
