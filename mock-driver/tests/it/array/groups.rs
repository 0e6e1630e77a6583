//! The GroupController service.

use csi_proto::v1::{self, GetVolumeGroupSnapshotRequest};
use tonic::{Code, Status};

use super::{World, assert_refused, mk_group};
use crate::server::mk_map;

fn members(group: &v1::VolumeGroupSnapshot) -> Vec<String> {
    group
        .snapshots
        .iter()
        .map(|member| member.snapshot_id.clone())
        .collect()
}

impl World {
    async fn get_group(
        &mut self,
        group: &str,
        snapshots: &[&str],
    ) -> Result<v1::VolumeGroupSnapshot, Status> {
        let request = GetVolumeGroupSnapshotRequest {
            group_snapshot_id: group.to_owned(),
            snapshot_ids: snapshots.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let reply = self.groups.get_volume_group_snapshot(request).await?.into_inner();
        Ok(reply.group_snapshot.unwrap())
    }

    async fn snapshots(&mut self) -> Vec<String> {
        self.list(v1::ListSnapshotsRequest::default()).await.unwrap().0
    }
}

#[tokio::test]
async fn group_creation_is_idempotent_by_name_and_compares_all_fields() {
    let mut world = World::start().await;
    let (a, b, c) = (
        world.volume("a").await,
        world.volume("b").await,
        world.volume("c").await,
    );
    let first = world.group("g", &[&a, &b]).await.unwrap();
    assert_eq!(first.snapshots.len(), 2);
    for member in &first.snapshots {
        assert_eq!(member.group_snapshot_id, first.group_snapshot_id);
        assert_eq!(
            member.creation_time, first.creation_time,
            "one creation time for all"
        );
    }
    assert!(first.ready_to_use);
    assert_eq!(world.group("g", &[&b, &a]).await.unwrap(), first, "in any order");
    assert_eq!(
        world.get_group(&first.group_snapshot_id, &[]).await.unwrap(),
        first
    );

    assert_refused(
        "fewer",
        world.group("g", &[&a]).await,
        Code::AlreadyExists,
        &["source_volume_ids"],
    );
    assert_refused(
        "others",
        world.group("g", &[&a, &c]).await,
        Code::AlreadyExists,
        &["\"g\""],
    );
    let with_parameters = v1::CreateVolumeGroupSnapshotRequest {
        parameters: mk_map(&[("k", "v")]),
        ..mk_group("g", &[&a, &b])
    };
    let outcome = world.groups.create_volume_group_snapshot(with_parameters).await;
    assert_refused("parameters", outcome, Code::AlreadyExists, &["parameters"]);
}

#[tokio::test]
async fn group_creation_is_atomic() {
    let mut world = World::start_with(|_, settings| settings.array.pools[0].capacity = 35 << 20).await;
    let (a, b) = (world.volume("a").await, world.volume("b").await);
    assert_refused(
        "one gone",
        world.group("g", &[&a, "gone"]).await,
        Code::NotFound,
        &["gone"],
    );
    assert_refused(
        "no space",
        world.group("g", &[&a, &b]).await,
        Code::ResourceExhausted,
        &["insufficient capacity"],
    );
    assert!(world.snapshots().await.is_empty());
    world.group("g", &[&a]).await.unwrap();
    assert_eq!(world.snapshots().await.len(), 1);
}

#[tokio::test]
async fn group_deletion_requires_exactly_its_snapshot_ids() {
    let mut world = World::start().await;
    let (a, b) = (world.volume("a").await, world.volume("b").await);
    let group = world.group("g", &[&a, &b]).await.unwrap();
    let (id, mut snapshots) = (group.group_snapshot_id.clone(), members(&group));
    let stranger = world.snapshot("s", &a).await;

    let member = world.drop_snapshot(&snapshots[0]).await;
    assert_refused(
        "a member by itself",
        member,
        Code::InvalidArgument,
        &["snapshot_id", &id],
    );
    #[rustfmt::skip]
    let mismatches = [
        ("none", vec![]),
        ("too few", vec![snapshots[0].clone()]),
        ("another", vec![snapshots[0].clone(), stranger.clone()]),
        ("too many", vec![snapshots[0].clone(), snapshots[1].clone(), stranger.clone()]),
    ];
    for (case, ids) in mismatches {
        let outcome = world.drop_group(&id, &ids).await;
        assert_refused(case, outcome, Code::InvalidArgument, &["snapshot_ids"]);
    }
    let mismatch = world.get_group(&id, &[&stranger]).await;
    assert_refused(
        "get with another",
        mismatch,
        Code::InvalidArgument,
        &["snapshot_ids"],
    );
    assert_eq!(world.snapshots().await.len(), 3, "nothing is deleted");

    snapshots.reverse();
    world.drop_group(&id, &snapshots).await.unwrap();
    world.drop_group(&id, &snapshots).await.unwrap();
    world.drop_group("never-was", &[]).await.unwrap();
    assert_eq!(world.snapshots().await, [stranger]);
    assert_refused("gone", world.get_group(&id, &[]).await, Code::NotFound, &[&id]);
}

#[tokio::test]
async fn requests_without_a_required_field_name_it() {
    let mut world = World::start().await;
    let a = world.volume("a").await;
    #[rustfmt::skip]
    let table = [
        ("no name", world.group("", &[&a]).await, "name"),
        ("no sources", world.group("g", &[]).await, "source_volume_ids"),
        ("an empty source", world.group("g", &[&a, ""]).await, "source_volume_ids[1]"),
        ("one twice", world.group("g", &[&a, &a]).await, "source_volume_ids"),
        ("get nothing", world.get_group("", &[]).await, "group_snapshot_id"),
        ("get with an empty member", world.get_group("g", &[""]).await, "snapshot_ids[0]"),
    ];
    for (case, outcome, field) in table {
        assert_refused(case, outcome, Code::InvalidArgument, &[field]);
    }
    let nothing = world.drop_group("", &[]).await;
    assert_refused(
        "delete nothing",
        nothing,
        Code::InvalidArgument,
        &["group_snapshot_id"],
    );
}

#[tokio::test]
async fn group_of_volumes_in_different_pools_is_refused() {
    let mut world = World::start_with(super::topology::two_zones).await;
    let a = world
        .create(super::topology::mk_in("a", "zone-0"))
        .await
        .unwrap()
        .volume_id;
    let b = world
        .create(super::topology::mk_in("b", "zone-1"))
        .await
        .unwrap()
        .volume_id;
    let outcome = world.group("g", &[&a, &b]).await;
    assert_refused(
        "two pools",
        outcome,
        Code::FailedPrecondition,
        &["zone-0", "zone-1"],
    );
}
