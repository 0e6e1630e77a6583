//! Topology of volumes and snapshots, and their accessibility from nodes.

use std::path::Path;

use csi_mock_driver::array::{Pool, PoolName};
use csi_mock_driver::driver::Settings;
use csi_proto::v1::{self, CreateVolumeRequest, TopologyRequirement};
use tonic::Code;

use super::{World, assert_refused, from_snapshot, mk_snapshot, mk_topology, mk_volume};

type Zones<'a> = &'a [&'a str];

/// Nodes alternate between two zones, each with a pool of 100 MiB.
pub(super) fn two_zones(_: &Path, settings: &mut Settings) {
    let pool = |zone: &str| Pool {
        name: PoolName::from(zone),
        segments: [("zone", zone)].into_iter().collect(),
        capacity: 100 << 20,
    };
    settings.array.pools = vec![pool("zone-0"), pool("zone-1")];
}

fn wanted(requisite: &[&str], preferred: &[&str]) -> Option<TopologyRequirement> {
    let topologies = |zones: &[&str]| zones.iter().map(|zone| mk_topology(zone)).collect();
    Some(TopologyRequirement {
        requisite: topologies(requisite),
        preferred: topologies(preferred),
    })
}

pub(super) fn mk_in(name: &str, zone: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        accessibility_requirements: wanted(&[zone], &[]),
        ..mk_volume(name)
    }
}

#[tokio::test]
async fn volume_topology_follows_preferred_and_requisite() {
    let mut world = World::start_with(two_zones).await;
    let zones = ["zone-0", "zone-1"];
    // (case, requisite, preferred, topology or the code)
    #[rustfmt::skip]
    let table: [(&str, Zones, Zones, Result<&str, Code>); 9] = [
        ("must", &["zone-1"], &[], Ok("zone-1")),
        ("preferred", &zones, &["zone-1"], Ok("zone-1")),
        ("preferred in order", &zones, &["zone-1", "zone-0"], Ok("zone-1")),
        ("preferred only", &[], &["zone-1"], Ok("zone-1")),
        ("preferred and not there, nothing required", &[], &["zone-9"], Ok("zone-0")),
        ("one of them is not there", &["zone-9", "zone-1"], &["zone-9"], Ok("zone-1")),
        ("must and is not there", &["zone-9"], &[], Err(Code::ResourceExhausted)),
        ("preferred but not allowed", &["zone-0"], &["zone-1"], Err(Code::InvalidArgument)),
        ("empty", &[], &[], Err(Code::InvalidArgument)),
    ];
    for (case, requisite, preferred, expected) in table {
        let request = CreateVolumeRequest {
            accessibility_requirements: wanted(requisite, preferred),
            ..mk_volume(case)
        };
        let outcome = world.create(request.clone()).await;
        match expected {
            Ok(zone) => {
                let volume = outcome.expect(case);
                assert_eq!(volume.accessible_topology, [mk_topology(zone)], "{case}");
                assert_eq!(world.create(request).await.unwrap(), volume, "{case}: repeated");
            }
            Err(code) => assert_refused(case, outcome, code, &["accessibility_requirements"]),
        }
    }
}

#[tokio::test]
async fn existing_volume_outside_requested_topology_is_already_exists() {
    let mut world = World::start_with(two_zones).await;
    world.create(mk_in("a", "zone-0")).await.unwrap();
    let both = CreateVolumeRequest {
        accessibility_requirements: wanted(&["zone-1", "zone-0"], &["zone-1"]),
        ..mk_volume("a")
    };
    world.create(both).await.expect("it is in one of them");
    let outcome = world.create(mk_in("a", "zone-1")).await;
    assert_refused(
        "elsewhere",
        outcome,
        Code::AlreadyExists,
        &["accessibility_requirements"],
    );
}

#[tokio::test]
async fn full_preferred_zone_is_skipped() {
    let mut world = World::start_with(two_zones).await;
    let large = |name: &str, requirement| CreateVolumeRequest {
        capacity_range: super::mk_range(95 * super::MIB, 0),
        accessibility_requirements: requirement,
        ..mk_volume(name)
    };
    let zone_0 = world.create(large("a", wanted(&["zone-0"], &[]))).await.unwrap();
    assert_eq!(zone_0.accessible_topology, [mk_topology("zone-0")]);
    let outcome = world.create(large("b", wanted(&["zone-0"], &[]))).await;
    assert_refused(
        "full",
        outcome,
        Code::ResourceExhausted,
        &["insufficient capacity"],
    );
    let either = wanted(&["zone-0", "zone-1"], &["zone-0"]);
    let zone_1 = world.create(large("b", either)).await.unwrap();
    assert_eq!(zone_1.accessible_topology, [mk_topology("zone-1")]);
}

