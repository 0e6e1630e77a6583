//! ControllerExpandVolume and ControllerModifyVolume.

use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::{self, ControllerExpandVolumeRequest, ControllerModifyVolumeRequest};
use tonic::{Code, Status};

use super::{MIB, World, assert_refused, mk_expand, mk_volume};
use crate::server::{mk_block, mk_map};

type Pairs<'a> = &'a [(&'a str, &'a str)];

impl World {
    async fn modify(&mut self, volume: &str, parameters: Pairs<'_>) -> Result<(), Status> {
        let request = ControllerModifyVolumeRequest {
            volume_id: volume.to_owned(),
            mutable_parameters: mk_map(parameters),
            ..Default::default()
        };
        self.controller.controller_modify_volume(request).await.map(drop)
    }

    /// Whether the volume has these mutable parameters.
    async fn has(&mut self, volume: &str, parameters: Pairs<'_>) -> bool {
        let request = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: volume.to_owned(),
            volume_capabilities: mk_volume("").volume_capabilities,
            mutable_parameters: mk_map(parameters),
            ..Default::default()
        };
        let reply = self
            .controller
            .validate_volume_capabilities(request)
            .await
            .unwrap();
        reply.into_inner().confirmed.is_some()
    }
}

#[tokio::test]
async fn volume_grows_once_and_never_shrinks() {
    let mut world = World::start().await;
    let a = world.volume("a").await;
    // (case, required, limit, size or the code)
    #[rustfmt::skip]
    let table = [
        ("as it is", 10 * MIB, 0, Ok(10 * MIB)),
        ("it is more than that", 5 * MIB, 0, Ok(10 * MIB)),
        ("within the range already", 5 * MIB, 20 * MIB, Ok(10 * MIB)),
        ("larger", 20 * MIB, 30 * MIB, Ok(20 * MIB)),
        ("repeated", 20 * MIB, 30 * MIB, Ok(20 * MIB)),
        ("rounded up to a sector", 20 * MIB + 1, 0, Ok(20 * MIB + 512)),
        ("smaller", 0, 9 * MIB, Err(Code::OutOfRange)),
        ("contradiction", 30 * MIB, 25 * MIB, Err(Code::OutOfRange)),
        ("larger than any", i64::MAX, 0, Err(Code::OutOfRange)),
        ("negative", -1, 0, Err(Code::InvalidArgument)),
        ("empty", 0, 0, Err(Code::InvalidArgument)),
    ];
    for (case, required, limit, expected) in table {
        let outcome = world.expand(&a, required, limit).await;
        match expected {
            Ok(bytes) => assert_eq!(outcome.unwrap(), bytes, "{case}"),
            Err(code) => assert_refused(case, outcome, code, &[]),
        }
    }
    let list = world
        .controller
        .list_volumes(v1::ListVolumesRequest::default())
        .await;
    let listed = list.unwrap().into_inner().entries.remove(0).volume.unwrap();
    assert_eq!(listed.capacity_bytes, 20 * MIB + 512);
}

#[tokio::test]
async fn expansion_is_refused_with_the_code_for_the_reason() {
    let mut world = World::start_with(|_, settings| settings.array.pools[0].capacity = 50 << 20).await;
    let a = world.volume("a").await;
    let expand = async |request: ControllerExpandVolumeRequest| {
        let mut client = world.server.controller().await;
        client.controller_expand_volume(request).await
    };
    let rangeless = ControllerExpandVolumeRequest {
        capacity_range: None,
        ..mk_expand(&a, 0, 0)
    };
    let with = |capability| ControllerExpandVolumeRequest {
        volume_capability: Some(capability),
        ..mk_expand(&a, 11 * MIB, 0)
    };
    #[rustfmt::skip]
    let table = [
        ("no volume", mk_expand("", MIB, 0), Code::InvalidArgument, "volume_id"),
        ("no range", rangeless, Code::InvalidArgument, "capacity_range"),
        ("gone", mk_expand("gone", MIB, 0), Code::NotFound, "gone"),
        ("not made for that", with(mk_block(Mode::SingleNodeWriter)), Code::InvalidArgument, "volume_capability"),
        ("no space", mk_expand(&a, 60 * MIB, 0), Code::ResourceExhausted, "insufficient capacity"),
    ];
    for (case, request, code, word) in table {
        assert_refused(case, expand(request).await, code, &[word]);
    }
    let capability = mk_volume("").volume_capabilities.remove(0);
    expand(with(capability)).await.unwrap();
}

