//! ControllerPublishVolume and ControllerUnpublishVolume: one row for each cell of the
//! specification's error tables.

use std::num::NonZeroUsize;

use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::volume_capability::access_mode::Mode;
use tonic::Code::{AlreadyExists, FailedPrecondition, NotFound, ResourceExhausted};
use tonic::transport::Channel;

use crate::server::{Server, mk_block, mk_mount, mk_publish, mk_unpublish, published};
use crate::table::Call::{Delete, Publish, Unpublish};
use crate::table::{Call, check, make, one_writer, refused, rox, rwo, rwx};

fn on_node_0() -> Vec<Call> {
    vec![Publish("vol-0", "node-0", rwo(), false)]
}

#[tokio::test]
async fn publish_requires_volume_and_node_and_is_idempotent() {
    let moved = vec![
        Publish("vol-0", "node-0", rwo(), false),
        Unpublish("vol-0", "node-0"),
    ];
    #[rustfmt::skip]
    let rows = vec![
        ("first", vec![], Publish("vol-0", "node-0", rwo(), false), Ok(())),
        ("read-only", vec![], Publish("vol-0", "node-0", rwo(), true), Ok(())),
        ("repeated", on_node_0(), Publish("vol-0", "node-0", rwo(), false), Ok(())),
        ("moved", moved, Publish("vol-0", "node-1", rwo(), false), Ok(())),
        ("volume gone", vec![], Publish("vol-9", "node-0", rwo(), false), refused(NotFound, &["volume", "vol-9"])),
        ("volume deleted", vec![Delete("vol-0")], Publish("vol-0", "node-0", rwo(), false), refused(NotFound, &["vol-0"])),
        ("node gone", vec![], Publish("vol-0", "node-9", rwo(), false), refused(NotFound, &["node", "node-9"])),
    ];
    check(None, rows).await;
}

#[tokio::test]
async fn publish_to_the_same_node_with_other_arguments_is_refused() {
    let way = |capability, readonly| Publish("vol-0", "node-0", capability, readonly);
    let capability = || refused(AlreadyExists, &["volume_capability", "vol-0", "node-0"]);
    #[rustfmt::skip]
    let rows = vec![
        ("other mode", on_node_0(), way(rwx(), false), capability()),
        ("block instead of mount", on_node_0(), way(mk_block(Mode::SingleNodeWriter), false), capability()),
        ("other filesystem", on_node_0(), way(mk_mount("xfs", Mode::SingleNodeWriter), false), capability()),
        ("other readonly", on_node_0(), way(rwo(), true), refused(AlreadyExists, &["readonly", "node-0"])),
    ];
    check(None, rows).await;
}

#[tokio::test]
async fn publish_to_another_node_follows_the_access_modes() {
    let held = |capability, readonly| vec![Publish("vol-0", "node-0", capability, readonly)];
    let here = |capability, readonly| Publish("vol-0", "node-1", capability, readonly);
    let elsewhere = || refused(FailedPrecondition, &["vol-0", "node-0"]);
    let rows = vec![
        ("single-node", held(rwo(), false), here(rwo(), false), elsewhere()),
        (
            "single-node there, multi-node here",
            held(rwo(), false),
            here(rwx(), false),
            elsewhere(),
        ),
        (
            "multi-node there, single-node here",
            held(rwx(), false),
            here(rwo(), false),
            elsewhere(),
        ),
        (
            "single-node, read-only here",
            held(rwo(), false),
            here(rwo(), true),
            elsewhere(),
        ),
        ("writers", held(rwx(), false), here(rwx(), false), Ok(())),
        ("readers", held(rox(), true), here(rox(), true), Ok(())),
        (
            "writer there, readers only here",
            held(rwx(), false),
            here(rox(), true),
            elsewhere(),
        ),
        (
            "one writer and a reader",
            held(one_writer(), false),
            here(one_writer(), true),
            Ok(()),
        ),
        (
            "a reader and then the one writer",
            held(one_writer(), true),
            here(one_writer(), false),
            Ok(()),
        ),
        (
            "second of one writer",
            held(one_writer(), false),
            here(one_writer(), false),
            elsewhere(),
        ),
    ];
    check(None, rows).await;
}

#[tokio::test]
async fn full_node_is_resource_exhausted() {
    let publish = |volume, node| Publish(volume, node, rwo(), false);
    let full = || vec![publish("vol-0", "node-0"), publish("vol-1", "node-0")];
    let and = |mut calls: Vec<Call>, call| {
        calls.push(call);
        calls
    };
    #[rustfmt::skip]
    let rows = vec![
        ("full", full(), publish("vol-2", "node-0"), refused(ResourceExhausted, &["node-0", "2"])),
        ("full, but repeated", full(), publish("vol-1", "node-0"), Ok(())),
        ("another node", full(), publish("vol-2", "node-1"), Ok(())),
        ("room was made", and(full(), Unpublish("vol-0", "node-0")), publish("vol-2", "node-0"), Ok(())),
        (
            "attached elsewhere takes precedence over full",
            and(full(), publish("vol-2", "node-1")), publish("vol-2", "node-0"),
            refused(FailedPrecondition, &["node-1"]),
        ),
    ];
    check(NonZeroUsize::new(2), rows).await;
}

#[tokio::test]
async fn unpublish_of_absent_objects_succeeds() {
    let rows = vec![
        (
            "published there",
            on_node_0(),
            Unpublish("vol-0", "node-0"),
            Ok(()),
        ),
        (
            "not published there",
            on_node_0(),
            Unpublish("vol-0", "node-1"),
            Ok(()),
        ),
        ("volume gone", vec![], Unpublish("vol-9", "node-0"), Ok(())),
        ("node gone", on_node_0(), Unpublish("vol-0", "node-9"), Ok(())),
        ("from all", on_node_0(), Unpublish("vol-0", ""), Ok(())),
        (
            "from all, published nowhere",
            vec![],
            Unpublish("vol-0", ""),
            Ok(()),
        ),
    ];
    check(None, rows).await;
}

#[tokio::test]
async fn unpublish_detaches_from_one_node_or_all_nodes() {
    let server = Server::start().await;
    let mut client = server.controller().await;
    for node in ["node-0", "node-1", "node-2"] {
        make(&mut client, Publish("vol-0", node, rwx(), false))
            .await
            .unwrap();
    }
    let nodes = async |client: &mut ControllerClient<Channel>| published(client).await.swap_remove(0).1;
    make(&mut client, Unpublish("vol-0", "node-9")).await.unwrap();
    make(&mut client, Unpublish("vol-0", "node-1")).await.unwrap();
    assert_eq!(nodes(&mut client).await, ["node-0", "node-2"]);
    make(&mut client, Unpublish("vol-0", "")).await.unwrap();
    assert!(nodes(&mut client).await.is_empty());
}

#[tokio::test]
async fn publish_context_names_the_device_and_is_stable() {
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

    let unpublish = mk_unpublish("vol-0", "node-0");
    server
        .controller()
        .await
        .controller_unpublish_volume(unpublish)
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
        .unwrap();
    assert_eq!(reply.into_inner().publish_context["writable"], "false");
}
