//! Actions of rules other than codes and delays: background, edits, connections, sockets and exits.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use csi_mock_driver::fault::{Exit, Rule, RuleKind};
use csi_mock_driver::run;
use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use serde_json::json;
use tokio::time::{self, Instant};
use tonic::Code;

use super::{nodes_of, publish, unpublish, with_rules};
use crate::program::Program;
use crate::server::{DEADLINE, Server, connect, line_in, lines, mk_map, mk_publish};

#[tokio::test]
async fn background_rule_responds_immediately_and_attaches_later() {
    let (server, mut client) = with_rules(&[
        "{id: late, match: {method: ControllerPublishVolume}, phase: background, \
          action: {hang: release}, times: 1}",
        "{id: odd, match: {method: ControllerUnpublishVolume}, phase: background, \
          action: {delay: 100ms, code: UNKNOWN, message: who knows}, times: 1}",
    ])
    .await;
    let journal = server.path("journal");
    let status = client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("\"late\""), "{status}");
    assert!(nodes_of(&mut client, "vol-0").await.is_empty(), "not yet");
    assert_eq!(
        publish(&mut client, "vol-0", "node-0").await,
        Code::Aborted,
        "the work goes on"
    );

    assert_eq!(server.driver().faults.release(Some("late")), Some(1));
    let late = line_in(&journal, |line| line["event"] == "late").await;
    assert_eq!(late["code"], "OK");
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);
    let end = line_in(&journal, |line| {
        line["event"] == "end" && line["call"] == late["call"]
    })
    .await;
    assert_eq!(
        (&end["code"], &end["fault"]),
        (&json!("DEADLINE_EXCEEDED"), &json!("late"))
    );

    assert_eq!(unpublish(&mut client, "vol-0", "node-0").await, Code::Unknown);
    line_in(&journal, |line| {
        line["event"] == "late" && line["method"] == "/csi.v1.Controller/ControllerUnpublishVolume"
    })
    .await;
    assert!(nodes_of(&mut client, "vol-0").await.is_empty());
}

#[tokio::test]
async fn released_hang_continues_with_the_call_or_its_code() {
    let (server, client) = with_rules(&[
        "{id: held, match: {method: ControllerPublishVolume, volume: vol-0}, action: {hang: release}}",
        "{id: coded, match: {method: ControllerPublishVolume, volume: vol-1}, phase: after, \
          action: {hang: release, code: INTERNAL}}",
    ])
    .await;
    for (rule, volume, code) in [("held", "vol-0", Code::Ok), ("coded", "vol-1", Code::Internal)] {
        let mut calling = client.clone();
        let (response, ()) = tokio::join!(publish(&mut calling, volume, "node-0"), async {
            let faults = &server.driver().faults;
            let holds = || {
                faults
                    .reports(RuleKind::Rule)
                    .iter()
                    .any(|report| report.id == rule && report.blocked_calls == 1)
            };
            while !holds() {
                tokio::task::yield_now().await;
            }
            assert_eq!(faults.release(Some(rule)), Some(1));
        });
        assert_eq!(response, code, "{rule}");
        let mut client = client.clone();
        assert_eq!(nodes_of(&mut client, volume).await, ["node-0"], "{rule}");
    }
}

#[tokio::test]
async fn edit_changes_the_response_and_not_the_array() {
    let (_server, mut client) = with_rules(&[
        "{id: device, match: {method: ControllerPublishVolume}, phase: after, \
          action: {edit: {publish_context.device: /dev/other, publish_context.serial: null}}}",
        "{id: nodes, match: {method: ListVolumes, call: 2}, phase: after, \
          action: {edit: {'entries.*.status.published_node_ids': [ghost]}}}",
    ])
    .await;
    let reply = client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
    let context = reply.into_inner().publish_context;
    assert_eq!(context["device"], "/dev/other");
    assert!(
        !context.contains_key("serial") && context.contains_key("attachment"),
        "{context:?}"
    );
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["ghost"]);
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);
}

