//! Fault rules, field by field, and their reload.

mod actions;
mod backend_faults;
mod fixed_reply;
mod proxy;
mod resets;
mod scenarios;
mod streams;
mod stubs;

use std::fs;
use std::path::Path;
use std::time::Duration;

use csi_mock_driver::fault::{Faults, Rule};
use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use serde_json::json;
use tokio::time::{self, Instant};
use tonic::Code;
use tonic::transport::Channel;

use crate::server::{
    DEADLINE, Server, begun, cancel_after, line_in, lines, mk_create, mk_publish, mk_unpublish, published,
};

/// A driver with these rules, each one a flow mapping.
async fn with_rules(rules: &[&str]) -> (Server, ControllerClient<Channel>) {
    let yaml: String = rules.iter().map(|rule| format!("- {rule}\n")).collect();
    let server = Server::start_with(|directory, settings| {
        fs::write(directory.join("faults.yaml"), yaml).unwrap();
        settings.initial_volumes = 5;
        settings.faults = Some(directory.join("faults.yaml"));
        settings.journal = Some(directory.join("journal"));
    })
    .await;
    let client = server.controller().await;
    (server, client)
}

async fn publish(client: &mut ControllerClient<Channel>, volume: &str, node: &str) -> Code {
    match client.controller_publish_volume(mk_publish(volume, node)).await {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    }
}

async fn unpublish(client: &mut ControllerClient<Channel>, volume: &str, node: &str) -> Code {
    match client
        .controller_unpublish_volume(mk_unpublish(volume, node))
        .await
    {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    }
}

async fn nodes_of(client: &mut ControllerClient<Channel>, volume: &str) -> Vec<String> {
    published(client)
        .await
        .into_iter()
        .find(|(id, _)| id == volume)
        .unwrap()
        .1
}

#[tokio::test]
async fn phase_before_replaces_the_operation_until_times_is_used_up() {
    let (server, mut client) = with_rules(&[
        "{id: full, match: {method: ControllerPublishVolume}, phase: before, \
          action: {code: RESOURCE_EXHAUSTED, message: no room today}, times: 2}",
    ])
    .await;
    for _ in 0..2 {
        let status = client
            .controller_publish_volume(mk_publish("vol-0", "node-0"))
            .await
            .unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::ResourceExhausted, "no room today")
        );
        assert!(nodes_of(&mut client, "vol-0").await.is_empty());
    }
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
    let journal = lines(&server.path("journal"));
    let faults: Vec<_> = journal
        .iter()
        .filter(|line| {
            line["event"] == "end" && line["method"] == "/csi.v1.Controller/ControllerPublishVolume"
        })
        .map(|line| line["fault"].as_str())
        .collect();
    assert_eq!(faults, [Some("full"), Some("full"), None]);
}

#[tokio::test]
async fn phase_after_fails_the_call_after_the_operation() {
    let (_server, mut client) = with_rules(&[
        "{id: lost, match: {method: ControllerPublishVolume}, phase: after, \
          action: {code: DEADLINE_EXCEEDED}, times: 1}",
        "{id: undone, match: {method: ControllerUnpublishVolume}, phase: after, \
          action: {code: INTERNAL}, times: 1}",
    ])
    .await;
    // A call that fails by itself keeps its error and leaves the rule armed.
    assert_eq!(publish(&mut client, "vol-9", "node-0").await, Code::NotFound);
    let status = client
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("lost"), "{status}");
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);

    assert_eq!(unpublish(&mut client, "vol-0", "node-0").await, Code::Internal);
    assert!(nodes_of(&mut client, "vol-0").await.is_empty());
}

