//! Backend faults, as callers see them.

use std::fs;
use std::time::Duration;

use csi_mock_driver::fault::{Rule, RuleKind};
use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;
use tonic::transport::Channel;

use super::{nodes_of, publish, unpublish};
use crate::server::{Server, line_in, mk_create, mk_publish, published};

async fn start() -> (Server, ControllerClient<Channel>) {
    let server = Server::start_with(|directory, settings| {
        settings.initial_volumes = 5;
        settings.journal = Some(directory.join("journal"));
    })
    .await;
    let client = server.controller().await;
    (server, client)
}

fn inject(server: &Server, text: Value) {
    let fault = Rule::backend_fault_from_value(text).unwrap();
    server.driver().faults.put(fault).unwrap();
}

#[tokio::test]
async fn refusals_are_journaled_and_do_not_change_the_array() {
    let (server, mut client) = start().await;
    assert_eq!(publish(&mut client, "vol-1", "node-0").await, Code::Ok);
    inject(
        &server,
        json!({"id": "lost", "type": "node-gone", "node": "node-0"}),
    );
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::NotFound);
    line_in(&server.path("journal"), |line| line["fault"] == "lost").await;
    assert!(nodes_of(&mut client, "vol-0").await.is_empty());
    assert_eq!(unpublish(&mut client, "vol-1", "node-0").await, Code::Ok);

    inject(&server, json!({"id": "frozen", "type": "read-only"}));
    assert_eq!(
        publish(&mut client, "vol-0", "node-1").await,
        Code::FailedPrecondition
    );
    let create = client.create_volume(mk_create("x")).await.unwrap_err();
    assert_eq!(create.code(), Code::FailedPrecondition);
    assert_eq!(published(&mut client).await.len(), 5, "reads are allowed");
    assert!(
        server
            .driver()
            .faults
            .set_enabled(RuleKind::BackendFault, "frozen", false)
    );
    assert_eq!(publish(&mut client, "vol-0", "node-1").await, Code::Ok);
}

#[tokio::test]
async fn quota_and_node_limit_count_the_real_array() {
    let (server, mut client) = start().await;
    inject(&server, json!({"id": "few", "type": "quota", "volumes": 6}));
    client.create_volume(mk_create("a")).await.unwrap();
    let full = client.create_volume(mk_create("b")).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    client
        .create_volume(mk_create("a"))
        .await
        .expect("a repeat makes nothing");

    inject(&server, json!({"id": "limit", "type": "node-limit", "limit": 2}));
    for (volume, node, code) in [
        ("vol-0", "node-0", Code::Ok),
        ("vol-1", "node-0", Code::Ok),
        ("vol-1", "node-0", Code::Ok),
        ("vol-2", "node-0", Code::ResourceExhausted),
        ("vol-2", "node-1", Code::Ok),
    ] {
        assert_eq!(publish(&mut client, volume, node).await, code, "{volume} {node}");
    }
}

#[tokio::test]
async fn concurrent_calls_do_not_exceed_limits() {
    let server = Server::start_with(|_, settings| {
        settings.initial_volumes = 10;
        settings.latency = Duration::from_millis(100);
    })
    .await;
    inject(&server, json!({"id": "limit", "type": "node-limit", "limit": 3}));
    inject(&server, json!({"id": "few", "type": "quota", "volumes": 12}));
    let client = server.controller().await;
    let count = |codes: Vec<Code>, wanted: Code| codes.iter().filter(|code| **code == wanted).count();
    for round in 0..2 {
        let attach = |number| {
            let mut client = client.clone();
            async move { publish(&mut client, &format!("vol-{number}"), "node-0").await }
        };
        let first = futures::future::join_all((0..3).map(attach));
        let others = async {
            // When the driver responds, it is executing the first calls: they wait for the latency.
            server.identity().await.probe(v1::ProbeRequest {}).await.unwrap();
            futures::future::join_all((3..10).map(attach)).await
        };
        let (mut codes, others) = futures::future::join(first, others).await;
        codes.extend(others);
        assert_eq!(count(codes.clone(), Code::Ok), 3, "round {round}: {codes:?}");
        assert_eq!(count(codes.clone(), Code::ResourceExhausted), 7, "{codes:?}");
    }
    let creates = (0..10).map(|number| {
        let mut client = client.clone();
        async move {
            match client.create_volume(mk_create(&format!("new-{number}"))).await {
                Ok(_) => Code::Ok,
                Err(status) => status.code(),
            }
        }
    });
    let codes = futures::future::join_all(creates).await;
    assert_eq!(count(codes.clone(), Code::Ok), 2, "{codes:?}");

    // A failed call releases its reservation.
    let mut client = client;
    let attached = published(&mut client).await;
    let held = attached.iter().find(|(_, nodes)| !nodes.is_empty()).unwrap();
    assert_eq!(unpublish(&mut client, &held.0, "node-0").await, Code::Ok);
    assert_eq!(publish(&mut client, &held.0, "node-0").await, Code::Ok);
}

