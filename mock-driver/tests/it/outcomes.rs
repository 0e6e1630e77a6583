//! What each RPC answers: one row for each cell of the specification's error tables.

use std::num::NonZeroUsize;

use csi_mock_driver::driver::Settings;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::controller_service_capability::{Type, rpc};
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::{self, CapacityRange, VolumeCapability};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::server::{
    Server, mk_block, mk_create, mk_delete, mk_map, mk_mount, mk_publish, mk_unpublish, published,
};

const MIB: i64 = 1 << 20;

/// A call in a table.
#[derive(Clone)]
enum Call {
    Publish(&'static str, &'static str, VolumeCapability, bool),
    Unpublish(&'static str, &'static str),
    Delete(&'static str),
    Create(v1::CreateVolumeRequest),
}

use Call::{Create, Delete, Publish, Unpublish};

/// What a call must answer: success, or a code and words of its message.
type Expected = Result<(), (Code, &'static [&'static str])>;

fn refused(code: Code, words: &'static [&'static str]) -> Expected {
    Err((code, words))
}

async fn make(client: &mut ControllerClient<Channel>, call: Call) -> Result<(), Status> {
    match call {
        Publish(volume, node, capability, readonly) => {
            let request = v1::ControllerPublishVolumeRequest {
                volume_capability: Some(capability),
                readonly,
                ..mk_publish(volume, node)
            };
            client.controller_publish_volume(request).await.map(drop)
        }
        Unpublish(volume, node) => client
            .controller_unpublish_volume(mk_unpublish(volume, node))
            .await
            .map(drop),
        Delete(volume) => client.delete_volume(mk_delete(volume)).await.map(drop),
        Create(request) => client.create_volume(request).await.map(drop),
    }
}

/// Runs each row on a driver of its own: the calls before must succeed, the last one is judged.
async fn check(limit: Option<NonZeroUsize>, rows: Vec<(&str, Vec<Call>, Call, Expected)>) {
    for (case, before, call, expected) in rows {
        let server = Server::start_with(|_, settings: &mut Settings| {
            settings.premade = 5;
            settings.array.attach_limit = limit.map(NonZeroUsize::get);
        })
        .await;
        let mut client = server.controller().await;
        for call in before {
            make(&mut client, call)
                .await
                .unwrap_or_else(|status| panic!("{case}: preparation: {status}"));
        }
        let state = published(&mut client).await;
        match (make(&mut client, call).await, expected) {
            (Ok(()), Ok(())) => {}
            (Err(status), Err((code, words))) => {
                assert_eq!(status.code(), code, "{case}: {status}");
                for word in words {
                    assert!(
                        status.message().contains(word),
                        "{case}: {word:?} is not in {status}"
                    );
                }
                assert!(
                    !status.message().is_empty() && status.details().is_empty(),
                    "{case}: {status}"
                );
                assert_eq!(
                    published(&mut client).await,
                    state,
                    "{case}: a refusal changes nothing"
                );
            }
            (outcome, expected) => panic!("{case}: {outcome:?}, expected {expected:?}"),
        }
    }
}

fn rwo() -> VolumeCapability {
    mk_mount("", Mode::SingleNodeWriter)
}

fn rwx() -> VolumeCapability {
    mk_mount("", Mode::MultiNodeMultiWriter)
}

fn rox() -> VolumeCapability {
    mk_mount("", Mode::MultiNodeReaderOnly)
}

fn one_writer() -> VolumeCapability {
    mk_mount("", Mode::MultiNodeSingleWriter)
}

fn on_node_0() -> Vec<Call> {
    vec![Publish("vol-0", "node-0", rwo(), false)]
}

