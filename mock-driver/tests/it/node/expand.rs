//! NodeExpandVolume: device, filesystem, sizes.

use super::*;

async fn expand(env: &mut TestEnv, volume: &Volume, path: &Path, required: i64) -> Result<i64, Code> {
    let request = v1::NodeExpandVolumeRequest {
        volume_id: volume.id.clone(),
        volume_path: text(path),
        capacity_range: Some(v1::CapacityRange {
            required_bytes: required,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let response = env.node.node_expand_volume(request).await;
    response
        .map(|response| response.into_inner().capacity_bytes)
        .map_err(|status| status.code())
}

#[tokio::test]
async fn expansion_returns_the_codes_of_the_specification() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let staging = env.staging(&volume);
        assert_eq!(
            expand(&mut env, &volume, &staging, 0).await,
            Err(Code::InvalidArgument),
            "an empty range"
        );
        assert_eq!(
            expand(&mut env, &volume, &staging, MIB).await,
            Err(Code::NotFound),
            "not there yet"
        );
        env.stage(&volume).await.unwrap();
        assert_eq!(
            expand(&mut env, &volume, &staging, MIB).await,
            Ok(64 * MIB),
            "large enough already"
        );
        assert_eq!(
            expand(&mut env, &volume, &staging, 65 * MIB).await,
            Err(Code::OutOfRange)
        );
        let gone = Volume {
            id: "no-such-volume".to_owned(),
            ..volume.clone()
        };
        assert_eq!(expand(&mut env, &gone, &staging, MIB).await, Err(Code::NotFound));
        let block = v1::NodeExpandVolumeRequest {
            volume_id: volume.id.clone(),
            volume_path: text(&staging),
            volume_capability: Some(mk_block(Mode::SingleNodeWriter)),
            ..Default::default()
        };
        assert_eq!(
            code(env.node.node_expand_volume(block).await),
            Err(Code::InvalidArgument)
        );
        env.end().await;
    }
}

/// Like csi-driver-host-path, whose volumes have no limit: the capacity stays as requested.
#[tokio::test]
async fn small_volumes_have_a_larger_filesystem_if_configured() {
    for devices in kinds() {
        let mut env = TestEnv::start_with(devices, |_, settings| {
            settings.config.min_filesystem_bytes = 320 << 20;
        })
        .await;
        let files = env.attached("a", MIB, mount(Mode::SingleNodeWriter)).await;
        env.stage(&files).await.unwrap();
        env.publish(&files, "t").await.unwrap();
        let total = env.stats(&files, &env.target("t")).await.unwrap().usage[0].total;
        assert!(total > 256 * MIB, "{devices:?}: {total}");
        let again = v1::CreateVolumeRequest {
            capacity_range: Some(v1::CapacityRange {
                required_bytes: MIB,
                limit_bytes: MIB,
            }),
            volume_capabilities: vec![files.capability.clone()],
            ..mk_create("a")
        };
        let created = env.controller.create_volume(again).await.unwrap().into_inner();
        assert_eq!(created.volume.unwrap().capacity_bytes, MIB);
        let device = env.attached("b", MIB, mk_block(Mode::SingleNodeWriter)).await;
        env.stage(&device).await.unwrap();
        env.publish(&device, "u").await.unwrap();
        assert_eq!(
            env.stats(&device, &env.target("u")).await.unwrap().usage[0].total,
            MIB
        );
        env.end().await;
    }
}

#[tokio::test]
async fn node_expands_volumes_up_to_max_volume_size_node() {
    for devices in kinds() {
        let most = 128 * MIB;
        let mut env = TestEnv::start_with(devices, |_, settings| {
            settings.config.node_growth_limit = u64::try_from(most).ok();
        })
        .await;
        let volume = env
            .attached("a", 256 * MIB, mk_block(Mode::SingleNodeWriter))
            .await;
        let staging = env.staging(&volume);
        env.stage(&volume).await.unwrap();
        for (required, expected) in [
            (most, Ok(256 * MIB)),
            (most + 1, Err(Code::OutOfRange)),
            (256 * MIB, Err(Code::OutOfRange)),
        ] {
            let grown = expand(&mut env, &volume, &staging, required).await;
            assert_eq!(grown, expected, "{devices:?} {required}");
        }
        env.end().await;
    }
}

#[tokio::test]
async fn expansion_grows_device_and_filesystem() {
    for devices in kinds() {
        for fs_type in ["ext4", "xfs"] {
            if !can_make(fs_type, devices) {
                continue;
            }
            let mut env = TestEnv::start(devices).await;
            let volume = env
                .attached("a", 320 * MIB, mk_mount(fs_type, Mode::SingleNodeWriter))
                .await;
            env.stage(&volume).await.unwrap();
            env.publish(&volume, "t").await.unwrap();
            let target = env.target("t");
            fs::write(target.join("file"), "text").unwrap();
            let before = env.stats(&volume, &target).await.unwrap().usage[0].total;
            let request = v1::ControllerExpandVolumeRequest {
                volume_id: volume.id.clone(),
                capacity_range: Some(v1::CapacityRange {
                    required_bytes: 512 * MIB,
                    limit_bytes: 0,
                }),
                ..Default::default()
            };
            let grown = env
                .controller
                .controller_expand_volume(request)
                .await
                .unwrap()
                .into_inner();
            assert!(grown.node_expansion_required);
            // Growing a mounted ext4 filesystem needs a capability that root may lack; without it, the filesystem grows at the next
            // stage.
            let in_use =
                devices == Choice::Emulated || fs_type == "xfs" || privilege::may_use_all_resources();
            for _ in 0..2 {
                let grown = expand(&mut env, &volume, &target, 512 * MIB).await;
                let expected = if in_use {
                    Ok(512 * MIB)
                } else {
                    Err(Code::FailedPrecondition)
                };
                assert_eq!(grown, expected, "{devices:?} {fs_type}");
            }
            if !in_use {
                env.unpublish(&volume, "t").await.unwrap();
                env.unstage(&volume).await.unwrap();
                env.stage(&volume).await.unwrap();
                env.publish(&volume, "t").await.unwrap();
                assert_eq!(expand(&mut env, &volume, &target, 512 * MIB).await, Ok(512 * MIB));
            }
            let after = env.stats(&volume, &target).await.unwrap().usage[0].total;
            assert!(
                after > before + 150 * MIB,
                "{devices:?} {fs_type}: {before} to {after}"
            );
            assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "text");
            env.end().await;
        }
    }
}

