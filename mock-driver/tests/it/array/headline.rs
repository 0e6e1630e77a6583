//! Defects of other mock drivers that csi-sanity does not detect.

use csi_mock_driver::store::volume_files::FileId;
use csi_proto::v1;
use tonic::Code;

use super::{MIB, World, assert_refused, from_volume, mk_range, mk_volume};
use crate::server::{mk_unpublish, published};

async fn world() -> World {
    World::start_with(|_, settings| settings.initial_volumes = 3).await
}

fn page(max_entries: i32, starting_token: &str) -> v1::ListVolumesRequest {
    v1::ListVolumesRequest {
        max_entries,
        starting_token: starting_token.to_owned(),
    }
}

#[tokio::test]
async fn token_zero_is_refused_without_a_crash() {
    let mut world = world().await;
    for token in ["0", "1", "1000000", "-1"] {
        let outcome = world.controller.list_volumes(page(1, token)).await;
        assert_refused(token, outcome, Code::Aborted, &["starting_token"]);
    }
    assert_eq!(published(&mut world.controller).await.len(), 3);
}

#[tokio::test]
async fn list_has_a_second_page() {
    let mut world = world().await;
    let first = world
        .controller
        .list_volumes(page(2, ""))
        .await
        .unwrap()
        .into_inner();
    assert!(!first.next_token.is_empty());
    let second = world.controller.list_volumes(page(2, &first.next_token)).await;
    assert_eq!(second.unwrap().into_inner().entries.len(), 1);
}

#[tokio::test]
async fn volumes_are_published_to_several_nodes() {
    let mut world = world().await;
    for (volume, node) in [("vol-0", "node-0"), ("vol-1", "node-1"), ("vol-2", "node-2")] {
        world.publish(volume, node).await.expect(node);
    }
}

#[tokio::test]
async fn unpublish_from_a_removed_node_leaves_other_attachments() {
    let mut world = world().await;
    world.publish("vol-0", "node-0").await.unwrap();
    let gone = mk_unpublish("vol-0", "node-that-is-gone");
    world.controller.controller_unpublish_volume(gone).await.unwrap();
    let nodes = published(&mut world.controller).await.swap_remove(0).1;
    assert_eq!(nodes, ["node-0"], "the other node keeps it");
}

#[tokio::test]
async fn published_nodes_are_sorted_and_never_blank() {
    let mut world = world().await;
    let nodes = async |world: &mut World| -> Vec<Vec<String>> {
        let listed = published(&mut world.controller).await;
        let mut nodes = Vec::new();
        for (volume_id, of_list) in listed {
            let request = v1::ControllerGetVolumeRequest { volume_id };
            let got = world.controller.controller_get_volume(request).await.unwrap();
            assert_eq!(got.into_inner().status.unwrap().published_node_ids, of_list);
            nodes.push(of_list);
        }
        nodes
    };
    const NONE: [&str; 0] = [];
    assert_eq!(nodes(&mut world).await, [NONE; 3], "never attached");
    world.publish("vol-1", "node-2").await.unwrap();
    assert_eq!(nodes(&mut world).await, [&[][..], &["node-2"], &[]]);
    let unpublish = mk_unpublish("vol-1", "node-2");
    world
        .controller
        .controller_unpublish_volume(unpublish)
        .await
        .unwrap();
    assert_eq!(nodes(&mut world).await, [NONE; 3], "detached");
}

#[tokio::test]
async fn clone_is_idempotent_by_name() {
    let mut world = world().await;
    let clone = || v1::CreateVolumeRequest {
        capacity_range: mk_range(1 << 30, 0),
        volume_content_source: from_volume("vol-0"),
        ..mk_volume("clone")
    };
    let first = world.create(clone()).await.unwrap();
    assert_eq!(world.create(clone()).await.unwrap(), first);
}

#[tokio::test]
async fn all_snapshots_of_a_volume_are_listed() {
    let mut world = world().await;
    let mut taken = [
        world.snapshot("s", "vol-0").await,
        world.snapshot("t", "vol-0").await,
    ];
    taken.sort();
    let request = v1::ListSnapshotsRequest {
        source_volume_id: "vol-0".into(),
        ..Default::default()
    };
    assert_eq!(world.list(request).await.unwrap().0, taken);
}

#[tokio::test]
async fn expansion_with_limit_below_required_is_refused() {
    let mut world = world().await;
    let outcome = world.expand("vol-0", 3 << 30, 2 << 30).await;
    assert_refused(
        "contradiction",
        outcome,
        Code::OutOfRange,
        &["required_bytes", "limit_bytes"],
    );
}

#[tokio::test]
async fn expansion_grows_the_volume_file() {
    let mut world = world().await;
    let request = v1::CreateVolumeRequest {
        capacity_range: mk_range(4 * MIB, 0),
        ..mk_volume("a")
    };
    let a = world.create(request).await.unwrap().volume_id;
    let medium = FileId::Volume(a.clone());
    let disk = world
        .server
        .driver()
        .volume_files
        .ensure(&medium, 4 << 20)
        .await
        .unwrap();
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 4 << 20);
    assert_eq!(world.expand(&a, 8 * MIB, 0).await.unwrap(), 8 * MIB);
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 8 << 20);
}

#[tokio::test]
async fn an_unknown_volume_is_not_found() {
    let mut world = world().await;
    let request = v1::ControllerGetVolumeRequest {
        volume_id: "unknown".into(),
    };
    let outcome = world.controller.controller_get_volume(request).await;
    assert_refused("unknown", outcome, Code::NotFound, &["unknown"]);
}

#[tokio::test]
async fn an_rpc_that_is_switched_off_is_unimplemented() {
    let mut world = World::start_with(|_, settings| {
        settings.capabilities = "-EXPAND_VOLUME,-LIST_SNAPSHOTS,-GROUP_CONTROLLER_SERVICE"
            .parse()
            .unwrap();
    })
    .await;
    let unimplemented = Code::Unimplemented;
    assert_refused("expand", world.expand("vol-0", 1, 0).await, unimplemented, &[]);
    let list = world.list(v1::ListSnapshotsRequest::default()).await;
    assert_refused("list", list, unimplemented, &[]);
    assert_refused("group", world.group("g", &["vol-0"]).await, unimplemented, &[]);
    world
        .server
        .driver()
        .capabilities
        .write()
        .change("+LIST_SNAPSHOTS")
        .unwrap();
    world
        .list(v1::ListSnapshotsRequest::default())
        .await
        .expect("switched on again");
}
