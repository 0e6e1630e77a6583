//! GetCapacity.

use csi_proto::v1::{GetCapacityRequest, GetCapacityResponse};
use tonic::{Code, Status};

use super::topology::{mk_in, two_zones};
use super::{MIB, World, assert_refused, mk_snapshot, mk_topology};
use crate::server::mk_map;

impl World {
    async fn capacity(
        &mut self,
        zone: Option<&str>,
        pool: Option<&str>,
    ) -> Result<GetCapacityResponse, Status> {
        let request = GetCapacityRequest {
            accessible_topology: zone.map(mk_topology),
            parameters: pool.map(|pool| mk_map(&[("pool", pool)])).unwrap_or_default(),
            ..Default::default()
        };
        Ok(self.controller.get_capacity(request).await?.into_inner())
    }

    async fn left(&mut self, zone: Option<&str>) -> i64 {
        self.capacity(zone, None).await.unwrap().available_capacity / MIB
    }
}

#[tokio::test]
async fn capacity_is_counted_by_topology_and_returned_on_delete() {
    let mut world = World::start_with(two_zones).await;
    assert_eq!(world.left(None).await, 200);
    let a = world.create(mk_in("a", "zone-1")).await.unwrap().volume_id;
    let table = [
        (None, 190),
        (Some("zone-0"), 100),
        (Some("zone-1"), 90),
        (Some("zone-9"), 0),
    ];
    for (zone, expected) in table {
        assert_eq!(world.left(zone).await, expected, "{zone:?}");
    }
    let snapshot = world.take(mk_snapshot("s", &a)).await.unwrap().snapshot_id;
    assert_eq!(world.left(Some("zone-1")).await, 80);
    world.expand(&a, 15 * MIB, 0).await.unwrap();
    assert_eq!(world.left(Some("zone-1")).await, 75);
    world.delete(&a).await.unwrap();
    world.drop_snapshot(&snapshot).await.unwrap();
    assert_eq!(world.left(None).await, 200);
}

#[tokio::test]
async fn volume_size_limits_are_reported_and_enforced() {
    let mut world = World::start_with(|directory, settings| {
        two_zones(directory, settings);
        settings.array.sizes.max = 60 << 20;
    })
    .await;
    let capacity = world.capacity(None, None).await.unwrap();
    assert_eq!(capacity.minimum_volume_size, Some(MIB));
    assert_eq!(capacity.maximum_volume_size, Some(60 * MIB));
    let large = |name: &str, zone: &str| csi_proto::v1::CreateVolumeRequest {
        capacity_range: super::mk_range(60 * MIB, 0),
        ..mk_in(name, zone)
    };
    world.create(large("a", "zone-0")).await.unwrap();
    let capacity = world.capacity(Some("zone-0"), None).await.unwrap();
    assert_eq!(
        capacity.maximum_volume_size,
        Some(40 * MIB),
        "at most the available capacity"
    );
    let nowhere = world.capacity(Some("zone-9"), None).await.unwrap();
    assert_eq!(nowhere.maximum_volume_size, Some(0));
}

#[tokio::test]
async fn pool_is_chosen_by_a_class_parameter() {
    let mut world = World::start_with(two_zones).await;
    let request = csi_proto::v1::CreateVolumeRequest {
        parameters: mk_map(&[("pool", "zone-1")]),
        ..super::mk_volume("a")
    };
    let volume = world.create(request.clone()).await.unwrap();
    assert_eq!(volume.accessible_topology, [mk_topology("zone-1")]);
    let capacity = world.capacity(None, Some("zone-1")).await.unwrap();
    assert_eq!(capacity.available_capacity, 90 * MIB);
    let unknown = world.capacity(None, Some("zone-9")).await;
    assert_refused(
        "unknown",
        unknown,
        Code::InvalidArgument,
        &["parameters", "zone-9", "zone-0, zone-1"],
    );
    let unknown = csi_proto::v1::CreateVolumeRequest {
        parameters: mk_map(&[("pool", "zone-9")]),
        ..super::mk_volume("b")
    };
    assert_refused(
        "unknown",
        world.create(unknown).await,
        Code::InvalidArgument,
        &["parameters"],
    );
}
