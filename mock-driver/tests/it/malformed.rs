//! Requests that are wrong in themselves: each is refused by the name of its field.

use csi_proto::v1::volume_capability::{AccessMode, MountVolume, access_mode::Mode};
use csi_proto::v1::{self, CapacityRange, Topology, TopologyRequirement, VolumeCapability};
use tonic::{Code, Status};

use crate::server::{
    Server, mk_block, mk_create, mk_delete, mk_map, mk_mount, mk_publish, mk_unpublish, published,
};

type Create = v1::CreateVolumeRequest;
type Publish = v1::ControllerPublishVolumeRequest;
type Unpublish = v1::ControllerUnpublishVolumeRequest;

fn long(bytes: usize) -> String {
    "x".repeat(bytes)
}

fn with_mode(mode: i32) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode }),
        ..mk_block(Mode::SingleNodeWriter)
    }
}

fn assert_refused<T: std::fmt::Debug>(case: &str, outcome: Result<T, Status>, field: &str) {
    let status = outcome.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{case}: {status}");
    let named = status.message().split(':').next().unwrap();
    assert_eq!(named, field, "{case}: {status}");
}

#[tokio::test]
async fn create_names_the_wrong_field() {
    let server = Server::start_with(|_, _| {}).await;
    let mut client = server.controller().await;
    let range = |required_bytes, limit_bytes| {
        Some(CapacityRange {
            required_bytes,
            limit_bytes,
        })
    };
    let large_map = mk_map(&[("k", &long(4096))]);
    let flags = MountVolume {
        mount_flags: vec![long(2048), long(2049)],
        ..Default::default()
    };
    let many_flags = VolumeCapability {
        access_type: Some(v1::volume_capability::AccessType::Mount(flags)),
        ..mk_mount("", Mode::SingleNodeWriter)
    };
    let source = v1::VolumeContentSource::default();
    let topology = TopologyRequirement {
        requisite: vec![Topology::default()],
        preferred: vec![],
    };
    let table: Vec<(&str, Create, &str)> = vec![
        (
            "no name",
            Create {
                name: String::new(),
                ..mk_create("a")
            },
            "name",
        ),
        (
            "long name",
            Create {
                name: long(129),
                ..mk_create("a")
            },
            "name",
        ),
        (
            "banned character",
            Create {
                name: "a\u{7f}b".into(),
                ..mk_create("a")
            },
            "name",
        ),
        (
            "banned control",
            Create {
                name: "a\0b".into(),
                ..mk_create("a")
            },
            "name",
        ),
        (
            "no capabilities",
            Create {
                volume_capabilities: vec![],
                ..mk_create("a")
            },
            "volume_capabilities",
        ),
        (
            "no access type",
            Create {
                volume_capabilities: vec![
                    mk_block(Mode::SingleNodeWriter),
                    VolumeCapability {
                        access_type: None,
                        ..mk_block(Mode::SingleNodeWriter)
                    },
                ],
                ..mk_create("a")
            },
            "volume_capabilities[1].access_type",
        ),
        (
            "unknown mode",
            Create {
                volume_capabilities: vec![with_mode(0)],
                ..mk_create("a")
            },
            "volume_capabilities[0].access_mode.mode",
        ),
        (
            "too many mount flags",
            Create {
                volume_capabilities: vec![many_flags],
                ..mk_create("a")
            },
            "volume_capabilities[0].mount.mount_flags",
        ),
        (
            "long fs_type",
            Create {
                volume_capabilities: vec![mk_mount(&long(129), Mode::SingleNodeWriter)],
                ..mk_create("a")
            },
            "volume_capabilities[0].mount.fs_type",
        ),
        (
            "negative size",
            Create {
                capacity_range: range(-1, 0),
                ..mk_create("a")
            },
            "capacity_range.required_bytes",
        ),
        (
            "negative limit",
            Create {
                capacity_range: range(0, -1),
                ..mk_create("a")
            },
            "capacity_range.limit_bytes",
        ),
        (
            "empty range",
            Create {
                capacity_range: range(0, 0),
                ..mk_create("a")
            },
            "capacity_range",
        ),
        (
            "large parameters",
            Create {
                parameters: large_map.clone(),
                ..mk_create("a")
            },
            "parameters",
        ),
        (
            "large secrets",
            Create {
                secrets: large_map,
                ..mk_create("a")
            },
            "secrets",
        ),
        (
            "secret key",
            Create {
                secrets: mk_map(&[("a b", "")]),
                ..mk_create("a")
            },
            "secrets",
        ),
        (
            "source",
            Create {
                volume_content_source: Some(source),
                ..mk_create("a")
            },
            "volume_content_source",
        ),
        (
            "topology",
            Create {
                accessibility_requirements: Some(topology),
                ..mk_create("a")
            },
            "accessibility_requirements",
        ),
        (
            "mutable parameters",
            Create {
                mutable_parameters: mk_map(&[("XXX_FakeKey", "v")]),
                ..mk_create("a")
            },
            "mutable_parameters",
        ),
    ];
    for (case, request, field) in table {
        assert_refused(case, client.create_volume(request).await, field);
    }
    assert!(published(&mut client).await.is_empty(), "nothing was made");
}