#[tokio::test]
async fn published_volume_grows_only_with_online_expansion() {
    let mut world = World::start().await;
    let a = world.volume("a").await;
    world.publish(&a, "node-0").await.unwrap();
    world.expand(&a, 20 * MIB, 0).await.unwrap();

    let mut world = World::start_with(|_, settings| {
        settings.capabilities = "-VOLUME_EXPANSION_ONLINE,+VOLUME_EXPANSION_OFFLINE"
            .parse()
            .unwrap();
    })
    .await;
    let a = world.volume("a").await;
    world.publish(&a, "node-0").await.unwrap();
    let outcome = world.expand(&a, 20 * MIB, 0).await;
    assert_refused(
        "online",
        outcome,
        Code::FailedPrecondition,
        &["node-0", "offline"],
    );
    assert_eq!(
        world.expand(&a, 10 * MIB, 0).await.unwrap(),
        10 * MIB,
        "nothing to do"
    );
    let detach = crate::server::mk_unpublish(&a, "node-0");
    world
        .controller
        .controller_unpublish_volume(detach)
        .await
        .unwrap();
    world.expand(&a, 20 * MIB, 0).await.unwrap();
}

#[tokio::test]
async fn modify_without_parameters_is_refused_if_strict() {
    let mut world = World::start_with(|_, settings| settings.config.strict_modify = true).await;
    let a = world.create(mk_volume("a")).await.unwrap().volume_id;
    let refused = world.modify(&a, &[]).await;
    assert_refused(
        "none",
        refused,
        Code::InvalidArgument,
        &["mutable_parameters", "must be set"],
    );
}

#[tokio::test]
async fn mutable_parameters_are_checked_stored_and_kept() {
    let mut world = World::start().await;
    let create = |iops: &str| v1::CreateVolumeRequest {
        mutable_parameters: mk_map(&[("iops", iops)]),
        ..mk_volume("a")
    };
    let a = world.create(create("100")).await.unwrap().volume_id;
    assert!(world.has(&a, &[("iops", "100")]).await);
    world
        .modify(&a, &[("iops", "200"), ("tier", "gold")])
        .await
        .unwrap();
    world
        .modify(&a, &[("iops", "200"), ("tier", "gold")])
        .await
        .unwrap();
    world.modify(&a, &[("tier", "silver")]).await.unwrap();
    assert!(world.has(&a, &[("iops", "200"), ("tier", "silver")]).await);

    #[rustfmt::skip]
    let table: [(&str, Pairs, &str); 3] = [
        ("unknown key", &[("XXX_FakeKey", "v")], "XXX_FakeKey"),
        ("a good one beside it", &[("iops", "300"), ("XXX_FakeKey", "v")], "XXX_FakeKey"),
        ("wrong value", &[("tier", "tin")], "bronze, silver, gold"),
    ];
    for (case, parameters, word) in table {
        let outcome = world.modify(&a, parameters).await;
        assert_refused(
            case,
            outcome,
            Code::InvalidArgument,
            &["mutable_parameters", word],
        );
    }
    world.modify(&a, &[]).await.unwrap();
    assert!(
        world.has(&a, &[("iops", "200"), ("tier", "silver")]).await,
        "nothing changed"
    );
    assert_refused("gone", world.modify("gone", &[]).await, Code::NotFound, &["gone"]);
    assert_refused(
        "gone",
        world.modify("gone", &[("iops", "1")]).await,
        Code::NotFound,
        &["gone"],
    );
    assert_refused(
        "no volume",
        world.modify("", &[("iops", "1")]).await,
        Code::InvalidArgument,
        &["volume_id"],
    );

    assert_eq!(
        world.create(create("100")).await.unwrap().volume_id,
        a,
        "as it was made"
    );
    let other = world.create(create("200")).await;
    assert_refused(
        "made otherwise",
        other,
        Code::AlreadyExists,
        &["mutable_parameters"],
    );
    let unknown = v1::CreateVolumeRequest {
        mutable_parameters: mk_map(&[("XXX_FakeKey", "v")]),
        ..mk_volume("b")
    };
    assert_refused(
        "at creation",
        world.create(unknown).await,
        Code::InvalidArgument,
        &["XXX_FakeKey"],
    );
}

#[tokio::test]
async fn volume_latency_delays_only_that_volume() {
    let mut world = World::start().await;
    let (a, b) = (world.volume("a").await, world.volume("b").await);
    world.modify(&a, &[("latency", "250")]).await.unwrap();
    let before = tokio::time::Instant::now();
    world.publish(&a, "node-0").await.unwrap();
    assert!(before.elapsed().as_millis() >= 250);

    world.modify(&a, &[("latency", "600000")]).await.unwrap();
    let detach = crate::server::mk_unpublish(&a, "node-0");
    let mut client = world.server.controller().await;
    let slow = client.controller_unpublish_volume(detach);
    crate::server::cancel_after(async { world.publish(&b, "node-0").await.unwrap() }, slow).await;
}