#[tokio::test]
async fn capabilities_are_lost_after_the_chosen_call() {
    let (_server, mut client) = with_rules(&[
        "{id: downgrade, match: {method: ControllerPublishVolume, call: 2}, phase: after, \
          action: {capabilities: {LIST_VOLUMES: false, PUBLISH_UNPUBLISH_VOLUME: false}}}",
    ])
    .await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);
    assert_eq!(
        publish(&mut client, "vol-1", "node-0").await,
        Code::Ok,
        "it has its effect"
    );
    assert_eq!(publish(&mut client, "vol-2", "node-0").await, Code::Unimplemented);
    let refused = client.list_volumes(v1::ListVolumesRequest::default()).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn dropped_connection_disconnects_only_its_caller() {
    for (phase, attached) in [("before", false), ("after", true)] {
        let (server, mut other) = with_rules(&[&format!(
            "{{id: cut, match: {{method: ControllerPublishVolume}}, phase: {phase}, \
              action: {{drop-connection: true}}, times: 1}}"
        )])
        .await;
        nodes_of(&mut other, "vol-0").await;
        let mut client = server.controller().await;
        let status = client
            .controller_publish_volume(mk_publish("vol-0", "node-0"))
            .await
            .unwrap_err();
        assert!(
            [Code::Unavailable, Code::Unknown, Code::Cancelled].contains(&status.code()),
            "{phase}: {status}"
        );
        let end = line_in(&server.path("journal"), |line| line["fault"] == "cut").await;
        assert_eq!(end["code"], "CANCELLED", "{phase}");
        let is_attached = !nodes_of(&mut other, "vol-0").await.is_empty();
        assert_eq!(is_attached, attached, "{phase}");
        assert_eq!(publish(&mut other, "vol-0", "node-0").await, Code::Ok, "{phase}");
    }
}

#[tokio::test]
async fn socket_closes_with_all_connections_and_reopens() {
    let (server, mut client) = with_rules(&[
        "{id: away, match: {method: ControllerPublishVolume}, phase: after, \
          action: {socket-away: 300ms}, times: 1}",
    ])
    .await;
    let socket = server.path("csi.sock");
    let start = Instant::now();
    client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap_err();
    let back = async {
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    time::timeout(DEADLINE, back).await.expect("must reopen");
    assert!(start.elapsed() >= Duration::from_millis(300));
    let mut client = ControllerClient::new(connect(&socket).await);
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);

    // Recreated while the connection stays open. The inode number may be reused, but the change time differs.
    let identity = |meta: std::fs::Metadata| (meta.ino(), meta.ctime(), meta.ctime_nsec());
    let before = std::fs::metadata(&socket).map(identity).unwrap();
    server.driver().socket_control.renew();
    let renewed = async {
        loop {
            match std::fs::metadata(&socket).map(identity) {
                Ok(now) if now != before => return,
                _ => tokio::task::yield_now().await,
            }
        }
    };
    time::timeout(DEADLINE, renewed).await.expect("must be recreated");
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);
}

#[tokio::test]
async fn all_connections_are_closed_on_request() {
    let server = Server::start().await;
    let (mut one, mut two) = (server.controller().await, server.controller().await);
    for client in [&mut one, &mut two] {
        nodes_of(client, "vol-0").await;
    }
    assert_eq!(server.driver().socket_control.connections(), 2);
    assert_eq!(server.driver().socket_control.cut_all(), 2);
    let gone = async {
        while server.driver().socket_control.connections() > 0 {
            tokio::task::yield_now().await;
        }
    };
    time::timeout(DEADLINE, gone).await.expect("must be gone");
    let mut again = server.controller().await;
    assert_eq!(publish(&mut again, "vol-0", "node-0").await, Code::Ok);
}

#[tokio::test]
async fn exit_ends_the_driver_with_its_status_after_the_delay() {
    let (mut server, mut client) = with_rules(&[
        "{id: ends, match: {method: ControllerPublishVolume}, action: {delay: 200ms, exit: 7}}",
    ])
    .await;
    let start = Instant::now();
    client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(200));
    let ended = server.ended().await.unwrap_err();
    assert!(matches!(ended, run::Error::Ordered(Exit::Status(7))), "{ended}");
    assert!(!server.path("csi.sock").exists());

    let directory = tempfile::tempdir().unwrap();
    let path = |file: &str| directory.path().join(file);
    let rules = "- {id: ends, match: {method: ControllerPublishVolume}, action: {exit: 7}}";
    std::fs::write(path("faults"), rules).unwrap();
    let flags = [
        format!("--faults={}", path("faults").display()),
        "--volumes=1".to_owned(),
    ];
    let mut program = Program::start(&path("csi.sock"), flags).await;
    let mut client = program.controller().await;
    client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap_err();
    assert_eq!(program.ended().await.code(), Some(7));
}

