//! CreateSnapshot, DeleteSnapshot, ListSnapshots and GetSnapshot.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use csi_mock_driver::driver::Settings;
use csi_mock_driver::journal::clock::Clock;
use csi_proto::v1::{self, ListSnapshotsRequest};
use jiff::{SignedDuration, Timestamp};
use tokio::time::{self, Instant};
use tonic::Code;

use super::{MIB, World, assert_refused, from_snapshot, mk_snapshot, mk_volume};
use crate::server::{DEADLINE, mk_create, mk_map};

fn of(source: &str) -> ListSnapshotsRequest {
    ListSnapshotsRequest {
        source_volume_id: source.to_owned(),
        ..Default::default()
    }
}

#[tokio::test]
async fn snapshot_creation_is_idempotent_by_name_and_source() {
    let mut world = World::start().await;
    let (a, b) = (world.volume("a").await, world.volume("b").await);
    let first = world.take(mk_snapshot("s", &a)).await.unwrap();
    assert_eq!(
        (first.size_bytes, first.source_volume_id.as_str()),
        (10 * MIB, a.as_str())
    );
    assert!(first.ready_to_use && first.creation_time.is_some() && first.group_snapshot_id.is_empty());
    assert_eq!(world.take(mk_snapshot("s", &a)).await.unwrap(), first, "repeated");
    let other = world.take(mk_snapshot("t", &a)).await.unwrap();
    assert_ne!(other.snapshot_id, first.snapshot_id);
    assert_refused(
        "same name, other source",
        world.take(mk_snapshot("s", &b)).await,
        Code::AlreadyExists,
        &["\"s\"", "source_volume_id"],
    );
    assert_refused(
        "source gone",
        world.take(mk_snapshot("u", "gone")).await,
        Code::NotFound,
        &["gone"],
    );
}

#[tokio::test]
async fn requests_without_a_required_field_name_it() {
    let mut world = World::start().await;
    let a = world.volume("a").await;
    let long = "x".repeat(129);
    let large = mk_map(&[("k", &"x".repeat(4096))]);
    #[rustfmt::skip]
    let table = [
        ("no name", mk_snapshot("", &a), "name"),
        ("long name", mk_snapshot(&long, &a), "name"),
        ("banned character", mk_snapshot("a\u{7}", &a), "name"),
        ("no source", mk_snapshot("s", ""), "source_volume_id"),
        ("large parameters", v1::CreateSnapshotRequest { parameters: large.clone(), ..mk_snapshot("s", &a) }, "parameters"),
        ("large secrets", v1::CreateSnapshotRequest { secrets: large, ..mk_snapshot("s", &a) }, "secrets"),
    ];
    for (case, request, field) in table {
        assert_refused(case, world.take(request).await, Code::InvalidArgument, &[field]);
    }
    assert_refused(
        "delete",
        world.drop_snapshot("").await,
        Code::InvalidArgument,
        &["snapshot_id"],
    );
    let negative = ListSnapshotsRequest {
        max_entries: -1,
        ..Default::default()
    };
    assert_refused(
        "list",
        world.list(negative).await,
        Code::InvalidArgument,
        &["max_entries"],
    );
    let get = world
        .controller
        .get_snapshot(v1::GetSnapshotRequest::default())
        .await;
    assert_refused("get", get, Code::InvalidArgument, &["snapshot_id"]);
}

#[tokio::test]
async fn snapshot_can_be_deleted_after_its_volume() {
    let mut world = World::start().await;
    let a = world.volume("a").await;
    let snapshot = world.snapshot("s", &a).await;
    world.delete(&a).await.unwrap();
    let request = v1::GetSnapshotRequest {
        snapshot_id: snapshot.clone(),
        ..Default::default()
    };
    let got = world.controller.get_snapshot(request.clone()).await.unwrap();
    assert_eq!(got.into_inner().snapshot.unwrap().source_volume_id, a);
    let restore = v1::CreateVolumeRequest {
        volume_content_source: from_snapshot(&snapshot),
        ..mk_volume("b")
    };
    world.create(restore).await.unwrap();

    world.drop_snapshot(&snapshot).await.unwrap();
    world.drop_snapshot(&snapshot).await.unwrap();
    world.drop_snapshot("never-was").await.unwrap();
    let gone = world.controller.get_snapshot(request).await;
    assert_refused("gone", gone, Code::NotFound, &[&snapshot]);
    let a = world.volume("a").await;
    let again = world.snapshot("s", &a).await;
    assert_ne!(again, snapshot, "an old id must not reach a new snapshot");
}

