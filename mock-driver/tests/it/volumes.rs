//! CreateVolume, DeleteVolume, ValidateVolumeCapabilities and ControllerGetVolume: one row for each
//! cell of the specification's error tables.

use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::{
    self, CapacityRange, CreateVolumeRequest, ValidateVolumeCapabilitiesRequest, VolumeCapability,
};
use tonic::Code;

use crate::server::{Server, mk_block, mk_create, mk_delete, mk_map, mk_mount, mk_publish, mk_unpublish};
use crate::table::Call::{Create, Delete, Publish};
use crate::table::{Expected, check, created, make, refused, rwo, rwx};

const MIB: i64 = 1 << 20;

fn range(required_bytes: i64, limit_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange {
        required_bytes,
        limit_bytes,
    })
}

/// A request that sets every field that the driver supports.
fn mk_full() -> CreateVolumeRequest {
    CreateVolumeRequest {
        capacity_range: range(10 * MIB, 20 * MIB),
        volume_capabilities: vec![rwo(), mk_block(Mode::SingleNodeWriter)],
        parameters: mk_map(&[("tier", "gold")]),
        ..mk_create("a")
    }
}

fn mk_validate(
    volume: &str,
    volume_capabilities: Vec<VolumeCapability>,
) -> ValidateVolumeCapabilitiesRequest {
    let volume_id = volume.to_owned();
    ValidateVolumeCapabilitiesRequest {
        volume_id,
        volume_capabilities,
        ..Default::default()
    }
}

#[tokio::test]
async fn create_is_idempotent_by_name_and_compares_everything() {
    let sized = |range| {
        Create(CreateVolumeRequest {
            capacity_range: range,
            ..mk_full()
        })
    };
    let used_as = |volume_capabilities| {
        Create(CreateVolumeRequest {
            volume_capabilities,
            ..mk_full()
        })
    };
    let with = |parameters| {
        Create(CreateVolumeRequest {
            parameters: mk_map(parameters),
            ..mk_full()
        })
    };
    let again = || vec![Create(mk_full())];
    let taken = |words: &'static [&'static str]| -> Expected { refused(Code::AlreadyExists, words) };
    let swapped = vec![mk_block(Mode::SingleNodeWriter), rwo()];
    let renamed = CreateVolumeRequest {
        name: "b".into(),
        parameters: mk_map(&[]),
        ..mk_full()
    };
    let rows = vec![
        ("first", vec![], Create(mk_full()), Ok(())),
        ("repeated", again(), Create(mk_full()), Ok(())),
        ("capabilities in another order", again(), used_as(swapped), Ok(())),
        (
            "a range that holds the size it has",
            again(),
            sized(range(5 * MIB, 0)),
            Ok(()),
        ),
        (
            "larger",
            again(),
            sized(range(11 * MIB, 0)),
            taken(&["capacity_range", "\"a\""]),
        ),
        (
            "smaller",
            again(),
            sized(range(0, 9 * MIB)),
            taken(&["capacity_range"]),
        ),
        (
            "other capabilities",
            again(),
            used_as(vec![rwx()]),
            taken(&["volume_capabilities"]),
        ),
        (
            "fewer capabilities",
            again(),
            used_as(vec![rwo()]),
            taken(&["volume_capabilities"]),
        ),
        (
            "other parameters",
            again(),
            with(&[("tier", "tin")]),
            taken(&["parameters"]),
        ),
        ("fewer parameters", again(), with(&[]), taken(&["parameters"])),
        ("another name", again(), Create(renamed), Ok(())),
    ];
    check(None, rows).await;
}

#[tokio::test]
async fn create_refuses_impossible_sizes() {
    let sized = |required, limit| {
        Create(CreateVolumeRequest {
            capacity_range: range(required, limit),
            ..mk_create("a")
        })
    };
    let impossible = |words: &'static [&'static str]| -> Expected { refused(Code::OutOfRange, words) };
    let rows = vec![
        ("exact", vec![], sized(10 * MIB, 10 * MIB), Ok(())),
        (
            "too large",
            vec![],
            sized(i64::MAX, 0),
            impossible(&["capacity_range", "required_bytes"]),
        ),
        (
            "too small",
            vec![],
            sized(1, 2),
            impossible(&["capacity_range", "limit_bytes"]),
        ),
        (
            "contradiction",
            vec![],
            sized(2 * MIB, MIB),
            impossible(&["required_bytes", "limit_bytes"]),
        ),
    ];
    check(None, rows).await;
}