/// The second attach fails without a rule; the rule acts on the second attach that succeeds. The result is the same for a
/// rule of the driver and of a proxy in front of it.
async fn fail_before_the_rule_acts(mut client: ControllerClient<Channel>, faults: &Faults, journal: &Path) {
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
    assert_eq!(publish(&mut client, "vol-9", "node-0").await, Code::NotFound);
    assert_eq!(&*faults.state(), "start", "no rule has acted yet");
    assert_eq!(publish(&mut client, "vol-1", "node-0").await, Code::Internal);
    assert_eq!(&*faults.state(), "broken");
    assert_eq!(publish(&mut client, "vol-2", "node-0").await, Code::Unavailable);
    let ends = lines(journal).into_iter().filter(|line| line["event"] == "end");
    let named: Vec<_> = ends
        .map(|line| line["fault"].as_str().unwrap_or("").to_owned())
        .collect();
    assert_eq!(named, ["", "", "second", "broken"]);
}

const SECOND: [&str; 2] = [
    "{id: second, match: {method: ControllerPublishVolume, call: 2, while: {state: start}}, phase: after, \
      action: {code: INTERNAL, set-state: broken}}",
    "{id: broken, match: {method: ControllerPublishVolume, while: {state: broken}}, action: {code: UNAVAILABLE}}",
];

#[tokio::test]
async fn unapplied_rule_is_not_journaled() {
    let (server, client) = with_rules(&SECOND).await;
    fail_before_the_rule_acts(client, &server.driver().faults, &server.path("journal")).await;
    let fronted = proxy::Fronted::start(&SECOND).await;
    let client = fronted.client().await;
    fail_before_the_rule_acts(client, &fronted.front().faults, &fronted.journal()).await;
}

#[tokio::test]
async fn cancelled_call_does_not_count_as_a_firing() {
    let (server, mut client) = with_rules(&[
        "{id: lost, match: {method: ControllerPublishVolume, call: 1}, phase: after, action: {code: INTERNAL}}",
    ])
    .await;
    server
        .driver()
        .faults
        .put(
            Rule::backend_fault_from_value(json!({"id": "slow", "type": "slow-node", "time": "1s"})).unwrap(),
        )
        .unwrap();
    let journal = server.path("journal");
    let requested = mk_publish("vol-0", "node-0");
    cancel_after(begun(&journal), client.controller_publish_volume(requested)).await;
    line_in(&journal, |line| line["event"] == "late").await;
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);
    assert_eq!(publish(&mut client, "vol-1", "node-0").await, Code::Internal);
}

#[tokio::test]
async fn first_rule_that_matches_wins_and_patterns_are_globs() {
    let (_server, mut client) = with_rules(&[
        "{id: one-node, match: {method: ControllerPublishVolume, node: node-1}, action: {code: UNAVAILABLE}}",
        "{id: no-set, match: {volume: 'vol-[0-9]'}, action: {code: UNKNOWN}}",
        "{id: pair, match: {volume: 'vol-?', node: '*-2'}, action: {code: INTERNAL}}",
        "{id: two, match: {volume: '*-2'}, action: {code: DATA_LOSS}}",
        "{id: named, match: {method: CreateVolume, name: 'pvc-*'}, action: {code: OUT_OF_RANGE}}",
    ])
    .await;
    // (volume, node, publish, unpublish)
    let table = [
        ("vol-0", "node-0", Code::Ok, Code::Ok),
        ("vol-0", "node-1", Code::Unavailable, Code::Ok),
        ("vol-2", "node-1", Code::Unavailable, Code::DataLoss),
        ("vol-0", "node-2", Code::Internal, Code::Internal),
        ("vol-2", "node-0", Code::DataLoss, Code::DataLoss),
    ];
    for (volume, node, on_publish, on_unpublish) in table {
        assert_eq!(
            publish(&mut client, volume, node).await,
            on_publish,
            "publish {volume} {node}"
        );
        assert_eq!(
            unpublish(&mut client, volume, node).await,
            on_unpublish,
            "unpublish {volume} {node}"
        );
    }
    client.create_volume(mk_create("other")).await.unwrap();
    let named = client.create_volume(mk_create("pvc-1")).await.unwrap_err();
    assert_eq!(named.code(), Code::OutOfRange);
}