#[tokio::test]
async fn expansion_of_a_force_detached_volume_fails_immediately() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let staging = env.staging(&volume);
        env.stage(&volume).await.unwrap();
        env.detach(&volume).await;
        let request = v1::NodeExpandVolumeRequest {
            volume_id: volume.id.clone(),
            volume_path: text(&staging),
            ..Default::default()
        };
        let refused = env.node.node_expand_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{devices:?}: {refused}");
        assert!(
            refused.message().contains("not published to this node"),
            "{refused}"
        );
        let stats = env.stats(&volume, &staging).await;
        assert_eq!(stats.unwrap_err(), Code::FailedPrecondition, "{devices:?}");
        let nowhere = env.target("t");
        assert_eq!(env.stats(&volume, &nowhere).await.unwrap_err(), Code::NotFound);
        env.unstage(&volume).await.unwrap();
        env.end().await;
    }
}

#[tokio::test]
async fn volume_expanded_while_unstaged_is_staged_with_its_new_size() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let staging = env.staging(&volume);
        env.stage(&volume).await.unwrap();
        let before = env.stats(&volume, &staging).await.unwrap().usage[0].total;
        env.unstage(&volume).await.unwrap();
        let request = v1::ControllerExpandVolumeRequest {
            volume_id: volume.id.clone(),
            capacity_range: Some(v1::CapacityRange {
                required_bytes: 192 * MIB,
                limit_bytes: 0,
            }),
            ..Default::default()
        };
        env.controller.controller_expand_volume(request).await.unwrap();
        env.stage(&volume).await.unwrap();
        let after = env.stats(&volume, &staging).await.unwrap().usage[0].total;
        assert!(after > before + 100 * MIB, "{devices:?}: {before} to {after}");
        // No step is left that needs the capability.
        assert_eq!(
            expand(&mut env, &volume, &staging, 192 * MIB).await,
            Ok(192 * MIB)
        );
        env.unstage(&volume).await.unwrap();
        env.end().await;
    }
}