#[tokio::test]
async fn snapshot_is_restored_only_once_it_is_ready() {
    let mut world = World::start_with(|_, settings| {
        settings.config.snapshot_delay = Duration::from_secs(3);
    })
    .await;
    let a = world.volume("a").await;
    let first = world.take(mk_snapshot("s", &a)).await.unwrap();
    assert!(!first.ready_to_use);
    let restore = || v1::CreateVolumeRequest {
        volume_content_source: from_snapshot(&first.snapshot_id),
        ..mk_volume("b")
    };
    assert_refused(
        "not ready",
        world.create(restore()).await,
        Code::Aborted,
        &["not ready"],
    );
    let ready = async {
        loop {
            let now = world.take(mk_snapshot("s", &a)).await.unwrap();
            assert_eq!(now.snapshot_id, first.snapshot_id);
            if now.ready_to_use {
                return now;
            }
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    let now = time::timeout(DEADLINE, ready).await.unwrap();
    assert_eq!(now.creation_time, first.creation_time);
    world.create(restore()).await.unwrap();
}

/// A wall clock that steps.
#[derive(Clone, Default)]
struct SteppingClock(Arc<AtomicI64>);

impl SteppingClock {
    fn step(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let step = self.0.clone();
        Clock::new(move || Timestamp::now() + SignedDuration::from_secs(step.load(Ordering::Relaxed)))
    }
}

const HOUR: i64 = 3600;

#[tokio::test]
async fn steps_of_the_wall_clock_make_no_snapshot_ready_or_unready() {
    // (delay until the snapshot is ready, whether it becomes ready)
    for (delay, becomes_ready) in [
        (Duration::ZERO, true),
        (Duration::from_millis(300), true),
        (Duration::from_secs(1800), false),
    ] {
        for step in [-HOUR, HOUR] {
            let clock = SteppingClock::default();
            let set = |directory: &Path, settings: &mut Settings| {
                settings.config.snapshot_delay = delay;
                settings.clock = clock.clock();
                settings.state_dir = Some(directory.join("state"));
            };
            let mut world = World::start_with(set).await;
            let a = world.volume("a").await;
            let first = world.take(mk_snapshot("s", &a)).await.unwrap();
            assert_eq!(first.ready_to_use, delay.is_zero());
            clock.step(step);
            let deadline = Instant::now() + DEADLINE;
            loop {
                let later = world.take(mk_snapshot("s", &a)).await.unwrap();
                if later.ready_to_use == becomes_ready {
                    break;
                }
                assert!(Instant::now() < deadline, "{delay:?} {step}: not ready");
                time::sleep(Duration::from_millis(10)).await;
            }
            clock.step(-2 * step);
            let later = world.take(mk_snapshot("s", &a)).await.unwrap();
            assert_eq!(later.ready_to_use, becomes_ready, "{delay:?} {step}");

            // The next process has a clock that went back.
            clock.step(-3 * HOUR);
            let mut world = world.again(set).await;
            let later = world.take(mk_snapshot("s", &a)).await.unwrap();
            assert_eq!(later.ready_to_use, becomes_ready, "{delay:?} {step}: restarted");
        }
    }
}

#[tokio::test]
async fn lists_are_filtered_and_paged() {
    let mut world = World::start_with(|_, settings| settings.array.page_limit = Some(4)).await;
    let (a, b) = (world.volume("a").await, world.volume("b").await);
    let mut of_a = Vec::new();
    for number in 0..9 {
        of_a.push(world.snapshot(&format!("a-{number}"), &a).await);
    }
    let one = world.snapshot("b", &b).await;
    of_a.sort();
    let mut all = of_a.clone();
    all.push(one.clone());
    all.sort();

    for (case, request, expected) in [("all", of(""), &all), ("of one volume", of(&a), &of_a)] {
        for max_entries in [0, 1, 2, 3, 4, 100] {
            let (mut seen, mut starting_token) = (Vec::new(), String::new());
            loop {
                let request = ListSnapshotsRequest {
                    max_entries,
                    starting_token,
                    ..request.clone()
                };
                let (ids, token) = world.list(request).await.unwrap();
                assert!(!ids.is_empty() && ids.len() <= 4, "{case}: {max_entries}");
                seen.extend(ids);
                if token.is_empty() {
                    break;
                }
                starting_token = token;
            }
            assert_eq!(&seen, expected, "{case}, pages of {max_entries}");
        }
    }
    let exactly = |source: &str, snapshot: &str| ListSnapshotsRequest {
        snapshot_id: snapshot.to_owned(),
        ..of(source)
    };
    #[rustfmt::skip]
    let table = [
        ("one", exactly("", &one), vec![one.clone()]),
        ("one of its volume", exactly(&b, &one), vec![one.clone()]),
        ("one of another volume", exactly(&a, &one), vec![]),
        ("one that is gone", exactly("", "gone"), vec![]),
        ("of a volume that is gone", of("gone"), vec![]),
    ];
    for (case, request, expected) in table {
        assert_eq!(
            world.list(request).await.unwrap(),
            (expected, String::new()),
            "{case}"
        );
    }
}

#[tokio::test]
async fn foreign_tokens_are_refused() {
    let mut world = World::start_with(|_, settings| settings.initial_volumes = 3).await;
    let a = world.volume("a").await;
    for name in ["s", "t", "u"] {
        world.snapshot(name, &a).await;
    }
    let page = ListSnapshotsRequest {
        max_entries: 1,
        ..Default::default()
    };
    let (_, token) = world.list(page).await.unwrap();
    let volumes = v1::ListVolumesRequest {
        max_entries: 1,
        ..Default::default()
    };
    let of_volumes = world.controller.list_volumes(volumes).await.unwrap().into_inner();
    let with = |starting_token: &str, source: &str| ListSnapshotsRequest {
        starting_token: starting_token.to_owned(),
        ..of(source)
    };
    assert!(world.list(with(&token, "")).await.is_ok());
    for (case, request) in [
        ("invented", with("invalid-token", "")),
        ("a number", with("1", "")),
        ("of ListVolumes", with(&of_volumes.next_token, "")),
        ("of another filter", with(&token, &a)),
    ] {
        assert_refused(
            case,
            world.list(request).await,
            Code::Aborted,
            &["starting_token"],
        );
    }
    let other = v1::ListVolumesRequest {
        starting_token: token,
        ..Default::default()
    };
    assert_refused(
        "of ListSnapshots",
        world.controller.list_volumes(other).await,
        Code::Aborted,
        &["starting_token"],
    );
}

#[tokio::test]
async fn snapshot_uses_space_of_its_pool_and_is_refused_without() {
    let mut world = World::start_with(|_, settings| settings.array.pools[0].capacity = 25 << 20).await;
    let a = world.volume("a").await;
    let snapshot = world.snapshot("s", &a).await;
    assert_refused(
        "no space",
        world.take(mk_snapshot("t", &a)).await,
        Code::ResourceExhausted,
        &["insufficient capacity"],
    );
    world.drop_snapshot(&snapshot).await.unwrap();
    world.snapshot("t", &a).await;
    let big = v1::CreateVolumeRequest {
        capacity_range: super::mk_range(10 * MIB, 0),
        ..mk_create("b")
    };
    assert_refused(
        "no space",
        world.create(big).await,
        Code::ResourceExhausted,
        &["insufficient capacity"],
    );
}