#[tokio::test]
async fn rule_without_a_match_is_for_every_call() {
    let (server, mut client) =
        with_rules(&["{id: all, match: {method: '*'}, action: {code: UNAVAILABLE}}"]).await;
    let probe = server
        .identity()
        .await
        .probe(v1::ProbeRequest {})
        .await
        .unwrap_err();
    assert_eq!(probe.code(), Code::Unavailable);
    let list = client
        .list_volumes(v1::ListVolumesRequest::default())
        .await
        .unwrap_err();
    assert_eq!(list.code(), Code::Unavailable);
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Unavailable);
}

#[tokio::test]
async fn delay_slows_a_call_in_either_phase() {
    for phase in ["before", "after"] {
        let (_server, mut client) = with_rules(&[&format!(
            "{{id: slow, match: {{method: ControllerPublishVolume}}, phase: {phase}, action: {{delay: 200ms}}}}"
        )])
        .await;
        let start = Instant::now();
        assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok, "{phase}");
        assert!(start.elapsed() >= Duration::from_millis(200), "{phase}");
    }
}

#[tokio::test]
async fn timed_hang_ends_with_the_code_or_continues() {
    let (_server, mut client) = with_rules(&[
        "{id: coded, match: {volume: vol-0}, action: {hang: 100ms, code: INTERNAL}}",
        "{id: plain, match: {volume: vol-1}, action: {hang: 100ms}}",
    ])
    .await;
    for (volume, code) in [("vol-0", Code::Internal), ("vol-1", Code::Ok)] {
        let start = Instant::now();
        assert_eq!(publish(&mut client, volume, "node-0").await, code, "{volume}");
        assert!(start.elapsed() >= Duration::from_millis(100), "{volume}");
    }
}

#[tokio::test]
async fn hang_until_the_client_cancels_before_and_after_the_effect() {
    for (phase, attached) in [("before", false), ("after", true)] {
        let (server, mut client) = with_rules(&[&format!(
            "{{id: stuck, match: {{method: ControllerPublishVolume}}, phase: {phase}, \
              action: {{hang: client-cancel}}, times: 1}}"
        )])
        .await;
        let journal = server.path("journal");
        let mut other = client.clone();
        let stuck = async {
            begun(&journal).await;
            while attached && nodes_of(&mut other, "vol-0").await.is_empty() {}
        };
        cancel_after(
            stuck,
            client.controller_publish_volume(mk_publish("vol-0", "node-0")),
        )
        .await;

        let end = line_in(&journal, |line| line["code"] == "CANCELLED").await;
        assert_eq!(end["fault"], "stuck", "{phase}");
        assert_eq!(
            !nodes_of(&mut client, "vol-0").await.is_empty(),
            attached,
            "{phase}"
        );
        let late = lines(&journal).into_iter().find(|line| line["event"] == "late");
        assert_eq!(
            late.map(|line| line["code"].clone()),
            attached.then(|| "OK".into()),
            "{phase}"
        );

        // The volume is free again.
        assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok, "{phase}");
    }
}

#[tokio::test]
async fn delayed_attach_completes_although_its_client_disconnected() {
    let (server, mut client) =
        with_rules(&["{id: slow, match: {method: ControllerPublishVolume}, action: {delay: 1s}, times: 1}"])
            .await;
    let journal = server.path("journal");
    cancel_after(
        begun(&journal),
        client.controller_publish_volume(mk_publish("vol-0", "node-0")),
    )
    .await;
    line_in(&journal, |line| line["code"] == "CANCELLED").await;
    assert_eq!(
        publish(&mut client, "vol-0", "node-0").await,
        Code::Aborted,
        "the work goes on"
    );

    let late = line_in(&journal, |line| line["event"] == "late").await;
    assert_eq!(late["code"], "OK");
    assert_eq!(nodes_of(&mut client, "vol-0").await, ["node-0"]);
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
}

