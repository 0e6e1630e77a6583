//! Settings that make an array laxer or stricter than CSI requires.

use csi_proto::v1;
use csi_proto::v1::volume_capability::access_mode::Mode;
use tonic::Code;

use super::{World, assert_refused};
use crate::server::{mk_create, mk_mount, mk_unpublish};

#[tokio::test]
async fn lax_array_deletes_volumes_in_use() {
    let mut world = World::start_with(|_, settings| {
        settings.array.deviations.delete_in_use = true;
        settings.array.attach_limit = Some(1);
        settings.initial_volumes = 2;
    })
    .await;
    world.publish("vol-0", "node-0").await.unwrap();
    world.delete("vol-0").await.unwrap();
    world
        .publish("vol-1", "node-0")
        .await
        .expect("the node has room again");
}

#[tokio::test]
async fn strict_unpublish_of_absent_objects_is_not_found() {
    let mut world = World::start_with(|_, settings| {
        settings.array.deviations.unpublish_not_found = true;
        settings.initial_volumes = 1;
    })
    .await;
    world.publish("vol-0", "node-0").await.unwrap();
    // (case, volume, node, found)
    #[rustfmt::skip]
    let table = [
        ("volume gone", "gone", "node-0", false),
        ("node gone", "vol-0", "gone", false),
        ("attached", "vol-0", "node-0", true),
        ("not attached any more", "vol-0", "node-0", true),
        ("from all nodes", "vol-0", "", true),
    ];
    for (case, volume, node, found) in table {
        let request = mk_unpublish(volume, node);
        let outcome = world.controller.controller_unpublish_volume(request).await;
        match found {
            true => drop(outcome.expect(case)),
            false => assert_refused(case, outcome, Code::NotFound, &["gone"]),
        }
    }
}

/// CreateVolume refuses filesystems that no node supports, and ValidateVolumeCapabilities does not confirm them.
#[tokio::test]
async fn filesystems_that_nodes_do_not_support_are_refused() {
    let mut world = World::start().await;
    let used_as = |fs_type| vec![mk_mount(fs_type, Mode::SingleNodeWriter)];
    for fs_type in ["", "ext2", "ext3", "ext4", "xfs"] {
        let wanted = v1::CreateVolumeRequest {
            volume_capabilities: used_as(fs_type),
            ..mk_create(&format!("of {fs_type}"))
        };
        world.create(wanted).await.expect(fs_type);
    }
    let wanted = v1::CreateVolumeRequest {
        volume_capabilities: used_as("btrfs"),
        ..mk_create("a")
    };
    let words = ["volume_capabilities[0].mount.fs_type", "btrfs"];
    assert_refused(
        "create",
        world.create(wanted).await,
        Code::InvalidArgument,
        &words,
    );
    let volume_id = world.volume("b").await;
    let question = v1::ValidateVolumeCapabilitiesRequest {
        volume_id,
        volume_capabilities: used_as("btrfs"),
        ..Default::default()
    };
    let validated = world.controller.validate_volume_capabilities(question).await;
    let validated = validated.unwrap().into_inner();
    assert_eq!(validated.confirmed, None);
    assert!(
        words.iter().all(|word| validated.message.contains(word)),
        "{}",
        validated.message
    );
}
