//! Rules that give the whole reply, and rules that match any field of a call: in the driver, and in a proxy in front of it.

use std::time::Duration;

use csi_mock_driver::fault::{Rule, RuleKind};
use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::{self, CapacityRange};
use serde_json::{Value, json};
use tonic::{Code, Request};

use super::proxy::Fronted;
use super::publish;
use crate::server::{Server, connect, mk_block, mk_create, mk_publish, published};

/// A driver behind a proxy, with the rules in one of the two.
async fn with(by_proxy: bool, rules: &[Value]) -> Fronted {
    let behind = Server::start_with(|directory, settings| {
        settings.initial_volumes = 3;
        settings.journal = Some(directory.join("journal"));
    })
    .await;
    let fronted = Fronted::before(behind, &[]);
    let driver = if by_proxy {
        fronted.front()
    } else {
        fronted.behind()
    };
    for rule in rules {
        driver
            .faults
            .put(Rule::from_value(rule.clone()).unwrap())
            .unwrap();
    }
    fronted
}

#[tokio::test]
async fn stub_replies_without_the_array_with_fields_of_the_request() {
    for by_proxy in [false, true] {
        let publish = json!({"id": "p", "match": {"method": "ControllerPublishVolume", "volume": "ghost"},
            "action": {"response": {"publish_context": {"device": "/dev/{{request.node_id}}/{{request.volume_id}}", "lun": "7"}}}});
        let create = json!({"id": "c", "match": {"method": "CreateVolume"}, "action": {"response": {"volume": {
            "volume_id": "stub-{{request.name}}", "capacity_bytes": "{{request.capacity_range.required_bytes}}"}}}});
        let fronted = with(by_proxy, &[publish, create]).await;
        let mut client = fronted.client().await;
        let reply = client
            .controller_publish_volume(mk_publish("ghost", "node-1"))
            .await
            .unwrap();
        let context = reply.into_inner().publish_context;
        assert_eq!(
            (context["device"].as_str(), context["lun"].as_str()),
            ("/dev/node-1/ghost", "7")
        );
        let request = v1::CreateVolumeRequest {
            capacity_range: Some(CapacityRange {
                required_bytes: 5 << 20,
                limit_bytes: 0,
            }),
            ..mk_create("a")
        };
        let volume = client
            .create_volume(request)
            .await
            .unwrap()
            .into_inner()
            .volume
            .unwrap();
        assert_eq!(
            (volume.volume_id.as_str(), volume.capacity_bytes),
            ("stub-a", 5 << 20)
        );
        assert_eq!(published(&mut client).await.len(), 3, "the array is unchanged");
    }
}

#[tokio::test]
async fn stub_and_lie_need_no_volume_of_the_array_for_its_condition() {
    let listed = json!({"entries": [{"volume": {"volume_id": "ghost"}, "status": {"published_node_ids": ["node-7"]}}]});
    let list = json!({"id": "l", "match": {"method": "ListVolumes"}, "action": {"response": listed}});
    let get = json!({"id": "g", "match": {"method": "ControllerGetVolume"}, "action": {"pretend": "OK"}});
    let fronted = with(false, &[list, get]).await;
    let offer = &fronted.behind().capabilities;
    offer.write().change("+VOLUME_CONDITION").unwrap();
    let mut client = fronted.client().await;
    let list = client
        .list_volumes(v1::ListVolumesRequest::default())
        .await
        .unwrap();
    let status = list.into_inner().entries[0].status.clone().unwrap();
    assert_eq!(
        (status.published_node_ids, status.volume_condition),
        (vec!["node-7".to_owned()], None)
    );
    let volume_id = "ghost".to_owned();
    let got = client
        .controller_get_volume(v1::ControllerGetVolumeRequest { volume_id })
        .await;
    assert_eq!(
        got.unwrap().into_inner(),
        v1::ControllerGetVolumeResponse::default()
    );
}

