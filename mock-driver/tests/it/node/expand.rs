//! A volume that grows on the node: device, filesystem, numbers.

use super::*;

async fn expand(site: &mut Site, volume: &Volume, path: &Path, required: i64) -> Result<i64, Code> {
    let request = v1::NodeExpandVolumeRequest {
        volume_id: volume.id.clone(),
        volume_path: text(path),
        capacity_range: Some(v1::CapacityRange {
            required_bytes: required,
            limit_bytes: 0,
        }),
        ..Default::default()
    };
    let answer = site.node.node_expand_volume(request).await;
    answer
        .map(|answer| answer.into_inner().capacity_bytes)
        .map_err(|status| status.code())
}

#[tokio::test]
async fn expanding_gets_the_codes_of_the_specification() {
    for devices in kinds() {
        let mut site = Site::start(devices).await;
        let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let staging = site.staging(&volume);
        assert_eq!(
            expand(&mut site, &volume, &staging, 0).await,
            Err(Code::InvalidArgument),
            "an empty range"
        );
        assert_eq!(
            expand(&mut site, &volume, &staging, MIB).await,
            Err(Code::NotFound),
            "not there yet"
        );
        site.stage(&volume).await.unwrap();
        assert_eq!(
            expand(&mut site, &volume, &staging, MIB).await,
            Ok(64 * MIB),
            "large enough already"
        );
        assert_eq!(
            expand(&mut site, &volume, &staging, 65 * MIB).await,
            Err(Code::OutOfRange)
        );
        let gone = Volume {
            id: "no-such-volume".to_owned(),
            ..volume.clone()
        };
        assert_eq!(expand(&mut site, &gone, &staging, MIB).await, Err(Code::NotFound));
        let block = v1::NodeExpandVolumeRequest {
            volume_id: volume.id.clone(),
            volume_path: text(&staging),
            volume_capability: Some(mk_block(Mode::SingleNodeWriter)),
            ..Default::default()
        };
        assert_eq!(
            code(site.node.node_expand_volume(block).await),
            Err(Code::InvalidArgument)
        );
        site.end().await;
    }
}

#[tokio::test]
async fn nodes_grow_volumes_as_far_as_the_flag_says() {
    for devices in kinds() {
        let most = 128 * MIB;
        let mut site = Site::start_with(devices, |_, settings| {
            settings.config.node_growth_limit = u64::try_from(most).ok();
        })
        .await;
        let volume = site
            .attached("a", 256 * MIB, mk_block(Mode::SingleNodeWriter))
            .await;
        let staging = site.staging(&volume);
        site.stage(&volume).await.unwrap();
        for (required, expected) in [
            (most, Ok(256 * MIB)),
            (most + 1, Err(Code::OutOfRange)),
            (256 * MIB, Err(Code::OutOfRange)),
        ] {
            let grown = expand(&mut site, &volume, &staging, required).await;
            assert_eq!(grown, expected, "{devices:?} {required}");
        }
        site.end().await;
    }
}

#[tokio::test]
async fn what_the_array_grows_is_seen_in_the_filesystem() {
    for devices in kinds() {
        for fs_type in ["ext4", "xfs"] {
            let mut site = Site::start(devices).await;
            let volume = site
                .attached("a", 320 * MIB, mk_mount(fs_type, Mode::SingleNodeWriter))
                .await;
            site.stage(&volume).await.unwrap();
            site.publish(&volume, "t").await.unwrap();
            let target = site.target("t");
            fs::write(target.join("file"), "text").unwrap();
            let before = site.stats(&volume, &target).await.unwrap().usage[0].total;
            let request = v1::ControllerExpandVolumeRequest {
                volume_id: volume.id.clone(),
                capacity_range: Some(v1::CapacityRange {
                    required_bytes: 512 * MIB,
                    limit_bytes: 0,
                }),
                ..Default::default()
            };
            let grown = site
                .controller
                .controller_expand_volume(request)
                .await
                .unwrap()
                .into_inner();
            assert!(grown.node_expansion_required);
            // The kernel lets an ext4 filesystem in use grow only with a capability that not every root has;
            // without it the filesystem grows when the volume is staged again.
            let in_use =
                devices == Choice::Emulated || fs_type == "xfs" || privilege::may_use_all_resources();
            for _ in 0..2 {
                let grown = expand(&mut site, &volume, &target, 512 * MIB).await;
                let expected = if in_use {
                    Ok(512 * MIB)
                } else {
                    Err(Code::FailedPrecondition)
                };
                assert_eq!(grown, expected, "{devices:?} {fs_type}");
            }
            if !in_use {
                site.unpublish(&volume, "t").await.unwrap();
                site.unstage(&volume).await.unwrap();
                site.stage(&volume).await.unwrap();
                site.publish(&volume, "t").await.unwrap();
                assert_eq!(
                    expand(&mut site, &volume, &target, 512 * MIB).await,
                    Ok(512 * MIB)
                );
            }
            let after = site.stats(&volume, &target).await.unwrap().usage[0].total;
            assert!(
                after > before + 150 * MIB,
                "{devices:?} {fs_type}: {before} to {after}"
            );
            assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "text");
            site.end().await;
        }
    }
}

#[tokio::test]
async fn volume_that_was_detached_by_force_is_not_waited_for() {
    for devices in kinds() {
        let mut site = Site::start(devices).await;
        let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let staging = site.staging(&volume);
        site.stage(&volume).await.unwrap();
        site.detach(&volume).await;
        let request = v1::NodeExpandVolumeRequest {
            volume_id: volume.id.clone(),
            volume_path: text(&staging),
            ..Default::default()
        };
        let refused = site.node.node_expand_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{devices:?}: {refused}");
        assert!(
            refused.message().contains("not published to this node"),
            "{refused}"
        );
        let stats = site.stats(&volume, &staging).await;
        assert_eq!(stats.unwrap_err(), Code::FailedPrecondition, "{devices:?}");
        let nowhere = site.target("t");
        assert_eq!(site.stats(&volume, &nowhere).await.unwrap_err(), Code::NotFound);
        site.unstage(&volume).await.unwrap();
        site.end().await;
    }
}

#[tokio::test]
async fn volume_that_grew_while_it_was_unstaged_is_staged_with_its_new_size() {
    for devices in kinds() {
        let mut site = Site::start(devices).await;
        let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let staging = site.staging(&volume);
        site.stage(&volume).await.unwrap();
        let before = site.stats(&volume, &staging).await.unwrap().usage[0].total;
        site.unstage(&volume).await.unwrap();
        let request = v1::ControllerExpandVolumeRequest {
            volume_id: volume.id.clone(),
            capacity_range: Some(v1::CapacityRange {
                required_bytes: 192 * MIB,
                limit_bytes: 0,
            }),
            ..Default::default()
        };
        site.controller.controller_expand_volume(request).await.unwrap();
        site.stage(&volume).await.unwrap();
        let after = site.stats(&volume, &staging).await.unwrap().usage[0].total;
        assert!(after > before + 100 * MIB, "{devices:?}: {before} to {after}");
        // Nothing is left to do that would need a capability for filesystems in use.
        assert_eq!(
            expand(&mut site, &volume, &staging, 192 * MIB).await,
            Ok(192 * MIB)
        );
        site.unstage(&volume).await.unwrap();
        site.end().await;
    }
}