#[tokio::test]
async fn changed_fault_file_is_reloaded_unless_invalid() {
    let (server, mut client) =
        with_rules(&["{id: a, match: {volume: vol-0}, action: {code: INTERNAL}}"]).await;
    let (file, journal) = (server.path("faults.yaml"), server.path("journal"));
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Internal);

    fs::write(
        &file,
        "- {id: b, match: {volume: vol-0}, action: {code: ABORTED}}",
    )
    .unwrap();
    let line = line_in(&journal, |line| line["ids"] == serde_json::json!(["b"])).await;
    assert_eq!((&line["event"], &line["rules"]), (&"faults".into(), &1.into()));
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Aborted);

    fs::write(&file, "- {id: c, match: {volume: vol-0}, action: {cod: ABORTED}}").unwrap();
    let line = line_in(&journal, |line| line["error"].is_string()).await;
    let error = line["error"].as_str().unwrap();
    assert!(
        error.contains("\"c\"") && error.contains("action") && error.contains("cod"),
        "{error}"
    );
    assert_eq!(line["rules"], 1);
    assert_eq!(
        publish(&mut client, "vol-0", "node-0").await,
        Code::Aborted,
        "the old rules stay"
    );

    // Replaced atomically, by rename.
    fs::write(server.path("new.yaml"), "[]").unwrap();
    fs::rename(server.path("new.yaml"), &file).unwrap();
    line_in(&journal, |line| line["event"] == "faults" && line["rules"] == 0).await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);

    fs::remove_file(&file).unwrap();
    let gone = |line: &serde_json::Value| {
        line["error"]
            .as_str()
            .is_some_and(|text| text.contains("cannot read"))
    };
    line_in(&journal, gone).await;
}

#[tokio::test]
async fn unchanged_rule_keeps_its_count_after_a_reload() {
    let once = "{id: once, match: {volume: vol-0}, action: {code: INTERNAL}, times: 1}";
    let (server, mut client) = with_rules(&[once]).await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Internal);
    let more = format!("- {once}\n- {{id: more, match: {{volume: vol-1}}, action: {{code: ABORTED}}}}");
    fs::write(server.path("faults.yaml"), more).unwrap();
    line_in(&server.path("journal"), |line| line["rules"] == 2).await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
    assert_eq!(publish(&mut client, "vol-1", "node-0").await, Code::Aborted);
}

#[tokio::test]
async fn shutdown_cancels_hanging_calls_after_the_grace_period() {
    use csi_mock_driver::driver::{Driver, Settings};
    use csi_mock_driver::run;
    use csi_mock_driver::socket::Listener;
    use tokio_util::sync::CancellationToken;

    let directory = tempfile::tempdir().unwrap();
    let path = |file: &str| directory.path().join(file);
    fs::write(
        path("faults.yaml"),
        "- {id: stuck, match: {method: '*'}, action: {hang: client-cancel}}",
    )
    .unwrap();
    let settings = Settings {
        initial_volumes: 1,
        faults: Some(path("faults.yaml")),
        journal: Some(path("journal")),
        ..Default::default()
    };
    let (driver, faults) = Driver::open(settings).unwrap();
    let listener = Listener::bind(&path("csi.sock").into()).unwrap();
    let stop = CancellationToken::new();
    let grace = Duration::from_millis(100);
    let serving = run::serve(driver, faults, listener, None, stop.clone(), grace);
    let calling = async {
        let mut client = ControllerClient::new(crate::server::connect(&path("csi.sock")).await);
        client
            .controller_publish_volume(mk_publish("vol-0", "node-0"))
            .await
    };
    let stopping = async {
        line_in(&path("journal"), |line| line["event"] == "begin").await;
        stop.cancel();
    };
    let (served, ()) = tokio::select! {
        _ = calling => panic!("the call hangs"),
        ended = async { tokio::join!(time::timeout(DEADLINE, serving), stopping) } => ended,
    };
    served.expect("must stop in time").unwrap();
}