#[tokio::test]
async fn stub_of_a_stream_replaces_its_messages() {
    for by_proxy in [false, true] {
        let block = |offset: i64| json!({"byte_offset": offset, "size_bytes": 4096});
        let message = |blocks: Vec<Value>| json!({"block_metadata_type": "VARIABLE_LENGTH", "volume_capacity_bytes": 1 << 20, "block_metadata": blocks});
        let stub = json!({"id": "s", "match": {"method": "GetMetadataAllocated"},
            "action": {"response": [message(vec![block(0), block(8192)]), message(vec![block(65536)])]}});
        let fronted = with(by_proxy, &[stub]).await;
        let mut client = SnapshotMetadataClient::new(connect(&fronted.socket()).await);
        let request = v1::GetMetadataAllocatedRequest {
            snapshot_id: "gone".to_owned(),
            ..Default::default()
        };
        let mut stream = client.get_metadata_allocated(request).await.unwrap().into_inner();
        let mut offsets = Vec::new();
        while let Some(message) = stream.message().await.unwrap() {
            offsets.push(
                message
                    .block_metadata
                    .iter()
                    .map(|block| block.byte_offset)
                    .collect::<Vec<_>>(),
            );
        }
        assert_eq!(offsets, [vec![0, 8192], vec![65536]], "by the proxy: {by_proxy}");
    }
}

#[tokio::test]
async fn rule_matches_any_field_the_metadata_the_peer_and_the_deadline() {
    let own = rustix::process::getuid().as_raw();
    // (match, whether vol-0, vol-1 with many writers, and vol-2 with metadata and deadline are refused)
    let table = [
        (
            json!({"request": {"volume_capability.access_mode.mode": "SINGLE_NODE_WRITER"}}),
            [true, false, true],
        ),
        (
            json!({"request": {"volume_capability.access_mode.mode": {"regex": "^MULTI_"}}}),
            [false, true, false],
        ),
        (
            json!({"request": {"volume_id": {"one-of": ["vol-1", "vol-2"]}}}),
            [false, true, true],
        ),
        (
            json!({"request": {"volume_id": {"not": "vol-1"}}}),
            [true, false, true],
        ),
        (
            json!({"request": {"readonly": {"exists": true}}}),
            [false, false, false],
        ),
        (json!({"not": {"volume": "vol-0"}}), [false, true, true]),
        (
            json!({"not": {"request": {"volume_id": {"regex": "[01]$"}}}}),
            [false, false, true],
        ),
        (json!({"metadata": {"x-tenant": "blue"}}), [false, false, true]),
        (
            json!({"metadata": {"x-tenant": {"exists": false}}}),
            [true, true, false],
        ),
        (json!({"deadline": {"exists": true}}), [false, false, true]),
        (json!({"deadline": {"less": "1m"}}), [false, false, true]),
        (json!({"deadline": {"greater": "1m"}}), [false, false, false]),
        (json!({"peer": {"uid": own}}), [true, true, true]),
        (json!({"peer": {"uid": {"not": own}}}), [false, false, false]),
    ];
    for by_proxy in [false, true] {
        let fronted = with(by_proxy, &[]).await;
        let driver = if by_proxy {
            fronted.front()
        } else {
            fronted.behind()
        };
        let mut client = fronted.client().await;
        for (matches, expected) in &table {
            let mut matches = matches.clone();
            matches["method"] = json!("ControllerPublishVolume");
            let rule = json!({"id": "r", "match": matches, "action": {"code": "DATA_LOSS"}});
            driver.faults.put(Rule::from_value(rule).unwrap()).unwrap();
            let mut shared = mk_publish("vol-1", "node-0");
            shared.volume_capability = Some(mk_block(Mode::MultiNodeMultiWriter));
            let mut tagged = Request::new(mk_publish("vol-2", "node-0"));
            tagged.metadata_mut().insert("x-tenant", "blue".parse().unwrap());
            tagged.set_timeout(Duration::from_secs(30));
            let found = [
                publish(&mut client, "vol-0", "node-0").await == Code::DataLoss,
                client
                    .controller_publish_volume(shared)
                    .await
                    .is_err_and(|status| status.code() == Code::DataLoss),
                client
                    .controller_publish_volume(tagged)
                    .await
                    .is_err_and(|status| status.code() == Code::DataLoss),
            ];
            assert_eq!(found, *expected, "{matches}, by the proxy: {by_proxy}");
            assert!(driver.faults.remove(RuleKind::Rule, "r"));
        }
    }
}