#[tokio::test]
async fn effect_survives_a_kill_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = |file: &str| directory.path().join(file);
    let rules = "- {id: dies, match: {method: ControllerPublishVolume}, phase: after, action: {exit: kill}}";
    std::fs::write(path("faults"), rules).unwrap();
    let state = format!("--state-dir={}", path("state").display());
    let faults = format!("--faults={}", path("faults").display());
    let flags = [faults.as_str(), state.as_str(), "--volumes=1"];
    let mut program = Program::start(&path("csi.sock"), flags).await;
    let mut client = program.controller().await;
    client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap_err();
    assert_eq!(program.ended().await.code(), None, "a signal ended it");
    assert!(path("csi.sock").exists(), "nothing was tidied up");
    let program = Program::start(&path("csi.sock"), [state.as_str(), "--volumes=1"]).await;
    assert_eq!(
        nodes_of(&mut program.controller().await, "vol-0").await,
        ["node-0"]
    );
}

#[tokio::test]
async fn delayed_listen_creates_socket_late() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("csi.sock");
    let start = Instant::now();
    let program = Program::start(&socket, ["--listen-after=500ms", "--volumes=1"]).await;
    assert!(start.elapsed() >= Duration::from_millis(500));
    assert_eq!(
        publish(&mut program.controller().await, "vol-0", "node-0").await,
        Code::Ok
    );
}

#[tokio::test]
async fn secrets_parameters_and_locations_of_real_calls_are_matched() {
    let (_server, mut client) = with_rules(&[
        "{id: secret, match: {method: ControllerPublishVolume, secrets: {user: root}}, action: {code: UNAUTHENTICATED}}",
        "{id: tier, match: {method: ControllerPublishVolume, parameters: {tier: lead}}, action: {code: PERMISSION_DENIED}}",
        "{id: here, match: {while: {volume: attached-here}, method: ControllerPublishVolume}, action: {code: UNKNOWN}}",
        "{id: elsewhere, match: {while: {volume: attached-elsewhere}, method: ControllerPublishVolume}, action: {code: DATA_LOSS}}",
        "{id: big, match: {method: CreateVolume, bytes-above: 1048576}, action: {code: OUT_OF_RANGE}}",
    ])
    .await;
    let mut with_secret = mk_publish("vol-0", "node-0");
    with_secret.secrets = mk_map(&[("user", "root")]);
    let mut with_context = mk_publish("vol-0", "node-0");
    with_context.volume_context = mk_map(&[("tier", "lead")]);
    for (request, code) in [
        (with_secret, Code::Unauthenticated),
        (with_context, Code::PermissionDenied),
    ] {
        let status = client.controller_publish_volume(request).await.unwrap_err();
        assert_eq!(status.code(), code);
    }
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Unknown);
    assert_eq!(publish(&mut client, "vol-0", "node-1").await, Code::DataLoss);
    for (bytes, expected) in [(1 << 20, Code::Ok), (1 << 21, Code::OutOfRange)] {
        let mut request = crate::server::mk_create(&format!("of-{bytes}"));
        request.capacity_range = Some(v1::CapacityRange {
            required_bytes: bytes,
            limit_bytes: 0,
        });
        let code = client
            .create_volume(request)
            .await
            .map_or_else(|status| status.code(), |_| Code::Ok);
        assert_eq!(code, expected, "{bytes}");
    }
}

#[tokio::test]
async fn run_time_rules_take_precedence_and_survive_a_reload() {
    let (server, mut client) =
        with_rules(&["{id: file, match: {volume: vol-0}, action: {code: INTERNAL}}"]).await;
    let rule = json!({"id": "mine", "match": {"volume": "vol-0"}, "action": {"code": "ABORTED"}});
    server
        .driver()
        .faults
        .put(Rule::from_value(rule).unwrap())
        .unwrap();
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Aborted);
    std::fs::write(server.path("faults.yaml"), "[]").unwrap();
    line_in(&server.path("journal"), |line| {
        line["event"] == "faults" && line["rules"] == 0
    })
    .await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Aborted);
    assert!(server.driver().faults.remove(RuleKind::Rule, "mine"));
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);

    // A file with the id of a run-time rule is rejected as a whole.
    let rule = json!({"id": "mine", "match": {"method": "*"}, "action": {"delay": "1ms"}});
    server
        .driver()
        .faults
        .put(Rule::from_value(rule).unwrap())
        .unwrap();
    std::fs::write(
        server.path("faults.yaml"),
        "[{id: mine, match: {method: '*'}, action: {code: INTERNAL}}]",
    )
    .unwrap();
    let refused = line_in(&server.path("journal"), |line| line["error"].is_string()).await;
    assert!(
        refused["error"].as_str().unwrap().contains("\"mine\""),
        "{refused}"
    );
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
}

