//! Invalid requests: the error names the field.

use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use csi_proto::v1::{self, CapacityRange, TopologyRequirement, VolumeCapability};
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

fn with_flags(mount_flags: Vec<String>) -> VolumeCapability {
    let mount = MountVolume {
        mount_flags,
        ..Default::default()
    };
    let access_type = Some(AccessType::Mount(mount));
    VolumeCapability {
        access_type,
        ..mk_mount("", Mode::SingleNodeWriter)
    }
}

fn assert_refused<T: std::fmt::Debug>(case: &str, outcome: Result<T, Status>, field: &str) {
    let status = outcome.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{case}: {status}");
    let named = status.message().split(':').next().unwrap();
    assert_eq!(named, field, "{case}: {status}");
}

async fn assert_create_refused(table: Vec<(&str, Create, &str)>) {
    let server = Server::start_with(|_, _| {}).await;
    let mut client = server.controller().await;
    for (case, request, field) in table {
        assert_refused(case, client.create_volume(request).await, field);
    }
    assert!(published(&mut client).await.is_empty(), "nothing was created");
}

#[tokio::test]
async fn invalid_create_names_the_field() {
    let named = |name: &str| Create {
        name: name.to_owned(),
        ..mk_create("")
    };
    let sized = |required_bytes, limit_bytes| Create {
        capacity_range: Some(CapacityRange {
            required_bytes,
            limit_bytes,
        }),
        ..mk_create("a")
    };
    let large = mk_map(&[("k", &long(4096))]);
    let spaced = mk_map(&[("a b", "")]);
    let fake = mk_map(&[("XXX_FakeKey", "v")]);
    let source = Some(v1::VolumeContentSource::default());
    let topology = Some(TopologyRequirement::default());
    #[rustfmt::skip]
    let table = vec![
        ("no name", named(""), "name"),
        ("long name", named(&long(129)), "name"),
        ("banned character", named("a\u{7f}b"), "name"),
        ("another banned character", named("a\0b"), "name"),
        ("negative size", sized(-1, 0), "capacity_range.required_bytes"),
        ("negative limit", sized(0, -1), "capacity_range.limit_bytes"),
        ("empty range", sized(0, 0), "capacity_range"),
        ("large parameters", Create { parameters: large.clone(), ..mk_create("a") }, "parameters"),
        ("large secrets", Create { secrets: large, ..mk_create("a") }, "secrets"),
        ("secret key with a space", Create { secrets: spaced, ..mk_create("a") }, "secrets"),
        ("source", Create { volume_content_source: source, ..mk_create("a") }, "volume_content_source"),
        ("topology", Create { accessibility_requirements: topology, ..mk_create("a") }, "accessibility_requirements"),
        ("mutable parameters", Create { mutable_parameters: fake, ..mk_create("a") }, "mutable_parameters"),
    ];
    assert_create_refused(table).await;
}

#[tokio::test]
async fn invalid_capability_names_the_field() {
    let used_as = |volume_capabilities| Create {
        volume_capabilities,
        ..mk_create("a")
    };
    let good = || mk_block(Mode::SingleNodeWriter);
    let no_type = VolumeCapability {
        access_type: None,
        ..good()
    };
    let no_mode = VolumeCapability {
        access_mode: None,
        ..good()
    };
    let many_flags = with_flags(vec![long(2048), long(2049)]);
    let long_type = mk_mount(&long(129), Mode::SingleNodeWriter);
    #[rustfmt::skip]
    let table = vec![
        ("none", used_as(vec![]), "volume_capabilities"),
        ("no access type", used_as(vec![good(), no_type]), "volume_capabilities[1].access_type"),
        ("no access mode", used_as(vec![no_mode]), "volume_capabilities[0].access_mode"),
        ("mode 0", used_as(vec![with_mode(0)]), "volume_capabilities[0].access_mode.mode"),
        ("mode of the future", used_as(vec![with_mode(99)]), "volume_capabilities[0].access_mode.mode"),
        ("mount flags", used_as(vec![many_flags]), "volume_capabilities[0].mount.mount_flags"),
        ("long fs_type", used_as(vec![long_type]), "volume_capabilities[0].mount.fs_type"),
    ];
    assert_create_refused(table).await;
}

#[tokio::test]
async fn longest_allowed_texts_are_accepted() {
    let server = Server::start_with(|_, _| {}).await;
    let mut client = server.controller().await;
    let request = Create {
        name: long(128),
        volume_capabilities: vec![with_flags(vec![long(2048), long(2048)])],
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
async fn invalid_publish_names_the_field() {
    let server = Server::start().await;
    let mut client = server.controller().await;
    let valid = || mk_publish("vol-0", "node-0");
    let used_as = |capability| Publish {
        volume_capability: capability,
        ..valid()
    };
    let no_mode = VolumeCapability {
        access_mode: None,
        ..mk_block(Mode::SingleNodeWriter)
    };
    let large = mk_map(&[("k", &long(4096))]);
    let table = vec![
        ("no volume", mk_publish("", "node-0"), "volume_id"),
        ("long volume", mk_publish(&long(129), "node-0"), "volume_id"),
        ("no node", mk_publish("vol-0", ""), "node_id"),
        ("long node", mk_publish("vol-0", &long(257)), "node_id"),
        ("no capability", used_as(None), "volume_capability"),
        (
            "no access mode",
            used_as(Some(no_mode)),
            "volume_capability.access_mode",
        ),
        (
            "mode of the future",
            used_as(Some(with_mode(99))),
            "volume_capability.access_mode.mode",
        ),
        (
            "large context",
            Publish {
                volume_context: large.clone(),
                ..valid()
            },
            "volume_context",
        ),
        (
            "large secrets",
            Publish {
                secrets: large,
                ..valid()
            },
            "secrets",
        ),
    ];
    for (case, request, field) in table {
        assert_refused(case, client.controller_publish_volume(request).await, field);
    }
    assert!(
        published(&mut client)
            .await
            .iter()
            .all(|(_, nodes)| nodes.is_empty())
    );
}

#[tokio::test]
async fn other_invalid_calls_name_the_field() {
    let server = Server::start().await;
    let mut client = server.controller().await;
    let nameless = Unpublish {
        secrets: mk_map(&[("", "v")]),
        ..mk_unpublish("vol-0", "")
    };
    let table = vec![
        ("unpublish nothing", mk_unpublish("", "node-0"), "volume_id"),
        (
            "unpublish from a long node",
            mk_unpublish("vol-0", &long(257)),
            "node_id",
        ),
        ("unpublish with a nameless secret", nameless, "secrets"),
    ];
    for (case, request, field) in table {
        assert_refused(case, client.controller_unpublish_volume(request).await, field);
    }
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
    let mut validate = v1::ValidateVolumeCapabilitiesRequest::default();
    let outcome = client.validate_volume_capabilities(validate.clone()).await;
    assert_refused("validate nothing", outcome, "volume_id");
    validate.volume_id = "vol-0".into();
    let outcome = client.validate_volume_capabilities(validate).await;
    assert_refused("validate no capabilities", outcome, "volume_capabilities");
    let list = v1::ListVolumesRequest {
        max_entries: -1,
        ..Default::default()
    };
    assert_refused("negative page", client.list_volumes(list).await, "max_entries");
}