/// The requests of clients may have braces.
#[tokio::test]
async fn fields_in_a_stub_are_no_templates_themselves() {
    let stub = json!({"id": "s", "match": {"method": "ControllerPublishVolume"}, "action": {"response":
        {"publish_context": {"both": "{{request.node_id}} {{request.volume_id}} {{\"{{\"}}"}}}});
    let fronted = with(false, &[stub]).await;
    let mut client = fronted.client().await;
    let request = mk_publish("vol-0", "{{request.volume_id}}");
    let reply = client.controller_publish_volume(request).await.unwrap();
    assert_eq!(
        reply.into_inner().publish_context["both"],
        "{{request.volume_id}} vol-0 {{"
    );
}

#[tokio::test]
async fn condition_on_a_map_entry_finds_keys_that_begin_alike() {
    let rule = json!({"id": "r", "match": {"method": "CreateVolume", "request": {"parameters.a.b": "c"}}, "action": {"code": "DATA_LOSS"}});
    let fronted = with(false, &[rule]).await;
    let mut client = fronted.client().await;
    let entry = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let request = v1::CreateVolumeRequest {
        parameters: [entry("a", "x"), entry("a.b", "c")].into(),
        ..mk_create("a")
    };
    assert_eq!(
        client.create_volume(request).await.unwrap_err().code(),
        Code::DataLoss
    );
}

#[test]
fn secrets_of_a_match_are_not_shown_by_its_errors() {
    for part in [
        json!({"secrets": {"pin": 4711}}),
        json!({"not": {"secrets": {"pin": 4711}}}),
    ] {
        let rule = json!({"id": "r", "match": part, "action": {"code": "INTERNAL"}});
        let refused = Rule::from_value(rule).unwrap_err().to_string();
        assert!(!refused.contains("4711"), "{refused}");
    }
}

#[test]
fn mistakes_of_stubs_and_conditions_name_their_field() {
    let (publish, fails) = (
        json!({"method": "ControllerPublishVolume"}),
        json!({"code": "INTERNAL"}),
    );
    let context = |template: &str| json!({"response": {"publish_context": {"a": template}}});
    // (match, action, field, words of the reason)
    #[rustfmt::skip]
    let table = [
        (publish.clone(), json!({"response": {"device": "x"}}), "action.response", "device"),
        (publish.clone(), context("{{request.volume}}"), "action.response", "volume_id"),
        (publish.clone(), context("{{volume_id}}"), "action.response", "request."),
        (publish.clone(), json!({"response": [{}]}), "action.response", "mapping"),
        (publish.clone(), context("{{request.secrets.password}}"), "action.response", "secret"),
        (json!({"not": {}}), fails.clone(), "match.not", "never fires"),
        (json!({"peer": {}}), fails.clone(), "match", "every call"),
        (json!({"metadata": {"a b": "c"}}), fails.clone(), "match.metadata.a b", "no key"),
        (publish, json!({"response": {}, "code": "INTERNAL"}), "action.response", "at most one of"),
        (json!({"method": "Node*"}), json!({"response": {}}), "action.response", "one method"),
        (json!({"request": {"volume": "a"}}), fails.clone(), "match.request.volume", "has no field"),
        (json!({"request": {"volume_id.x": "a"}}), fails.clone(), "match.request.volume_id.x", "no field"),
        (json!({"request": {"secrets.user": "a"}}), fails.clone(), "match.request.secrets.user", "match.secrets"),
        (json!({"request": {"volume_id": {"like": "a"}}}), fails.clone(), "match.request.volume_id", "one-of"),
        (json!({"not": {"call": 3}}), fails.clone(), "match.not", "beside it"),
        (json!({"deadline": {"less": 5}}), fails, "match.deadline.less", "string"),
    ];
    for (matches, action, field, words) in table {
        let rule = json!({"id": "r", "match": matches, "action": action});
        let refused = Rule::from_value(rule.clone()).unwrap_err().to_string();
        assert!(
            refused.contains(&format!(" {field}: ")) && refused.contains(words),
            "{rule}: {refused}"
        );
    }
}
