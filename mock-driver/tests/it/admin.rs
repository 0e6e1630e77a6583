//! The admin API over its sockets: state, changes, refusals, and redaction of secrets.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use csi_mock_driver::admin_api::client::{CallEvent, Calls, Client, Error};
use csi_mock_driver::admin_api::query::{AttachmentQuery, VolumeQuery};
use csi_mock_driver::admin_api::resource::{
    Attach, Expectation, ExpectationStatus, Expected, ExpectedCount, HealthIssue, NodeChange, NodeNew,
    StorageHealthIssue, VolumeChange, VolumeNew,
};
use csi_mock_driver::array::{Pool, PoolName, Segments, Settings, Severity, StorageSeverity};
use csi_mock_driver::fault::Origin;
use csi_mock_driver::journal::clock::Clock;
use csi_proto::v1;
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use tonic::Code;

use crate::server::{Server, cancel_after, mk_create, mk_map, mk_publish, mk_unpublish, published};

mod browser;
mod ctl;
mod fault_file;
mod openapi;
mod page;
mod storage;
mod wire;

/// A driver with five volumes, three nodes and an admin API.
pub(crate) async fn administered() -> (Server, Client) {
    Server::start_administered(|_, settings| settings.initial_volumes = 5).await
}

fn refusal(result: Result<impl std::fmt::Debug, Error>) -> (StatusCode, String, String, Option<String>) {
    match result {
        Err(Error::Refused { status, problem }) => (status, problem.code, problem.message, problem.field),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn array_state_reflects_csi_calls() {
    let (server, client) = administered().await;
    let mut csi = server.controller().await;
    csi.controller_publish_volume(mk_publish("vol-1", "node-2"))
        .await
        .unwrap();

    let volume = client.volume("vol-1").await.unwrap();
    assert_eq!(volume.attachments.len(), 1);
    assert_eq!(
        (
            volume.attachments[0].node.as_str(),
            volume.attachments[0].readonly
        ),
        ("node-2", false)
    );
    let node = client.node("node-2").await.unwrap();
    assert_eq!((node.attached, node.volumes), (1, vec!["vol-1".to_owned()]));
    let held = client
        .attachments(&AttachmentQuery {
            node: Some("node-2".to_owned()),
            ..AttachmentQuery::default()
        })
        .await
        .unwrap();
    assert_eq!(held.items, volume.attachments);
    let info = client.info().await.unwrap();
    assert_eq!(
        (info.counts.volumes, info.counts.nodes, info.counts.attachments),
        (5, 3, 1)
    );
    assert_eq!((info.counts.calls, info.counts.failed), (1, 0));
}

#[tokio::test]
async fn start_time_is_that_of_the_configured_clock() {
    let (_server, client) = Server::start_administered(|_, settings| {
        settings.clock = Clock::new(|| Timestamp::UNIX_EPOCH);
    })
    .await;
    let info = client.text("/api/v1/info").await.unwrap();
    assert!(info.contains(r#""started":"1970-01-01T00:00:00"#), "{info}");
}

#[tokio::test]
async fn list_pages_together_are_complete() {
    let (_server, client) = Server::start_administered(|_, settings| settings.initial_volumes = 25).await;
    let (mut ids, mut after) = (Vec::new(), None::<String>);
    loop {
        let query = VolumeQuery {
            limit: Some(10),
            after,
            ..VolumeQuery::default()
        };
        let page = client.volumes(&query).await.unwrap();
        assert_eq!(page.matched, 25);
        ids.extend(page.items.into_iter().map(|volume| volume.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let whole = client.volumes(&Default::default()).await.unwrap();
    assert_eq!(
        ids,
        whole
            .items
            .iter()
            .map(|volume| volume.id.clone())
            .collect::<Vec<_>>()
    );
    let query = VolumeQuery {
        search: Some("vol-2".to_owned()),
        ..VolumeQuery::default()
    };
    let found = client.volumes(&query).await.unwrap();
    assert_eq!(found.matched, 6, "vol-2 and vol-20 to vol-24");
}

#[tokio::test]
async fn attachments_pools_and_unhealthy_nodes_are_in_natural_order() {
    let (_server, client) = Server::start_administered(|_, settings| {
        settings.array.nodes = Settings::numbered_nodes(12);
        let mk_pool = |name: &str| Pool {
            name: PoolName::from(name),
            segments: Segments::default(),
            capacity: 1 << 40,
        };
        settings.array.pools = ["pool-10", "pool-2"].map(mk_pool).to_vec();
    })
    .await;
    for name in ["a", "b"] {
        let new = VolumeNew {
            name: name.to_owned(),
            access_mode: Some("MULTI_NODE_MULTI_WRITER".to_owned()),
            ..VolumeNew::default()
        };
        client.create_volume(&new).await.unwrap();
    }
    // Their ids are random.
    let volumes = client.volumes(&Default::default()).await.unwrap().items;
    let volumes: Vec<_> = volumes.into_iter().map(|volume| volume.id).collect();
    let attach = Attach {
        access_mode: Some("MULTI_NODE_MULTI_WRITER".to_owned()),
        ..Attach::default()
    };
    let change = NodeChange {
        health: Some(vec![StorageHealthIssue {
            status: StorageSeverity::Degraded,
            reason: "Cable".to_owned(),
            message: "a cable is loose".to_owned(),
            capability: None,
        }]),
        ..NodeChange::default()
    };
    for node in ["node-10", "node-1", "node-2"] {
        for volume in &volumes {
            client.attach(volume, node, &attach).await.unwrap();
        }
        client.change_node(node, &change).await.unwrap();
    }

    let sorted = ["node-1", "node-2", "node-10"];
    let volume = client.volume(&volumes[0]).await.unwrap();
    let nodes: Vec<_> = volume.attachments.iter().map(|held| held.node.as_str()).collect();
    assert_eq!(nodes, sorted);
    let storage = client.storage().await.unwrap();
    let nodes: Vec<_> = storage
        .nodes
        .iter()
        .map(|storage| storage.node.as_str())
        .collect();
    assert_eq!(nodes, sorted);
    let pools = client.pools().await.unwrap();
    let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names, ["pool-2", "pool-10"]);

    let (mut listed, mut after) = (Vec::new(), None::<String>);
    loop {
        let query = AttachmentQuery {
            limit: Some(2),
            after,
            ..AttachmentQuery::default()
        };
        let page = client.attachments(&query).await.unwrap();
        listed.extend(page.items.into_iter().map(|held| (held.volume, held.node)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let on = |volume: &String| sorted.map(|node| (volume.clone(), node.to_owned()));
    assert_eq!(listed, volumes.iter().flat_map(on).collect::<Vec<_>>());
    let behind = AttachmentQuery {
        after: Some(volumes[0].clone()),
        ..AttachmentQuery::default()
    };
    let behind = client.attachments(&behind).await.unwrap();
    assert_eq!(
        behind.items.len(),
        3,
        "a volume as cursor follows its attachments"
    );
}

#[tokio::test]
async fn attachments_changed_out_of_band_are_visible_in_csi() {
    let (server, client) = administered().await;
    let mut csi = server.controller().await;
    let attached = client
        .attach("vol-0", "node-0", &Attach::default())
        .await
        .unwrap();
    assert_eq!(
        (attached.volume.as_str(), attached.node.as_str()),
        ("vol-0", "node-0")
    );
    let elsewhere = csi
        .controller_publish_volume(mk_publish("vol-0", "node-1"))
        .await
        .unwrap_err();
    assert_eq!(elsewhere.code(), Code::FailedPrecondition);
    client.detach("vol-0", "node-0").await.unwrap();
    assert!(
        published(&mut csi)
            .await
            .iter()
            .all(|(_, nodes)| nodes.is_empty())
    );

    let (status, code, message, _) = refusal(client.detach("vol-0", "node-0").await);
    assert_eq!((status, code.as_str()), (StatusCode::NOT_FOUND, "NOT_FOUND"));
    assert!(message.contains("vol-0 on node-0"), "{message}");
    let odd = Attach {
        access_mode: Some("EVERYBODY".into()),
        ..Attach::default()
    };
    let (status, _, message, field) = refusal(client.attach("vol-0", "node-0", &odd).await);
    assert_eq!(
        (status, field.as_deref()),
        (StatusCode::BAD_REQUEST, Some("accessMode"))
    );
    assert!(message.contains("SINGLE_NODE_WRITER"), "{message}");
    let calls = client
        .journal(&Calls::of("ControllerUnpublishVolume"))
        .await
        .unwrap();
    assert_eq!(calls.matched, 0, "no CSI call is made or journalled");
}

#[tokio::test]
async fn volumes_are_created_changed_and_deleted() {
    let (server, client) = administered().await;
    let new = VolumeNew {
        name: "pvc-1".into(),
        capacity_bytes: Some(2 << 30),
        ..VolumeNew::default()
    };
    let made = client.create_volume(&new).await.unwrap();
    assert_eq!((made.name.as_str(), made.capacity_bytes), ("pvc-1", 2 << 30));
    assert_eq!(client.create_volume(&new).await.unwrap().id, made.id, "made once");

    let change = VolumeChange {
        capacity_bytes: Some(3 << 30),
        health: Some(vec![HealthIssue {
            status: Severity::Degraded,
            reason: "Rebuild".into(),
            message: "one disk is gone".into(),
        }]),
        ..VolumeChange::default()
    };
    let changed = client.change_volume(&made.id, &change).await.unwrap();
    assert_eq!((changed.capacity_bytes, changed.health.len()), (3 << 30, 1));
    let health = v1::ControllerGetVolumeHealthRequest {
        volume_id: made.id.clone(),
        ..Default::default()
    };
    server
        .controller()
        .await
        .controller_get_volume_health(health)
        .await
        .unwrap();

    client.delete_volume(&made.id).await.unwrap();
    let (status, ..) = refusal(client.delete_volume(&made.id).await);
    assert_eq!(status, StatusCode::NOT_FOUND);
    client
        .attach("vol-0", "node-0", &Attach::default())
        .await
        .unwrap();
    let (status, code, ..) = refusal(client.delete_volume("vol-0").await);
    assert_eq!(
        (status, code.as_str()),
        (StatusCode::CONFLICT, "FAILED_PRECONDITION")
    );
}

fn mk_health_issues() -> Option<Vec<HealthIssue>> {
    Some(vec![HealthIssue {
        status: Severity::Degraded,
        reason: "x".into(),
        message: String::new(),
    }])
}

fn mk_parameters(key: &str, value: &str) -> Option<BTreeMap<String, String>> {
    Some([(key.to_owned(), value.to_owned())].into())
}

#[tokio::test]
async fn partly_invalid_change_is_refused_atomically_with_api_field_names() {
    let (_server, client) = administered().await;
    let before = client.volume("vol-0").await.unwrap();
    // (case, bytes, mutable parameters, field, word)
    let table = [
        (
            "parameter",
            Some(2 << 30),
            mk_parameters("x", "1"),
            "mutableParameters",
            "\"x\"",
        ),
        (
            "value",
            Some(2 << 30),
            mk_parameters("iops", "many"),
            "mutableParameters",
            "iops",
        ),
        (
            "no parameters",
            Some(2 << 30),
            Some([].into()),
            "mutableParameters",
            "must be set",
        ),
        (
            "no bytes",
            Some(0),
            mk_parameters("iops", "5"),
            "capacityBytes",
            "at least 1",
        ),
        (
            "too large",
            Some(1 << 50),
            mk_parameters("iops", "5"),
            "capacityBytes",
            "largest volume",
        ),
        (
            "beyond all",
            Some(u64::MAX),
            mk_parameters("iops", "5"),
            "capacityBytes",
            "no array",
        ),
    ];
    for (case, capacity_bytes, mutable_parameters, field, word) in table {
        let change = VolumeChange {
            capacity_bytes,
            mutable_parameters,
            health: mk_health_issues(),
        };
        let (status, _, message, named) = refusal(client.change_volume("vol-0", &change).await);
        assert_eq!(
            (status, named.as_deref()),
            (StatusCode::BAD_REQUEST, Some(field)),
            "{case}"
        );
        assert!(
            message.starts_with(&format!("{field}: ")) && message.contains(word),
            "{case}: {message}"
        );
        assert!(!message.contains("_bytes"), "{case}: {message}");
        assert_eq!(client.volume("vol-0").await.unwrap(), before, "{case}");
    }
}

#[tokio::test]
async fn change_of_all_fields_is_applied_with_api_size_names() {
    let (_server, client) = administered().await;
    let good = VolumeChange {
        capacity_bytes: Some(2 << 30),
        mutable_parameters: mk_parameters("iops", "5"),
        health: mk_health_issues(),
    };
    let now = client.change_volume("vol-0", &good).await.unwrap();
    assert_eq!((now.capacity_bytes, now.health.len()), (2 << 30, 1));
    assert_eq!(now.mutable_parameters["iops"], "5");

    let new = VolumeNew {
        name: "a".into(),
        capacity_bytes: Some(0),
        ..VolumeNew::default()
    };
    let (.., field) = refusal(client.create_volume(&new).await);
    assert_eq!(field.as_deref(), Some("capacityBytes"));
    let other_size = |bytes| VolumeNew {
        capacity_bytes: Some(bytes),
        ..new.clone()
    };
    client.create_volume(&other_size(1 << 20)).await.unwrap();
    let (.., message, _) = refusal(client.create_volume(&other_size(2 << 20)).await);
    assert!(message.contains("another capacityBytes"), "{message}");
}

#[tokio::test]
async fn node_topologies_and_ids_are_validated_before_any_change() {
    let (_server, client) = administered().await;
    let before = client.node("node-0").await.unwrap();
    let mk = |pairs: &[(&str, &str)]| -> Option<std::collections::BTreeMap<String, String>> {
        let pairs = pairs.iter();
        Some(
            pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        )
    };
    let long = "x".repeat(200);
    let away = |topology| NodeChange {
        limit: Some(1),
        topology,
        ..NodeChange::default()
    };
    let renamed = |id: &str| NodeChange {
        limit: Some(1),
        id: Some(id.to_owned()),
        ..NodeChange::default()
    };
    // (change, field)
    let table = [
        (away(mk(&[("a b!", "x")])), "topology"),
        (away(mk(&[("zone", "a b!")])), "topology"),
        (away(mk(&[("zone", &long)])), "topology"),
        (away(mk(&[("zone", "a"), ("Zone", "b")])), "topology"),
        (renamed(""), "id"),
        (renamed(&"x".repeat(257)), "id"),
        (renamed("node-1"), "id"),
    ];
    for (change, field) in table {
        let (status, _, message, named) = refusal(client.change_node("node-0", &change).await);
        assert_eq!(
            (status, named.as_deref()),
            (StatusCode::BAD_REQUEST, Some(field)),
            "{message}"
        );
        assert!(message.starts_with(&format!("{field}: ")), "{message}");
        assert_eq!(client.node("node-0").await.unwrap(), before, "{message}");
        let new = NodeNew {
            id: change.id.clone().unwrap_or("new".into()),
            limit: None,
            topology: change.topology,
        };
        if change.id.as_deref() != Some("node-1") {
            let (.., named) = refusal(client.register_node(&new).await);
            assert_eq!(named.as_deref(), Some(field));
        }
    }
    assert_eq!(refusal(client.node("new").await).0, StatusCode::NOT_FOUND);
    let out = NodeChange {
        registered: Some(false),
        ..renamed("other")
    };
    assert_eq!(
        refusal(client.change_node("node-0", &out).await).0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(client.node("node-0").await.unwrap(), before);
}

#[tokio::test]
async fn nodes_are_added_changed_and_removed() {
    let (server, client) = administered().await;
    let mut csi = server.controller().await;
    let new = NodeNew {
        id: "late".into(),
        limit: Some(1),
        topology: None,
    };
    assert_eq!(client.register_node(&new).await.unwrap().limit, Some(1));
    csi.controller_publish_volume(mk_publish("vol-0", "late"))
        .await
        .unwrap();
    let full = csi
        .controller_publish_volume(mk_publish("vol-1", "late"))
        .await
        .unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    let change = NodeChange {
        limit: Some(0),
        ..NodeChange::default()
    };
    assert_eq!(client.change_node("late", &change).await.unwrap().limit, None);
    csi.controller_publish_volume(mk_publish("vol-1", "late"))
        .await
        .unwrap();

    client.remove_node("late").await.unwrap();
    let gone = client.node("late").await.unwrap();
    assert_eq!(
        (gone.registered, gone.attached),
        (false, 2),
        "existing attachments stay"
    );
    let refused = csi
        .controller_publish_volume(mk_publish("vol-2", "late"))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    csi.controller_unpublish_volume(mk_unpublish("vol-0", "late"))
        .await
        .unwrap();

    let away = NodeChange {
        registered: Some(false),
        ..NodeChange::default()
    };
    let gone = client.change_node("node-1", &away).await.unwrap();
    assert!(
        !gone.registered,
        "registered once more although it has no volumes and is removed"
    );

    let rename = NodeChange {
        id: Some("other".into()),
        ..NodeChange::default()
    };
    assert_eq!(client.change_node("node-0", &rename).await.unwrap().id, "other");
    csi.controller_publish_volume(mk_publish("vol-2", "other"))
        .await
        .unwrap();
    let (status, ..) = refusal(client.change_node("node-77", &NodeChange::default()).await);
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn capabilities_change_at_run_time() {
    let (server, client) = administered().await;
    let mut csi = server.controller().await;
    let list = v1::ListVolumesRequest::default;
    csi.list_volumes(list()).await.unwrap();
    client.set_capability("LIST_VOLUMES", false).await.unwrap();
    assert_eq!(
        csi.list_volumes(list()).await.unwrap_err().code(),
        Code::Unimplemented
    );
    let known = client.capabilities().await.unwrap();
    let shown = known.iter().find(|known| known.name == "LIST_VOLUMES").unwrap();
    assert!(!shown.enabled && shown.default);
    client.set_capability("LIST_VOLUMES", true).await.unwrap();
    csi.list_volumes(list()).await.unwrap();
    let (status, _, message, _) = refusal(client.set_capability("FLY", true).await);
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(message.contains("LIST_VOLUMES"), "{message}");
}

#[tokio::test]
async fn blocked_call_is_listed_and_released() {
    let (server, client) = administered().await;
    let rule =
        json!({"id": "hold", "match": {"method": "ControllerPublishVolume"}, "action": {"hang": "release"}});
    let rule = client.put_fault(&rule).await.unwrap();
    assert_eq!((rule.origin, rule.fired), (Origin::Admin, 0));
    let mut csi = server.controller().await;
    let (answer, ()) = tokio::join!(
        csi.controller_publish_volume(mk_publish("vol-0", "node-0")),
        async {
            let waited = Calls::of("ControllerPublishVolume").fault("hold").running();
            let running = client.wait(&waited, 1, "20s").await.unwrap();
            assert_eq!(
                (running[0].volume.as_str(), running[0].answer.is_none()),
                ("vol-0", true)
            );
            assert_eq!(client.running().await.unwrap().len(), 1);
            assert_eq!(client.faults().await.unwrap().rules[0].blocked_calls, 1);
            assert_eq!(client.release_fault("hold").await.unwrap().calls, 1);
        }
    );
    answer.unwrap();
    assert!(client.running().await.unwrap().is_empty());
    let ended = client.journal(&Calls::all().fault("hold")).await.unwrap();
    assert_eq!(ended.items[0].answer.as_ref().unwrap().code, "OK");

    assert!(!client.set_fault("hold", false).await.unwrap().enabled);
    csi.controller_publish_volume(mk_publish("vol-1", "node-0"))
        .await
        .unwrap();
    client.reset_faults().await.unwrap();
    client.remove_fault("hold").await.unwrap();
    let (status, ..) = refusal(client.remove_fault("hold").await);
    assert_eq!(status, StatusCode::NOT_FOUND);
    let wrong = json!({"id": "x", "match": {"method": "Nope"}, "action": {"code": "INTERNAL"}});
    let (status, _, message, field) = refusal(client.put_fault(&wrong).await);
    assert_eq!(
        (status, field.as_deref()),
        (StatusCode::BAD_REQUEST, Some("match.method")),
        "{message}"
    );
}

#[tokio::test]
async fn scenarios_and_backend_faults_start_and_end() {
    let (server, client) = administered().await;
    let mut csi = server.controller().await;
    assert!(
        client
            .scenarios()
            .await
            .unwrap()
            .iter()
            .all(|scenario| !scenario.enabled)
    );
    assert!(client.set_scenario("node-lost", true).await.unwrap().enabled);
    let refused = csi
        .controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    let played: Vec<_> = client
        .scenarios()
        .await
        .unwrap()
        .into_iter()
        .filter(|scenario| scenario.enabled)
        .collect();
    assert_eq!(played.len(), 1);
    client.set_scenario("node-lost", false).await.unwrap();
    csi.controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
    let (status, _, message, _) = refusal(client.set_scenario("nonsense", true).await);
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(message.contains("node-lost"), "{message}");
}

fn expected(text: &[(&str, &str)]) -> Expectation {
    Expectation {
        expected: text
            .iter()
            .map(|(method, code)| Expected {
                method: (*method).to_owned(),
                code: (*code).to_owned(),
                volume: None,
                node: None,
                request: None,
            })
            .collect(),
        ..Expectation::default()
    }
}

#[tokio::test]
async fn expected_calls_are_distinguished_by_volume_node_and_request() {
    let (server, client) = administered().await;
    let mut csi = server.controller().await;
    for (volume, node) in [("vol-0", "node-0"), ("vol-1", "node-1")] {
        csi.controller_publish_volume(mk_publish(volume, node))
            .await
            .unwrap();
    }
    let call = |fields: Value| {
        let mut call = json!({"method": "ControllerPublishVolume"});
        call.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        call
    };
    let first = call(json!({"volume": "vol-0", "request": {"node_id": {"regex": "^node-0$"}}}));
    let second = call(json!({"volume": "vol-?", "node": "node-1"}));
    let other = call(json!({"volume": "vol-0", "node": "node-1"}));
    // (expected, in any order, status)
    let table = [
        (json!([first, second]), false, ExpectationStatus::Complete),
        (json!([second, first]), false, ExpectationStatus::Mismatch),
        (json!([second, first]), true, ExpectationStatus::Complete),
        (json!([first]), false, ExpectationStatus::Mismatch),
        (json!([first, other]), true, ExpectationStatus::Mismatch),
        (json!([first, second, other]), true, ExpectationStatus::Incomplete),
    ];
    for (expected, any_order, status) in table {
        let expectation = json!({"expected": expected, "anyOrder": any_order});
        let expectation = serde_json::from_value(expectation).unwrap();
        let result = client.assert_calls(&expectation).await.unwrap();
        assert_eq!(result.status, status, "{expected}: {result:?}");
    }
    let wrong = json!({"expected": [call(json!({"request": {"nodeid": "node-0"}}))]});
    let wrong = serde_json::from_value(wrong).unwrap();
    let (_, _, message, _) = refusal(client.assert_calls(&wrong).await);
    assert!(message.contains("expected[0].request"), "{message}");
}

#[tokio::test]
async fn calls_are_listed_awaited_and_asserted() {
    let (server, client) = administered().await;
    let mut csi = server.controller().await;
    for _ in 0..3 {
        csi.controller_publish_volume(mk_publish("vol-9", "node-0"))
            .await
            .unwrap_err();
    }
    csi.controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
    csi.list_volumes(v1::ListVolumesRequest::default()).await.unwrap();

    let failed = client.journal(&Calls::all().code("!OK")).await.unwrap();
    assert_eq!(failed.matched, 3);
    let call = &failed.items[0];
    assert_eq!(call.answer.as_ref().unwrap().code, "NOT_FOUND");
    assert_eq!(call.request.as_ref().unwrap()["volume_id"], "vol-9");
    let page = client
        .journal(&Calls::all().with("newest", "true").with("limit", "2"))
        .await
        .unwrap();
    let methods: Vec<_> = page.items.iter().map(|call| call.method.as_str()).collect();
    assert_eq!(
        (methods, page.matched),
        (vec!["ListVolumes", "ControllerPublishVolume"], 5)
    );

    let came = [
        ("ControllerPublishVolume", "NOT_FOUND"),
        ("ControllerPublishVolume", "OK"),
    ];
    assert_eq!(
        client.assert_calls(&expected(&came)).await.unwrap().status,
        ExpectationStatus::Complete
    );
    let result = client.assert_calls(&expected(&came[..1])).await.unwrap();
    assert_eq!((result.status, result.matched), (ExpectationStatus::Mismatch, 1));
    assert_eq!(result.calls[0].calls, 3);

    let more = Expectation {
        timeout: Some("20s".into()),
        ..expected(&[came[0], came[1], ("ControllerUnpublishVolume", "OK")])
    };
    let (result, ()) = tokio::join!(client.assert_calls(&more), async {
        csi.controller_unpublish_volume(mk_unpublish("vol-0", "node-0"))
            .await
            .unwrap();
    });
    assert_eq!(
        result.unwrap().status,
        ExpectationStatus::Complete,
        "the call waits for the missing calls"
    );

    let (status, code, ..) = refusal(client.wait(&Calls::of("DeleteVolume"), 1, "10ms").await);
    assert_eq!(
        (status, code.as_str()),
        (StatusCode::GATEWAY_TIMEOUT, "DEADLINE_EXCEEDED")
    );
    let (_, _, message, field) = refusal(client.journal(&Calls::all().code("NOPE")).await);
    assert_eq!(field.as_deref(), Some("code"));
    assert!(message.contains("NOT_FOUND"), "{message}");
    client.clear_journal().await.unwrap();
    assert_eq!(client.journal(&Calls::all()).await.unwrap().matched, 0);
}

#[tokio::test]
async fn errors_in_expectations_are_reported_without_waiting() {
    let (server, client) = administered().await;
    let mut csi = server.controller().await;
    csi.list_volumes(v1::ListVolumesRequest::default()).await.unwrap();
    let came = [("ListVolumes", "OK")];
    let hasty = Expectation {
        timeout: Some("soon".into()),
        ..expected(&came)
    };
    let strays = Expectation {
        tracked: Some(vec!["/vendor.v1.Copy/Start".into(), "Atach".into()]),
        ..expected(&came)
    };
    let unknown = expected(&[("ControllerPublish", "OK")]);
    let elsewhere = expected(&[("/csi.v1.Controller/Attach", "OK")]);
    let count = ExpectedCount {
        method: "DeleteVolume".to_owned(),
        request: Some(json!({"volume": "vol-0"})),
        at_most: Some(0),
        ..ExpectedCount::default()
    };
    let never = Expectation {
        counts: vec![count],
        ..expected(&came)
    };
    for (mistake, named) in [
        (hasty, "timeout"),
        (strays, "tracked[1]"),
        (unknown, "expected[0].method"),
        (elsewhere, "expected[0].method"),
        (never, "counts[0].request"),
    ] {
        let (status, _, message, field) = refusal(client.assert_calls(&mistake).await);
        assert_eq!(
            (status, field.as_deref()),
            (StatusCode::BAD_REQUEST, Some(named)),
            "{message}"
        );
    }
}

#[tokio::test]
async fn calls_are_streamed_as_they_happen() {
    let (server, client) = administered().await;
    let rule =
        json!({"id": "hold", "match": {"method": "ControllerPublishVolume"}, "action": {"hang": "release"}});
    client.put_fault(&rule).await.unwrap();
    let mut csi = server.controller().await;
    let mut heard = Vec::new();
    let calls = Calls::of("ControllerPublishVolume");
    let listening = client.follow(&calls, |happened| {
        let (kind, call) = match happened {
            CallEvent::Begin(call) => ("begin", call),
            CallEvent::End(call) => ("end", call),
            CallEvent::Late(call) => ("late", call),
            CallEvent::Lost(missed) => panic!("{missed} lost"),
        };
        heard.push((kind, call.answer.map(|answer| answer.code)));
        if kind == "late" {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let calling = async {
        // The stream is open when its first events are sent; a probe shows it on its own connection.
        client.info().await.unwrap();
        let running = async {
            let held = calls.clone().fault("hold").running();
            client.wait(&held, 1, "20s").await.unwrap();
        };
        cancel_after(
            running,
            csi.controller_publish_volume(mk_publish("vol-0", "node-0")),
        )
        .await;
        let cancelled = calls.clone().code("CANCELLED");
        client.wait(&cancelled, 1, "20s").await.unwrap();
        assert_eq!(client.release_fault("hold").await.unwrap().calls, 1);
    };
    let (listened, ()) = tokio::join!(listening, calling);
    listened.unwrap();
    let cancelled = Some("CANCELLED".to_owned());
    assert_eq!(
        heard,
        [("begin", None), ("end", cancelled.clone()), ("late", cancelled)]
    );
}

#[tokio::test]
async fn driver_stops_despite_waiting_and_streaming_clients() {
    let (server, client) = administered().await;
    let never = Calls::of("DeleteVolume");
    let waiting = client.wait(&never, 1, "10m");
    let calls = Calls::all();
    let listening = client.follow(&calls, |_| ControlFlow::Continue(()));
    let stopping = async {
        client.info().await.unwrap();
        server.stop().await
    };
    let (waited, listened, _directory) = tokio::join!(waiting, listening, stopping);
    assert!(waited.is_err());
    listened.unwrap();
}

#[tokio::test]
async fn no_response_contains_a_secret() {
    const SECRET: &str = "hunter2-is-no-good-password";
    let (server, client) = administered().await;
    let mut csi = server.controller().await;
    let create = v1::CreateVolumeRequest {
        secrets: mk_map(&[("password", SECRET)]),
        ..mk_create("a")
    };
    csi.create_volume(create).await.unwrap();
    let publish = v1::ControllerPublishVolumeRequest {
        secrets: mk_map(&[("password", SECRET)]),
        ..mk_publish("vol-77", "node-0")
    };
    csi.controller_publish_volume(publish).await.unwrap_err();
    // A pod's tokens are in volume_context, which is not marked as secret.
    let publish = v1::ControllerPublishVolumeRequest {
        volume_context: mk_map(&[("csi.storage.k8s.io/serviceAccount.tokens", SECRET)]),
        ..mk_publish("vol-78", "node-0")
    };
    csi.controller_publish_volume(publish).await.unwrap_err();
    // A rule that matches a secret must contain it.
    let rule = json!({"id": "secretive", "match": {"method": "CreateVolume", "secrets": {"password": SECRET}},
        "action": {"code": "INTERNAL"}});
    let not = json!({"id": "not", "match": {"method": "DeleteVolume", "not": {"secrets": {"password": SECRET}}},
        "action": {"code": "INTERNAL"}});
    client.put_fault(&not).await.unwrap();
    let put = client.put_fault(&rule).await.unwrap();
    let shown = put.rule["match"]["secrets"]["password"].as_str().unwrap();
    assert!(shown.starts_with("hash:"), "{shown}");
    let fires = v1::CreateVolumeRequest {
        secrets: mk_map(&[("password", SECRET)]),
        ..mk_create("b")
    };
    csi.create_volume(fires).await.unwrap_err();
    let paths = [
        "/",
        "/metrics",
        "/openapi.json",
        "/api/v1/info",
        "/api/v1/volumes",
        "/api/v1/nodes",
        "/api/v1/journal",
        "/api/v1/calls",
        "/api/v1/faults",
        "/api/v1/journal/wait?count=2",
    ];
    for path in paths {
        let text = client.text(path).await.unwrap();
        assert!(!text.contains(SECRET), "{path}: {text}");
    }
    let journal = client.text("/api/v1/journal").await.unwrap();
    assert_eq!(journal.matches("hash:").count(), 4, "{journal}");
    assert_eq!(
        journal.matches(shown).count(),
        4,
        "equal secrets have equal hashes: {journal}"
    );
}

#[tokio::test]
async fn metrics_count_calls_faults_and_objects() {
    let (server, client) = administered().await;
    let mut csi = server.controller().await;
    csi.controller_publish_volume(mk_publish("vol-0", "node-1"))
        .await
        .unwrap();
    csi.controller_publish_volume(mk_publish("vol-9", "node-1"))
        .await
        .unwrap_err();
    let rule =
        json!({"id": "odd \"name\"", "match": {"method": "DeleteVolume"}, "action": {"code": "INTERNAL"}});
    client.put_fault(&rule).await.unwrap();
    let request = crate::server::mk_delete("vol-3");
    csi.delete_volume(request).await.unwrap_err();
    let text = client.text("/metrics").await.unwrap();
    for line in [
        "csi_mock_calls_total{code=\"OK\",method=\"ControllerPublishVolume\"} 1",
        "csi_mock_calls_total{code=\"NOT_FOUND\",method=\"ControllerPublishVolume\"} 1",
        "csi_mock_node_attachments{node=\"node-1\"} 1",
        "csi_mock_node_attachments{node=\"node-0\"} 0",
        "csi_mock_faults_injected_total{code=\"INTERNAL\",method=\"DeleteVolume\",rule=\"odd \\\"name\\\"\"} 1",
        "csi_mock_call_duration_seconds_bucket{code=\"INTERNAL\",method=\"DeleteVolume\",le=\"+Inf\"} 1",
        "csi_mock_volumes 5",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
    for family in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = family.split(' ').next().unwrap();
        assert_eq!(
            text.matches(&format!("# TYPE {name} ")).count(),
            1,
            "{name} is declared once"
        );
    }
    assert_eq!(client.text("/healthz").await.unwrap(), "ok\n");
}

#[tokio::test]
async fn client_dials_a_host_by_name() {
    let (server, _) = Server::start_on_tcp(|_, settings| settings.initial_volumes = 2).await;
    let endpoint = csi_mock_driver::admin_api::Endpoint::Host {
        name: "localhost".to_owned(),
        port: server.admin_address().port(),
    };
    let client = csi_mock_driver::admin_api::client::Client::new(endpoint);
    assert_eq!(client.text("/healthz").await.unwrap(), "ok\n");
}

#[tokio::test]
async fn proxy_refuses_requests_for_the_array() {
    let (_server, client) = Server::start_administered(|directory, settings| {
        settings.initial_volumes = 5;
        settings.proxy_to = Some(directory.join("other.sock"));
    })
    .await;
    for (status, code, message, _) in [
        refusal(client.volumes(&Default::default()).await),
        refusal(client.detach("vol-0", "node-0").await),
        refusal(client.nodes(&Default::default()).await),
    ] {
        assert_eq!(
            (status, code.as_str()),
            (StatusCode::CONFLICT, "FAILED_PRECONDITION")
        );
        assert!(
            message.contains("--proxy-to") && message.contains("other.sock"),
            "{message}"
        );
    }
    let text = client.text("/metrics").await.unwrap();
    for word in [
        "csi_mock_volumes",
        "csi_mock_node",
        "csi_mock_attachments",
        "csi_mock_snapshots",
    ] {
        assert!(!text.contains(word), "{word}: {text}");
    }
    assert!(text.contains("csi_mock_build_info"), "{text}");
    let counts = client.info().await.unwrap().counts;
    assert_eq!((counts.volumes, counts.nodes), (0, 0));
}

#[tokio::test]
async fn rule_with_an_id_of_a_scenario_is_refused() {
    let (_server, client) = administered().await;
    client.set_scenario("attach-uncertain", true).await.unwrap();
    let rules = client.faults().await.unwrap().rules;
    let id = rules[0].id.clone();
    let rule = json!({"id": id, "match": {"method": "*"}, "action": {"code": "ABORTED"}});
    let (status, code, message, _) = refusal(client.put_fault(&rule).await);
    assert_eq!((status, code.as_str()), (StatusCode::CONFLICT, "ALREADY_EXISTS"));
    assert!(
        message.contains(&id) && message.contains("take another"),
        "{message}"
    );
    assert_eq!(client.faults().await.unwrap().rules, rules, "nothing has changed");
}

/// The device of a volume that was attached under the former id.
#[tokio::test]
async fn detach_under_a_former_node_id_removes_the_device() {
    let (server, client) = Server::start_administered(|directory, settings| {
        settings.initial_volumes = 1;
        settings.node_id = Some("node-0".to_owned());
        settings.node.device_dir = Some(directory.join("links"));
    })
    .await;
    let mut csi = server.controller().await;
    let links = || std::fs::read_dir(server.path("links")).unwrap().count();
    csi.controller_publish_volume(mk_publish("vol-0", "node-0"))
        .await
        .unwrap();
    assert_eq!(links(), 1);
    let change = NodeChange {
        id: Some("node-new".to_owned()),
        ..Default::default()
    };
    client.change_node("node-0", &change).await.unwrap();
    csi.controller_unpublish_volume(mk_unpublish("vol-0", "node-0"))
        .await
        .unwrap();
    assert_eq!(links(), 0);
}