#[tokio::test]
async fn publish_answers_as_the_table_says() {
    let elsewhere: Expected = refused(Code::FailedPrecondition, &["node-0", "vol-0"]);
    let rows = vec![
        ("first", vec![], Publish("vol-0", "node-0", rwo(), false), Ok(())),
        (
            "same again",
            on_node_0(),
            Publish("vol-0", "node-0", rwo(), false),
            Ok(()),
        ),
        (
            "volume gone",
            vec![],
            Publish("vol-9", "node-0", rwo(), false),
            refused(Code::NotFound, &["volume", "vol-9"]),
        ),
        (
            "node gone",
            vec![],
            Publish("vol-0", "node-9", rwo(), false),
            refused(Code::NotFound, &["node", "node-9"]),
        ),
        (
            "same node, other mode",
            on_node_0(),
            Publish("vol-0", "node-0", rwx(), false),
            refused(Code::AlreadyExists, &["volume_capability", "node-0"]),
        ),
        (
            "same node, block instead of mount",
            on_node_0(),
            Publish("vol-0", "node-0", mk_block(Mode::SingleNodeWriter), false),
            refused(Code::AlreadyExists, &["volume_capability"]),
        ),
        (
            "same node, other filesystem",
            on_node_0(),
            Publish("vol-0", "node-0", mk_mount("xfs", Mode::SingleNodeWriter), false),
            refused(Code::AlreadyExists, &["volume_capability"]),
        ),
        (
            "same node, other readonly",
            on_node_0(),
            Publish("vol-0", "node-0", rwo(), true),
            refused(Code::AlreadyExists, &["readonly"]),
        ),
        (
            "single-node on another node",
            on_node_0(),
            Publish("vol-0", "node-1", rwo(), false),
            elsewhere,
        ),
        (
            "single-node there, multi-node here",
            on_node_0(),
            Publish("vol-0", "node-1", rwx(), false),
            elsewhere,
        ),
        (
            "single-node there, read-only here",
            on_node_0(),
            Publish("vol-0", "node-1", rwo(), true),
            elsewhere,
        ),
        (
            "moved",
            vec![
                Publish("vol-0", "node-0", rwo(), false),
                Unpublish("vol-0", "node-0"),
            ],
            Publish("vol-0", "node-1", rwo(), false),
            Ok(()),
        ),
        (
            "shared by writers",
            vec![Publish("vol-0", "node-0", rwx(), false)],
            Publish("vol-0", "node-1", rwx(), false),
            Ok(()),
        ),
        (
            "shared by readers",
            vec![Publish("vol-0", "node-0", rox(), true)],
            Publish("vol-0", "node-1", rox(), true),
            Ok(()),
        ),
        (
            "one writer and a reader",
            vec![Publish("vol-0", "node-0", one_writer(), false)],
            Publish("vol-0", "node-1", one_writer(), true),
            Ok(()),
        ),
        (
            "a second writer where one is promised",
            vec![Publish("vol-0", "node-0", one_writer(), false)],
            Publish("vol-0", "node-1", one_writer(), false),
            elsewhere,
        ),
        (
            "readonly",
            vec![],
            Publish("vol-0", "node-0", rwo(), true),
            Ok(()),
        ),
    ];
    check(None, rows).await;
}

#[tokio::test]
async fn a_full_node_takes_no_more_and_says_so() {
    let full = || {
        vec![
            Publish("vol-0", "node-0", rwo(), false),
            Publish("vol-1", "node-0", rwo(), false),
        ]
    };
    let mut made_room = full();
    made_room.push(Unpublish("vol-0", "node-0"));
    let mut elsewhere = full();
    elsewhere.push(Publish("vol-2", "node-1", rwo(), false));
    let rows = vec![
        (
            "full",
            full(),
            Publish("vol-2", "node-0", rwo(), false),
            refused(Code::ResourceExhausted, &["node-0", "2"]),
        ),
        (
            "full, but repeated",
            full(),
            Publish("vol-1", "node-0", rwo(), false),
            Ok(()),
        ),
        (
            "another node",
            full(),
            Publish("vol-2", "node-1", rwo(), false),
            Ok(()),
        ),
        (
            "room was made",
            made_room,
            Publish("vol-2", "node-0", rwo(), false),
            Ok(()),
        ),
        (
            "held elsewhere is told before full",
            elsewhere,
            Publish("vol-2", "node-0", rwo(), false),
            refused(Code::FailedPrecondition, &["node-1"]),
        ),
    ];
    check(NonZeroUsize::new(2), rows).await;
}

