//! Volumes restored from snapshots and cloned from other volumes.

use csi_proto::v1::{CreateVolumeRequest, VolumeContentSource};
use tonic::Code;

use super::{MIB, World, assert_refused, from_snapshot, from_volume, mk_range, mk_volume};

fn mk_copy(name: &str, source: Option<VolumeContentSource>) -> CreateVolumeRequest {
    CreateVolumeRequest {
        volume_content_source: source,
        ..mk_volume(name)
    }
}

#[tokio::test]
async fn copy_reports_its_source_and_is_idempotent() {
    let mut world = World::start().await;
    let a = world.volume("a").await;
    let snapshot = world.snapshot("s", &a).await;
    for (name, source) in [("clone", from_volume(&a)), ("restored", from_snapshot(&snapshot))] {
        let first = world.create(mk_copy(name, source.clone())).await.unwrap();
        assert_eq!(first.content_source, source, "{name}");
        let again = world.create(mk_copy(name, source.clone())).await.unwrap();
        assert_eq!(again, first, "{name}: repeated");
        for other in [None, from_volume(&first.volume_id), from_snapshot("other")] {
            let outcome = world.create(mk_copy(name, other)).await;
            assert_refused(name, outcome, Code::AlreadyExists, &["volume_content_source"]);
        }
    }
    let plain = world.create(mk_copy("a", from_snapshot(&snapshot))).await;
    assert_refused(
        "made without",
        plain,
        Code::AlreadyExists,
        &["volume_content_source"],
    );
}

#[tokio::test]
async fn copy_is_at_least_as_large_as_its_source() {
    let mut world = World::start().await;
    let a = world.volume("a").await;
    let snapshot = world.snapshot("s", &a).await;
    // (case, required, limit, size or the code)
    let table = [
        ("same", 10 * MIB, 0, Ok(10 * MIB)),
        ("no required size", 0, 20 * MIB, Ok(10 * MIB)),
        ("larger", 12 * MIB, 0, Ok(12 * MIB)),
        ("smaller", 9 * MIB, 0, Err(Code::OutOfRange)),
        ("limit smaller", 0, 9 * MIB, Err(Code::OutOfRange)),
    ];
    for source in [from_snapshot(&snapshot), from_volume(&a)] {
        for (case, required, limit, expected) in table {
            let name = format!("{case} {source:?}");
            let request = CreateVolumeRequest {
                capacity_range: mk_range(required, limit),
                ..mk_copy(&name[..name.len().min(128)], source.clone())
            };
            let outcome = world.create(request).await;
            match expected {
                Ok(bytes) => assert_eq!(outcome.unwrap().capacity_bytes, bytes, "{name}"),
                Err(code) => assert_refused(&name, outcome, code, &["source"]),
            }
        }
    }
    let any_size = CreateVolumeRequest {
        capacity_range: None,
        ..mk_copy("any size", from_volume(&a))
    };
    assert_eq!(world.create(any_size).await.unwrap().capacity_bytes, 10 * MIB);
}

#[tokio::test]
async fn copy_accepts_the_requested_size_of_its_source() {
    let mut world = World::start().await;
    // (requested bytes, actual bytes, bytes too few for a copy)
    let table = [(100_000_000, 100_000_256, 99_999_744), (1000, MIB, 0)];
    for (requested, made, too_few) in table {
        let sized = |name: &str, bytes| CreateVolumeRequest {
            capacity_range: mk_range(bytes, 0),
            ..mk_volume(&format!("{name} {requested}"))
        };
        let source = world.create(sized("source", requested)).await.unwrap();
        assert_eq!(source.capacity_bytes, made);
        let snapshot = world.snapshot(&format!("s {requested}"), &source.volume_id).await;
        for (name, source) in [
            ("clone", from_volume(&source.volume_id)),
            ("restored", from_snapshot(&snapshot)),
        ] {
            let copy = |bytes, name: &str| CreateVolumeRequest {
                volume_content_source: source.clone(),
                ..sized(name, bytes)
            };
            let first = world.create(copy(requested, name)).await.unwrap();
            assert_eq!(first.capacity_bytes, made, "{name}");
            assert_eq!(
                world.create(copy(requested, name)).await.unwrap(),
                first,
                "{name}: repeated"
            );
            if too_few > 0 {
                let outcome = world.create(copy(too_few, "less")).await;
                assert_refused(name, outcome, Code::OutOfRange, &["source"]);
            }
        }
    }
}