#[tokio::test]
async fn one_seed_repeats_which_calls_fail_and_the_ids_of_volumes() {
    let run = async |seed: u64| {
        let server = Server::start_with(|directory, settings| {
            let rules = "- {id: x, match: {method: Controller*ublishVolume, probability: 0.3}, action: {code: ABORTED}}";
            std::fs::write(directory.join("faults.yaml"), rules).unwrap();
            settings.initial_volumes = 5;
            settings.seed = Some(seed);
            settings.faults = Some(directory.join("faults.yaml"));
            settings.journal = Some(directory.join("journal"));
        })
        .await;
        let mut client = server.controller().await;
        let made = client
            .create_volume(crate::server::mk_create("same"))
            .await
            .unwrap();
        for round in 0..20 {
            let volume = format!("vol-{}", round % 5);
            publish(&mut client, &volume, "node-0").await;
            unpublish(&mut client, &volume, "node-0").await;
        }
        let journal = lines(&server.path("journal"));
        let ends = journal.iter().filter(|line| line["event"] == "end");
        let codes: Vec<String> = ends.map(|line| line["code"].to_string()).collect();
        (made.into_inner().volume.unwrap().volume_id, codes)
    };
    let first = run(11).await;
    assert_eq!(first, run(11).await);
    let other = run(12).await;
    assert_ne!(first.0, other.0);
    assert_ne!(first.1, other.1);
    assert!(first.1.iter().any(|code| code.contains("ABORTED")));
}

#[tokio::test]
async fn driver_lies_about_what_it_has_done() {
    let (server, mut client) = with_rules(&[
        "{id: no-attach, match: {volume: vol-0, method: ControllerPublishVolume}, action: {pretend: OK}, times: 1}",
        "{id: no-detach, match: {volume: vol-0, method: ControllerUnpublishVolume}, action: {code: OK}, times: 1}",
        "{id: gone, match: {volume: vol-0, method: ControllerUnpublishVolume}, action: {pretend: NOT_FOUND}, times: 1}",
        "{id: done, match: {volume: vol-1, method: ControllerPublishVolume}, action: {effect: true, code: INTERNAL}, times: 1}",
        "{id: soon, match: {volume: vol-2, method: ControllerPublishVolume}, \
          action: {effect: later, hang: release, code: OK}, times: 1}",
        "{id: no-create, match: {method: CreateVolume}, action: {pretend: OK}, times: 1}",
    ])
    .await;
    // OK without an attachment, but with a publish_context like that of an attachment.
    let request = mk_publish("vol-0", "node-0");
    let pretended = client
        .controller_publish_volume(request.clone())
        .await
        .unwrap()
        .into_inner();
    assert!(pretended.publish_context.contains_key("device"), "{pretended:?}");
    assert!(nodes_of(&mut client, "vol-0").await.is_empty());
    let end = line_in(&server.path("journal"), |line| line["fault"] == "no-attach").await;
    assert_eq!(end["code"], "OK");
    let real = client
        .controller_publish_volume(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        pretended
            .publish_context
            .keys()
            .collect::<std::collections::BTreeSet<_>>(),
        real.publish_context.keys().collect()
    );
    // OK, then NOT_FOUND, without a detach.
    for code in [Code::Ok, Code::NotFound] {
        assert_eq!(unpublish(&mut client, "vol-0", "node-0").await, code);
        assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);
    }
    // An error after the effect.
    assert_eq!(publish(&mut client, "vol-1", "node-0").await, Code::Internal);
    assert_eq!(nodes_of(&mut client, "vol-1").await, ["node-0"]);
    // OK before the effect.
    assert_eq!(publish(&mut client, "vol-2", "node-0").await, Code::Ok);
    assert!(nodes_of(&mut client, "vol-2").await.is_empty());
    assert_eq!(server.driver().faults.release(Some("soon")), Some(1));
    line_in(&server.path("journal"), |line| line["event"] == "late").await;
    assert_eq!(nodes_of(&mut client, "vol-2").await, ["node-0"]);
    // A volume that does not exist.
    let created = client
        .create_volume(crate::server::mk_create("pvc"))
        .await
        .unwrap()
        .into_inner();
    let id = created.volume.unwrap().volume_id;
    assert!(!id.is_empty());
    assert_eq!(publish(&mut client, &id, "node-0").await, Code::NotFound);
}