#[tokio::test]
async fn unpublish_and_delete_answer_as_the_table_says() {
    let rows = vec![
        ("unpublish", on_node_0(), Unpublish("vol-0", "node-0"), Ok(())),
        (
            "not published there",
            on_node_0(),
            Unpublish("vol-0", "node-1"),
            Ok(()),
        ),
        ("volume gone", vec![], Unpublish("vol-9", "node-0"), Ok(())),
        ("node gone", on_node_0(), Unpublish("vol-0", "node-9"), Ok(())),
        ("everywhere", on_node_0(), Unpublish("vol-0", ""), Ok(())),
        (
            "everywhere, nowhere published",
            vec![],
            Unpublish("vol-0", ""),
            Ok(()),
        ),
        ("delete", vec![], Delete("vol-0"), Ok(())),
        (
            "delete what is gone",
            vec![Delete("vol-0")],
            Delete("vol-0"),
            Ok(()),
        ),
        ("delete what never was", vec![], Delete("vol-9"), Ok(())),
        (
            "delete what is in use",
            on_node_0(),
            Delete("vol-0"),
            refused(Code::FailedPrecondition, &["vol-0", "node-0"]),
        ),
    ];
    check(None, rows).await;
}

#[tokio::test]
async fn unpublish_takes_the_volume_off_one_node_or_off_all() {
    let server = Server::start().await;
    let mut client = server.controller().await;
    for node in ["node-0", "node-1", "node-2"] {
        make(&mut client, Publish("vol-0", node, rwx(), false))
            .await
            .unwrap();
    }
    let nodes = async |client: &mut ControllerClient<Channel>| published(client).await.swap_remove(0).1;
    make(&mut client, Unpublish("vol-0", "node-1")).await.unwrap();
    assert_eq!(nodes(&mut client).await, ["node-0", "node-2"]);
    make(&mut client, Unpublish("vol-0", "")).await.unwrap();
    assert!(nodes(&mut client).await.is_empty());
}

#[tokio::test]
async fn create_is_idempotent_by_name_and_compares_everything() {
    let original = || v1::CreateVolumeRequest {
        capacity_range: Some(CapacityRange {
            required_bytes: 10 * MIB,
            limit_bytes: 20 * MIB,
        }),
        volume_capabilities: vec![rwo(), mk_block(Mode::SingleNodeWriter)],
        parameters: mk_map(&[("tier", "gold")]),
        ..mk_create("a")
    };
    let created = || vec![Create(original())];
    let range = |required_bytes, limit_bytes| {
        Some(CapacityRange {
            required_bytes,
            limit_bytes,
        })
    };
    let taken = |field: &'static [&'static str]| -> Expected { refused(Code::AlreadyExists, field) };
    let rows = vec![
        ("first", vec![], Create(original()), Ok(())),
        ("same again", created(), Create(original()), Ok(())),
        (
            "capabilities in another order",
            created(),
            Create(v1::CreateVolumeRequest {
                volume_capabilities: vec![mk_block(Mode::SingleNodeWriter), rwo()],
                ..original()
            }),
            Ok(()),
        ),
        (
            "a range that holds the size it has",
            created(),
            Create(v1::CreateVolumeRequest {
                capacity_range: range(5 * MIB, 0),
                ..original()
            }),
            Ok(()),
        ),
        (
            "larger",
            created(),
            Create(v1::CreateVolumeRequest {
                capacity_range: range(11 * MIB, 0),
                ..original()
            }),
            taken(&["capacity_range", "\"a\""]),
        ),
        (
            "smaller",
            created(),
            Create(v1::CreateVolumeRequest {
                capacity_range: range(0, 9 * MIB),
                ..original()
            }),
            taken(&["capacity_range"]),
        ),
        (
            "other capabilities",
            created(),
            Create(v1::CreateVolumeRequest {
                volume_capabilities: vec![rwx()],
                ..original()
            }),
            taken(&["volume_capabilities"]),
        ),
        (
            "other parameters",
            created(),
            Create(v1::CreateVolumeRequest {
                parameters: mk_map(&[("tier", "tin")]),
                ..original()
            }),
            taken(&["parameters"]),
        ),
        (
            "another name",
            created(),
            Create(v1::CreateVolumeRequest {
                parameters: mk_map(&[]),
                name: "b".into(),
                ..original()
            }),
            Ok(()),
        ),
        (
            "too large",
            vec![],
            Create(v1::CreateVolumeRequest {
                capacity_range: range(i64::MAX, 0),
                ..original()
            }),
            refused(Code::OutOfRange, &["capacity_range"]),
        ),
        (
            "contradicting range",
            vec![],
            Create(v1::CreateVolumeRequest {
                capacity_range: range(2 * MIB, MIB),
                ..original()
            }),
            refused(Code::OutOfRange, &["required_bytes", "limit_bytes"]),
        ),
    ];
    check(None, rows).await;
}