#[tokio::test]
async fn absent_and_unnamed_sources_are_refused() {
    let mut world = World::start().await;
    #[rustfmt::skip]
    let table = [
        ("snapshot gone", from_snapshot("gone"), Code::NotFound, "snapshot \"gone\""),
        ("volume gone", from_volume("gone"), Code::NotFound, "volume \"gone\""),
        ("no snapshot", from_snapshot(""), Code::InvalidArgument, "volume_content_source.snapshot.snapshot_id"),
        ("no volume", from_volume(""), Code::InvalidArgument, "volume_content_source.volume.volume_id"),
        ("neither", Some(VolumeContentSource { r#type: None }), Code::InvalidArgument, "volume_content_source"),
    ];
    for (case, source, code, word) in table {
        assert_refused(case, world.create(mk_copy("b", source)).await, code, &[word]);
    }
}

#[tokio::test]
async fn sources_need_their_capability() {
    let mut world = World::start_with(|_, settings| {
        settings.capabilities = "-CLONE_VOLUME,-CREATE_DELETE_SNAPSHOT".parse().unwrap();
    })
    .await;
    let a = world.volume("a").await;
    for (source, capability) in [
        (from_volume(&a), "CLONE_VOLUME"),
        (from_snapshot("s"), "CREATE_DELETE_SNAPSHOT"),
    ] {
        let outcome = world.create(mk_copy("b", source)).await;
        assert_refused(
            capability,
            outcome,
            Code::InvalidArgument,
            &["volume_content_source", capability],
        );
    }
}

#[tokio::test]
async fn source_of_linked_copies_cannot_be_deleted() {
    let mut world = World::start_with(|_, settings| {
        settings.array.copy_mode = csi_mock_driver::array::CopyMode::Linked;
    })
    .await;
    let a = world.volume("a").await;
    let snapshot = world.snapshot("s", &a).await;
    let restored = world
        .create(mk_copy("b", from_snapshot(&snapshot)))
        .await
        .unwrap()
        .volume_id;
    let clone = world
        .create(mk_copy("c", from_volume(&restored)))
        .await
        .unwrap()
        .volume_id;

    let in_use = Code::FailedPrecondition;
    assert_refused("has a snapshot", world.delete(&a).await, in_use, &[&snapshot]);
    assert_refused(
        "has a volume",
        world.drop_snapshot(&snapshot).await,
        in_use,
        &[&restored],
    );
    assert_refused("has a clone", world.delete(&restored).await, in_use, &[&clone]);
    let group = world.group("g", &[&clone]).await.unwrap();
    let members = [group.snapshots[0].snapshot_id.clone()];
    let of_group = world
        .create(mk_copy("d", from_snapshot(&members[0])))
        .await
        .unwrap()
        .volume_id;
    let outcome = world.drop_group(&group.group_snapshot_id, &members).await;
    assert_refused("a member has a volume", outcome, in_use, &[&of_group]);

    world.delete(&of_group).await.unwrap();
    world
        .drop_group(&group.group_snapshot_id, &members)
        .await
        .unwrap();
    world.delete(&clone).await.unwrap();
    world.delete(&restored).await.unwrap();
    world.drop_snapshot(&snapshot).await.unwrap();
    world.delete(&a).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_snapshot_is_restored_to_many_volumes_concurrently() {
    let mut world = World::start().await;
    let a = world.volume("a").await;
    let snapshot = world.snapshot("s", &a).await;
    let copies = (0..20).map(|number| {
        let mut client = world.controller.clone();
        let request = mk_copy(&format!("copy-{number}"), from_snapshot(&snapshot));
        async move { client.create_volume(request).await }
    });
    for outcome in futures::future::join_all(copies).await {
        outcome.unwrap();
    }
}

#[tokio::test]
async fn copied_source_is_locked_except_for_further_copies() {
    let mut world = World::start_with(|directory, settings| {
        let faults = directory.join("faults.yaml");
        let rule = "- {id: slow, match: {method: CreateVolume, name: slow}, action: {hang: client-cancel}}";
        std::fs::write(&faults, rule).unwrap();
        settings.faults = Some(faults);
    })
    .await;
    let a = world.volume("a").await;
    let mut client = world.server.controller().await;
    let slow = client.create_volume(mk_copy("slow", from_volume(&a)));
    let meanwhile = async {
        // The copy has not begun: this call has no effect and succeeds.
        while world.expand(&a, 10 * MIB, 0).await.is_ok() {
            tokio::task::yield_now().await;
        }
        let busy = world.expand(&a, 10 * MIB, 0).await;
        assert_refused("change", busy, Code::Aborted, &[&a]);
        assert_refused("delete", world.delete(&a).await, Code::Aborted, &[&a]);
        let again = world.create(mk_copy("slow", from_volume(&a))).await;
        assert_refused("the same copy", again, Code::Aborted, &["slow"]);
        world
            .create(mk_copy("b", from_volume(&a)))
            .await
            .expect("another copy");
        world.snapshot("s", &a).await;
    };
    crate::server::cancel_after(meanwhile, slow).await;
    let free_again = async {
        while world.delete(&a).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::server::DEADLINE, free_again)
        .await
        .unwrap();
}