#[tokio::test]
async fn longest_allowed_texts_are_taken() {
    let server = Server::start_with(|_, _| {}).await;
    let mut client = server.controller().await;
    let request = Create {
        name: long(128),
        parameters: mk_map(&[("k", &long(4095))]),
        secrets: mk_map(&[("a.b-C_1", &long(4000))]),
        ..mk_create("")
    };
    client.create_volume(request).await.unwrap();
    let unicode = Create {
        name: "größer\tals\n\u{1f600}".into(),
        ..mk_create("")
    };
    client.create_volume(unicode).await.unwrap();
    client
        .controller_unpublish_volume(mk_unpublish("vol-0", &long(256)))
        .await
        .unwrap();
}

#[tokio::test]
async fn publish_and_unpublish_name_the_wrong_field() {
    let server = Server::start().await;
    let mut client = server.controller().await;
    let valid = || mk_publish("vol-0", "node-0");
    let table: Vec<(&str, Publish, &str)> = vec![
        (
            "no volume",
            Publish {
                volume_id: String::new(),
                ..valid()
            },
            "volume_id",
        ),
        (
            "long volume",
            Publish {
                volume_id: long(129),
                ..valid()
            },
            "volume_id",
        ),
        (
            "no node",
            Publish {
                node_id: String::new(),
                ..valid()
            },
            "node_id",
        ),
        (
            "long node",
            Publish {
                node_id: long(257),
                ..valid()
            },
            "node_id",
        ),
        (
            "no capability",
            Publish {
                volume_capability: None,
                ..valid()
            },
            "volume_capability",
        ),
        (
            "no access mode",
            Publish {
                volume_capability: Some(VolumeCapability {
                    access_mode: None,
                    ..mk_block(Mode::SingleNodeWriter)
                }),
                ..valid()
            },
            "volume_capability.access_mode",
        ),
        (
            "mode of the future",
            Publish {
                volume_capability: Some(with_mode(99)),
                ..valid()
            },
            "volume_capability.access_mode.mode",
        ),
        (
            "large context",
            Publish {
                volume_context: mk_map(&[("k", &long(4096))]),
                ..valid()
            },
            "volume_context",
        ),
        (
            "large secrets",
            Publish {
                secrets: mk_map(&[("k", &long(4096))]),
                ..valid()
            },
            "secrets",
        ),
    ];
    for (case, request, field) in table {
        assert_refused(case, client.controller_publish_volume(request).await, field);
    }
    let table: Vec<(&str, Unpublish, &str)> = vec![
        ("no volume", mk_unpublish("", "node-0"), "volume_id"),
        ("long node", mk_unpublish("vol-0", &long(257)), "node_id"),
        (
            "secret key",
            Unpublish {
                secrets: mk_map(&[("", "v")]),
                ..mk_unpublish("vol-0", "")
            },
            "secrets",
        ),
    ];
    for (case, request, field) in table {
        assert_refused(case, client.controller_unpublish_volume(request).await, field);
    }
    assert!(
        published(&mut client)
            .await
            .iter()
            .all(|(_, nodes)| nodes.is_empty())
    );
}

#[tokio::test]
async fn the_other_calls_name_the_wrong_field() {
    let server = Server::start().await;
    let mut client = server.controller().await;
    assert_refused(
        "delete nothing",
        client.delete_volume(mk_delete("")).await,
        "volume_id",
    );
    let get = v1::ControllerGetVolumeRequest::default();
    assert_refused(
        "get nothing",
        client.controller_get_volume(get).await,
        "volume_id",
    );
    let validate = v1::ValidateVolumeCapabilitiesRequest::default();
    assert_refused(
        "validate nothing",
        client.validate_volume_capabilities(validate).await,
        "volume_id",
    );
    let validate = v1::ValidateVolumeCapabilitiesRequest {
        volume_id: "vol-0".into(),
        ..Default::default()
    };
    let outcome = client.validate_volume_capabilities(validate).await;
    assert_refused("validate no capabilities", outcome, "volume_capabilities");
    let list = v1::ListVolumesRequest {
        max_entries: -1,
        ..Default::default()
    };
    assert_refused("negative page", client.list_volumes(list).await, "max_entries");
}