#[tokio::test]
async fn volume_is_made_as_asked_and_its_name_gets_a_new_id_after_delete() {
    let server = Server::start_with(|_, _| {}).await;
    let mut client = server.controller().await;
    let request = v1::CreateVolumeRequest {
        capacity_range: Some(CapacityRange {
            required_bytes: 10 * MIB,
            limit_bytes: 0,
        }),
        parameters: mk_map(&[("tier", "gold")]),
        ..mk_create("a")
    };
    let mut create = async || {
        client
            .create_volume(request.clone())
            .await
            .unwrap()
            .into_inner()
            .volume
            .unwrap()
    };
    let first = create().await;
    assert_eq!(first.capacity_bytes, 10 * MIB);
    assert_eq!(first.volume_context, mk_map(&[("tier", "gold")]));
    assert_eq!(create().await, first, "the same request gives the same reply");

    server
        .controller()
        .await
        .delete_volume(mk_delete(&first.volume_id))
        .await
        .unwrap();
    let second = create().await;
    assert_ne!(
        second.volume_id, first.volume_id,
        "an old id must not reach a new volume"
    );
}

#[tokio::test]
async fn publish_context_leads_to_the_device_and_stays_the_same_when_repeated() {
    let server = Server::start().await;
    let mut client = server.controller().await;
    let mut publish = async |node: &str| {
        let request = v1::ControllerPublishVolumeRequest {
            volume_capability: Some(rwx()),
            ..mk_publish("vol-0", node)
        };
        client
            .controller_publish_volume(request)
            .await
            .unwrap()
            .into_inner()
            .publish_context
    };
    let context = publish("node-0").await;
    assert!(context["device"].ends_with(&context["serial"]), "{context:?}");
    assert_eq!(context["writable"], "true");
    assert_eq!(publish("node-0").await, context);

    let other = publish("node-1").await;
    assert_eq!(
        other["serial"], context["serial"],
        "one device, seen by two nodes"
    );
    assert_ne!(other["attachment"], context["attachment"]);

    server
        .controller()
        .await
        .controller_unpublish_volume(mk_unpublish("vol-0", "node-0"))
        .await
        .unwrap();
    assert_ne!(publish("node-0").await["attachment"], context["attachment"]);
}