#[tokio::test]
async fn node_outside_the_topology_does_not_get_the_volume() {
    let mut world = World::start_with(two_zones).await;
    let a = world.create(mk_in("a", "zone-1")).await.unwrap().volume_id;
    let outcome = world.publish(&a, "node-0").await;
    assert_refused(
        "node-0",
        outcome,
        Code::FailedPrecondition,
        &[
            "node-0",
            "the volume is in {zone=zone-1}",
            "the node in {zone=zone-0}",
        ],
    );
    world.publish(&a, "node-1").await.unwrap();
}

#[tokio::test]
async fn snapshot_reports_its_topology_and_volumes_restored_from_it_share_it() {
    let mut world = World::start_with(two_zones).await;
    let a = world.create(mk_in("a", "zone-0")).await.unwrap().volume_id;
    let here = world.take(mk_snapshot("here", &a)).await.unwrap();
    assert_eq!(here.accessible_topology, [mk_topology("zone-0")]);
    let elsewhere = v1::CreateSnapshotRequest {
        accessibility_requirements: wanted(&["zone-1"], &[]),
        ..mk_snapshot("there", &a)
    };
    let there = world.take(elsewhere).await.unwrap();
    assert_eq!(
        there.accessible_topology,
        [],
        "the caller required a single topology"
    );
    let get = v1::GetSnapshotRequest {
        snapshot_id: there.snapshot_id.clone(),
        ..Default::default()
    };
    let got = world.controller.get_snapshot(get).await.unwrap().into_inner();
    assert_eq!(got.snapshot.unwrap().accessible_topology, [mk_topology("zone-1")]);
    let anywhere = v1::CreateSnapshotRequest {
        accessibility_requirements: wanted(&["zone-1", "zone-0"], &["zone-1"]),
        ..mk_snapshot("anywhere", &a)
    };
    let anywhere = world.take(anywhere).await.unwrap();
    assert_eq!(
        anywhere.accessible_topology,
        [mk_topology("zone-1")],
        "as preferred"
    );
    let nowhere = v1::CreateSnapshotRequest {
        accessibility_requirements: wanted(&["zone-9"], &[]),
        ..mk_snapshot("nowhere", &a)
    };
    let outcome = world.take(nowhere).await;
    assert_refused(
        "nowhere",
        outcome,
        Code::ResourceExhausted,
        &["accessibility_requirements"],
    );

    let restore = |name: &str, snapshot: &str, zone: &str| CreateVolumeRequest {
        volume_content_source: from_snapshot(snapshot),
        ..mk_in(name, zone)
    };
    let volume = world
        .create(restore("b", &there.snapshot_id, "zone-1"))
        .await
        .unwrap();
    assert_eq!(volume.accessible_topology, [mk_topology("zone-1")]);
    let outcome = world.create(restore("c", &here.snapshot_id, "zone-1")).await;
    assert_refused(
        "not beside",
        outcome,
        Code::ResourceExhausted,
        &["accessibility_requirements"],
    );
}

#[tokio::test]
async fn malformed_topologies_are_refused() {
    let mut world = World::start_with(two_zones).await;
    let with = |pairs: &[(&str, &str)]| CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![v1::Topology {
                segments: crate::server::mk_map(pairs),
            }],
            preferred: vec![],
        }),
        ..mk_volume("a")
    };
    let long = "x".repeat(64);
    for (case, pairs) in [
        ("long name", [(long.as_str(), "v")].as_slice()),
        ("long value", &[("zone", &long)]),
        ("no name", &[("prefix/", "v")]),
        ("the same key twice", &[("zone", "zone-0"), ("Zone", "zone-0")]),
    ] {
        let outcome = world.create(with(pairs)).await;
        let field = "accessibility_requirements.requisite[0].segments";
        assert_refused(case, outcome, Code::InvalidArgument, &[field]);
    }
    let volume = world.create(with(&[("ZONE", "zone-1")])).await.unwrap();
    assert_eq!(
        volume.accessible_topology,
        [mk_topology("zone-1")],
        "keys are case-insensitive"
    );
}

#[tokio::test]
async fn without_the_capability_topology_is_neither_reported_nor_accepted() {
    let mut world = World::start_with(|directory, settings| {
        two_zones(directory, settings);
        settings.capabilities = "-VOLUME_ACCESSIBILITY_CONSTRAINTS".parse().unwrap();
    })
    .await;
    let outcome = world.create(mk_in("a", "zone-0")).await;
    let words = ["accessibility_requirements", "VOLUME_ACCESSIBILITY_CONSTRAINTS"];
    assert_refused("field", outcome, Code::InvalidArgument, &words);
    assert_eq!(
        world.create(mk_volume("a")).await.unwrap().accessible_topology,
        []
    );
}