#[tokio::test]
async fn delete_refuses_volumes_in_use_only() {
    let on_node_0 = vec![Publish("vol-0", "node-0", rwo(), false)];
    let in_use = refused(Code::FailedPrecondition, &["vol-0", "node-0"]);
    let rows = vec![
        ("there", vec![], Delete("vol-0"), Ok(())),
        ("gone", vec![Delete("vol-0")], Delete("vol-0"), Ok(())),
        ("never was", vec![], Delete("vol-9"), Ok(())),
        ("in use", on_node_0, Delete("vol-0"), in_use),
    ];
    check(None, rows).await;
}

#[tokio::test]
async fn created_volume_matches_request_and_reused_name_gets_new_id() {
    let server = Server::start_with(|_, _| {}).await;
    let mut client = server.controller().await;
    let mut create = async || {
        client
            .create_volume(mk_full())
            .await
            .unwrap()
            .into_inner()
            .volume
            .unwrap()
    };
    let first = create().await;
    assert_eq!(first.capacity_bytes, 10 * MIB);
    assert_eq!(first.volume_context, mk_map(&[("tier", "gold")]));
    assert_eq!(
        create().await,
        first,
        "the same request returns the same response"
    );

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
async fn volume_supports_only_its_creation_capabilities() {
    let server = Server::start_with(|_, _| {}).await;
    let mut client = server.controller().await;
    let volume = created(&mut client, "a").await;

    // (case, requested, supported)
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
    for (case, requested, supported) in table {
        let validate = mk_validate(&volume, vec![requested.clone()]);
        let reply = client
            .validate_volume_capabilities(validate)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(reply.confirmed.is_some(), supported, "{case}: {reply:?}");
        assert_eq!(reply.message.is_empty(), supported, "{case}: {reply:?}");

        let publish = v1::ControllerPublishVolumeRequest {
            volume_capability: Some(requested),
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
async fn validate_confirms_only_supported_capabilities() {
    type Request = ValidateVolumeCapabilitiesRequest;
    let server = Server::start_with(|_, _| {}).await;
    let mut client = server.controller().await;
    let create = CreateVolumeRequest {
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
    let requested = || mk_validate(&volume_id, vec![rwo()]);
    let (gold, tin) = (mk_map(&[("tier", "gold")]), mk_map(&[("tier", "tin")]));
    // (request, the field in the error)
    #[rustfmt::skip]
    let table = [
        (requested(), None),
        (Request { volume_context: gold.clone(), ..requested() }, None),
        (Request { parameters: gold, ..requested() }, None),
        (Request { volume_context: tin.clone(), ..requested() }, Some("volume_context")),
        (Request { parameters: tin.clone(), ..requested() }, Some("parameters")),
        (Request { mutable_parameters: tin, ..requested() }, Some("mutable_parameters")),
        (Request { volume_capabilities: vec![rwo(), rwx()], ..requested() }, Some("volume_capabilities")),
    ];
    for (request, objection) in table {
        let reply = client
            .validate_volume_capabilities(request.clone())
            .await
            .unwrap()
            .into_inner();
        let Some(field) = objection else {
            let confirmed = reply.confirmed.expect(&reply.message);
            assert_eq!(confirmed.volume_capabilities, request.volume_capabilities);
            assert_eq!(confirmed.volume_context, request.volume_context);
            assert_eq!(confirmed.parameters, request.parameters);
            continue;
        };
        assert_eq!(reply.confirmed, None, "{request:?}");
        assert!(reply.message.starts_with(field), "{request:?}: {}", reply.message);
    }
    let gone = Request {
        volume_id: "gone".into(),
        ..requested()
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
async fn get_volume_returns_nodes_and_not_found_after_deletion() {
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