#[tokio::test]
async fn readonly_attachment_is_not_writable() {
    let server = Server::start().await;
    let request = v1::ControllerPublishVolumeRequest {
        readonly: true,
        ..mk_publish("vol-0", "node-0")
    };
    let reply = server
        .controller()
        .await
        .controller_publish_volume(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(reply.publish_context["writable"], "false");
}

#[tokio::test]
async fn volume_serves_what_it_was_created_for_and_nothing_more() {
    let server = Server::start_with(|_, _| {}).await;
    let mut client = server.controller().await;
    let volume = client
        .create_volume(mk_create("a"))
        .await
        .unwrap()
        .into_inner()
        .volume
        .unwrap()
        .volume_id;

    // (case, asked, supported)
    let table = [
        ("as created", rwo(), true),
        ("one workload", mk_mount("", Mode::SingleNodeSingleWriter), true),
        (
            "many workloads on a node",
            mk_mount("ext4", Mode::SingleNodeMultiWriter),
            true,
        ),
        ("reading", mk_mount("", Mode::SingleNodeReaderOnly), true),
        ("many nodes", rwx(), false),
        ("block", mk_block(Mode::SingleNodeWriter), false),
    ];
    for (case, asked, supported) in table {
        let validate = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: volume.clone(),
            volume_capabilities: vec![asked.clone()],
            ..Default::default()
        };
        let reply = client
            .validate_volume_capabilities(validate)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(reply.confirmed.is_some(), supported, "{case}: {reply:?}");
        assert_eq!(reply.message.is_empty(), supported, "{case}: {reply:?}");

        let publish = v1::ControllerPublishVolumeRequest {
            volume_capability: Some(asked),
            ..mk_publish(&volume, "node-0")
        };
        let outcome = client
            .controller_publish_volume(publish)
            .await
            .map_err(|status| status.code());
        let expected = if supported {
            Ok(())
        } else {
            Err(Code::FailedPrecondition)
        };
        assert_eq!(outcome.map(drop), expected, "{case}");
        client
            .controller_unpublish_volume(mk_unpublish(&volume, "node-0"))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn validate_confirms_only_what_is_true() {
    let server = Server::start_with(|_, _| {}).await;
    let mut client = server.controller().await;
    let create = v1::CreateVolumeRequest {
        parameters: mk_map(&[("tier", "gold")]),
        ..mk_create("a")
    };
    let volume_id = client
        .create_volume(create)
        .await
        .unwrap()
        .into_inner()
        .volume
        .unwrap()
        .volume_id;
    let asked = || v1::ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.clone(),
        volume_capabilities: vec![rwo()],
        ..Default::default()
    };
    let gold = || mk_map(&[("tier", "gold")]);
    let tin = || mk_map(&[("tier", "tin")]);
    type Request = v1::ValidateVolumeCapabilitiesRequest;
    // (case, request, the field the objection names)
    let table = [
        ("plain", asked(), None),
        (
            "own context",
            Request {
                volume_context: gold(),
                ..asked()
            },
            None,
        ),
        (
            "own parameters",
            Request {
                parameters: gold(),
                ..asked()
            },
            None,
        ),
        (
            "foreign context",
            Request {
                volume_context: tin(),
                ..asked()
            },
            Some("volume_context"),
        ),
        (
            "foreign parameters",
            Request {
                parameters: tin(),
                ..asked()
            },
            Some("parameters"),
        ),
        (
            "mutable parameters",
            Request {
                mutable_parameters: tin(),
                ..asked()
            },
            Some("mutable_parameters"),
        ),
        (
            "one of two",
            Request {
                volume_capabilities: vec![rwo(), rwx()],
                ..asked()
            },
            Some("volume_capabilities"),
        ),
    ];
    for (case, request, objection) in table {
        let reply = client
            .validate_volume_capabilities(request.clone())
            .await
            .unwrap()
            .into_inner();
        match objection {
            None => {
                let confirmed = reply
                    .confirmed
                    .unwrap_or_else(|| panic!("{case}: {}", reply.message));
                assert_eq!(
                    confirmed.volume_capabilities, request.volume_capabilities,
                    "{case}"
                );
                assert_eq!(confirmed.volume_context, request.volume_context, "{case}");
                assert_eq!(confirmed.parameters, request.parameters, "{case}");
            }
            Some(field) => {
                assert_eq!(reply.confirmed, None, "{case}");
                assert!(reply.message.starts_with(field), "{case}: {}", reply.message);
            }
        }
    }
    let gone = Request {
        volume_id: "gone".into(),
        ..asked()
    };
    assert_eq!(
        client
            .validate_volume_capabilities(gone)
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn get_volume_shows_the_nodes_and_knows_what_is_gone() {
    let server = Server::start().await;
    let mut client = server.controller().await;
    make(&mut client, Publish("vol-0", "node-1", rwx(), false))
        .await
        .unwrap();
    make(&mut client, Publish("vol-0", "node-0", rwx(), false))
        .await
        .unwrap();
    let get = |volume: &str| v1::ControllerGetVolumeRequest {
        volume_id: volume.to_owned(),
    };
    let reply = client
        .controller_get_volume(get("vol-0"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(reply.volume.unwrap().volume_id, "vol-0");
    assert_eq!(reply.status.unwrap().published_node_ids, ["node-0", "node-1"]);
    assert_eq!(
        client
            .controller_get_volume(get("gone"))
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn identity_and_capabilities_are_what_is_served() {
    let server = Server::start().await;
    let mut identity = server.identity().await;
    let info = identity
        .get_plugin_info(v1::GetPluginInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (info.name.as_str(), info.vendor_version.as_str()),
        ("mock.csi.local", env!("CARGO_PKG_VERSION"))
    );
    let probe = identity.probe(v1::ProbeRequest {}).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(true));
    let plugin = identity
        .get_plugin_capabilities(v1::GetPluginCapabilitiesRequest {})
        .await
        .unwrap();
    assert_eq!(plugin.into_inner().capabilities.len(), 1);

    let mut client = server.controller().await;
    let reply = client
        .controller_get_capabilities(v1::ControllerGetCapabilitiesRequest {})
        .await
        .unwrap();
    let has = |wanted: rpc::Type| {
        reply
            .get_ref()
            .capabilities
            .iter()
            .any(|capability| match &capability.r#type {
                Some(Type::Rpc(rpc)) => rpc.r#type == i32::from(wanted),
                None => false,
            })
    };
    for capability in [
        rpc::Type::CreateDeleteVolume,
        rpc::Type::PublishUnpublishVolume,
        rpc::Type::ListVolumes,
        rpc::Type::ListVolumesPublishedNodes,
        rpc::Type::PublishReadonly,
        rpc::Type::GetVolume,
        rpc::Type::SingleNodeMultiWriter,
    ] {
        assert!(has(capability), "{capability:?}");
    }
    // What is not said is not done.
    assert!(!has(rpc::Type::GetCapacity) && !has(rpc::Type::ExpandVolume));
    let capacity = client
        .get_capacity(v1::GetCapacityRequest::default())
        .await
        .unwrap_err();
    assert_eq!(capacity.code(), Code::Unimplemented);
    assert!(capacity.message().contains("GetCapacity"), "{capacity}");
    let expand = client
        .controller_expand_volume(v1::ControllerExpandVolumeRequest::default())
        .await;
    assert_eq!(expand.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn node_service_is_there_when_the_node_is_known() {
    let server = Server::start().await;
    let unknown = server
        .node()
        .await
        .node_get_info(v1::NodeGetInfoRequest {})
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);

    let server = Server::start_with(|_, settings| {
        settings.node_id = Some("node-2".into());
        settings.array.attach_limit = Some(7);
    })
    .await;
    let mut node = server.node().await;
    let info = node
        .node_get_info(v1::NodeGetInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("node-2", 7));
    let stage = node
        .node_stage_volume(v1::NodeStageVolumeRequest::default())
        .await
        .unwrap_err();
    assert_eq!(stage.code(), Code::Unimplemented);
}