#[tokio::test]
async fn list_faults_freeze_delay_truncate_and_corrupt_lists() {
    let (server, mut client) = start().await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
    inject(&server, json!({"id": "still", "type": "frozen-list"}));
    assert_eq!(unpublish(&mut client, "vol-0", "node-0").await, Code::Ok);
    assert_eq!(publish(&mut client, "vol-1", "node-1").await, Code::Ok);
    client.create_volume(mk_create("new")).await.unwrap();
    let listed = published(&mut client).await;
    assert_eq!(listed.len(), 5, "the new volume is not listed");
    assert_eq!(listed[0].1, ["node-0"]);
    assert!(listed[1].1.is_empty());
    assert!(server.driver().faults.remove(RuleKind::BackendFault, "still"));
    let listed = published(&mut client).await;
    assert_eq!(listed.len(), 6);
    assert_eq!(nodes_of(&mut client, "vol-1").await, ["node-1"]);

    // Delayed: the list has the old state until the change is old enough.
    inject(
        &server,
        json!({"id": "behind", "type": "frozen-list", "age": "300ms"}),
    );
    assert_eq!(nodes_of(&mut client, "vol-1").await, ["node-1"]);
    let start = Instant::now();
    assert_eq!(unpublish(&mut client, "vol-1", "node-1").await, Code::Ok);
    while !nodes_of(&mut client, "vol-1").await.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "must follow");
    }
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(server.driver().faults.remove(RuleKind::BackendFault, "behind"));

    inject(
        &server,
        json!({"id": "lacks", "type": "list-lacks", "volume": "vol-3"}),
    );
    inject(
        &server,
        json!({"id": "adds", "type": "list-adds", "volume": "vol-2", "node": "mars"}),
    );
    let listed = published(&mut client).await;
    assert!(listed.iter().all(|(id, _)| id != "vol-3"));
    assert_eq!(nodes_of(&mut client, "vol-2").await, ["mars"]);
}

#[tokio::test]
async fn expired_token_aborts_a_list_and_a_new_list_works() {
    let (server, mut client) = start().await;
    let page = |token: &str| v1::ListVolumesRequest {
        max_entries: 2,
        starting_token: token.to_owned(),
    };
    let first = client.list_volumes(page("")).await.unwrap().into_inner();
    inject(&server, json!({"id": "old", "type": "tokens-expired"}));
    let refused = client.list_volumes(page(&first.next_token)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert!(refused.message().contains("starting_token"), "{refused}");
    let again = client.list_volumes(page("")).await.unwrap().into_inner();
    assert_eq!(again, first);
    assert!(
        server
            .driver()
            .faults
            .set_enabled(RuleKind::BackendFault, "old", false)
    );
    let second = client.list_volumes(page(&first.next_token)).await.unwrap();
    assert_eq!(second.into_inner().entries.len(), 2);
}

#[tokio::test]
async fn slow_node_serializes_its_calls() {
    let (server, client) = start().await;
    inject(
        &server,
        json!({"id": "slow", "type": "slow-node", "node": "node-0", "time": "100ms"}),
    );
    let start = Instant::now();
    let calls = (0..4).map(|number| {
        let mut client = client.clone();
        async move {
            assert_eq!(
                publish(&mut client, &format!("vol-{number}"), "node-0").await,
                Code::Ok
            );
        }
    });
    futures::future::join_all(calls).await;
    assert!(
        start.elapsed() >= Duration::from_millis(400),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn wrong_device_is_returned_and_probe_is_not_ready_for_the_duration() {
    let (server, mut client) = start().await;
    inject(
        &server,
        json!({"id": "wrong", "type": "wrong-device", "volume": "vol-0", "device": "/dev/odd"}),
    );
    for (volume, is_wrong) in [("vol-0", true), ("vol-1", false)] {
        let reply = client
            .controller_publish_volume(mk_publish(volume, "node-0"))
            .await
            .unwrap();
        let context = reply.into_inner().publish_context;
        assert_eq!(context["device"] == "/dev/odd", is_wrong, "{volume}");
        assert_eq!(context["serial"].starts_with("wrong-"), is_wrong, "{volume}");
    }
    let mut identity = server.identity().await;
    let start = Instant::now();
    inject(&server, json!({"id": "late", "type": "not-ready", "for": "1s"}));
    let mut probes = 0;
    while identity
        .probe(v1::ProbeRequest {})
        .await
        .unwrap()
        .into_inner()
        .ready
        != Some(true)
    {
        probes += 1;
        assert!(start.elapsed() < Duration::from_secs(20), "must become ready");
    }
    assert!(probes > 0 && start.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn backend_faults_of_the_fault_file_end_with_it() {
    let server = Server::start_with(|directory, settings| {
        let script = "rules: [{id: r, match: {volume: vol-1}, action: {code: ABORTED}}]\n\
                      backend-faults: [{id: t, type: busy, volume: vol-0, code: UNAVAILABLE}]\n";
        fs::write(directory.join("faults.yaml"), script).unwrap();
        settings.initial_volumes = 5;
        settings.faults = Some(directory.join("faults.yaml"));
        settings.journal = Some(directory.join("journal"));
    })
    .await;
    let mut client = server.controller().await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Unavailable);
    assert_eq!(publish(&mut client, "vol-1", "node-0").await, Code::Aborted);
    fs::write(server.path("faults.yaml"), "[]").unwrap();
    line_in(&server.path("journal"), |line| {
        line["event"] == "faults" && line["rules"] == 0
    })
    .await;
    assert_eq!(publish(&mut client, "vol-0", "node-0").await, Code::Ok);
}
