//! One test per cell: codes, and what a repeated call does.

use super::*;

#[tokio::test]
async fn every_step_can_be_repeated_and_undone_twice() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let mut site = Site::start(devices).await;
            let volume = site.attached("a", 64 * MIB, capability).await;
            for _ in 0..2 {
                assert_eq!(site.stage(&volume).await, Ok(()));
            }
            for _ in 0..2 {
                assert_eq!(site.publish(&volume, "t").await, Ok(()));
            }
            assert!(fs::symlink_metadata(site.target("t")).is_ok());
            for _ in 0..2 {
                assert_eq!(site.unpublish(&volume, "t").await, Ok(()));
                assert!(
                    fs::symlink_metadata(site.target("t")).is_err(),
                    "the target is removed"
                );
            }
            for _ in 0..2 {
                assert_eq!(site.unstage(&volume).await, Ok(()));
                assert!(site.staging(&volume).is_dir(), "the staging path is the caller's");
            }
            site.detach(&volume).await;
            site.end().await;
        }
    }
}

#[tokio::test]
async fn second_publish_gets_the_codes_of_the_specification() {
    use Mode::{
        MultiNodeMultiWriter, MultiNodeReaderOnly, MultiNodeSingleWriter, SingleNodeMultiWriter,
        SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeWriter,
    };
    let mut site = Site::start(Choice::Emulated).await;
    for mode in [
        SingleNodeWriter,
        SingleNodeReaderOnly,
        SingleNodeSingleWriter,
        SingleNodeMultiWriter,
        MultiNodeReaderOnly,
        MultiNodeSingleWriter,
        MultiNodeMultiWriter,
    ] {
        let name = mode.as_str_name();
        let volume = site.attached(name, 64 * MIB, mk_block(mode)).await;
        site.stage(&volume).await.unwrap();
        site.publish(&volume, "t1").await.unwrap();
        let readonly = |target: &str| v1::NodePublishVolumeRequest {
            readonly: true,
            ..site.mk_publish(&volume, target)
        };
        let shares = matches!(
            mode,
            SingleNodeMultiWriter | MultiNodeReaderOnly | MultiNodeSingleWriter | MultiNodeMultiWriter
        );
        let second = if shares {
            Ok(())
        } else {
            Err(Code::FailedPrecondition)
        };
        let (same, other) = (readonly("t1"), readonly("t2"));
        assert_eq!(
            site.publish(&volume, "t1").await,
            Ok(()),
            "{name}: same target and arguments"
        );
        assert_eq!(
            site.publish_as(same).await,
            Err(Code::AlreadyExists),
            "{name}: other arguments"
        );
        assert_eq!(
            site.publish_as(other).await,
            second,
            "{name}: other target and arguments"
        );
        site.unpublish(&volume, "t2").await.unwrap();
        assert_eq!(site.publish(&volume, "t3").await, second, "{name}: other target");
        for target in ["t1", "t3"] {
            site.unpublish(&volume, target).await.unwrap();
        }
    }
    site.end().await;
}

#[tokio::test]
async fn staging_gets_the_codes_of_the_specification() {
    for devices in kinds() {
        let mut site = Site::start(devices).await;
        let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let gone = Volume {
            id: "no-such-volume".to_owned(),
            ..volume.clone()
        };
        assert_eq!(site.stage(&gone).await, Err(Code::NotFound));
        site.stage(&volume).await.unwrap();
        let flags = Volume {
            capability: with_flags(volume.capability.clone(), &["noatime"]),
            ..volume.clone()
        };
        assert_eq!(
            site.stage(&flags).await,
            Err(Code::AlreadyExists),
            "other capability"
        );
        let elsewhere = site.server.path("staging").join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        assert_eq!(
            site.stage_at(&volume, &elsewhere).await,
            Err(Code::FailedPrecondition)
        );
        let old = Volume {
            context: mk_map(&[("attachment", "77")]),
            ..volume.clone()
        };
        assert_eq!(
            site.stage(&old).await,
            Err(Code::AlreadyExists),
            "another attachment than it was staged with"
        );

        let detached = site.create("b", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        assert_eq!(
            site.stage(&detached).await,
            Err(Code::FailedPrecondition),
            "not published to the node"
        );
        let second = site.attach(detached, false).await;
        let old = Volume {
            context: mk_map(&[("attachment", "77")]),
            ..second.clone()
        };
        assert_eq!(
            site.stage(&old).await,
            Err(Code::FailedPrecondition),
            "a context of the past"
        );
        for (fs_type, mode) in [
            ("btrfs", Mode::SingleNodeWriter),
            ("ext4", Mode::MultiNodeMultiWriter),
        ] {
            let other = Volume {
                capability: mk_mount(fs_type, mode),
                ..second.clone()
            };
            assert_eq!(
                site.stage(&other).await,
                Err(Code::FailedPrecondition),
                "{fs_type} {mode:?}"
            );
        }
        let block = Volume {
            capability: mk_block(Mode::SingleNodeWriter),
            ..second.clone()
        };
        assert_eq!(
            site.stage(&block).await,
            Err(Code::FailedPrecondition),
            "block of a filesystem volume"
        );
        site.end().await;
    }
}

/// What ControllerPublishVolume answers is handed on whole and unchanged, or real drivers find no device.
#[tokio::test]
async fn publish_context_that_is_dropped_or_changed_is_refused() {
    let mut site = Site::start(Choice::Emulated).await;
    let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let other = site.attached("b", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let changed = |key: &str, value: Option<&str>| {
        let mut context = volume.context.clone();
        context.remove(key);
        context.extend(value.map(|value| (key.to_owned(), value.to_owned())));
        context
    };
    // (context, the key that the answer names)
    let table = [
        (mk_map(&[]), "publish_context[attachment]"),
        (changed("device", None), "publish_context[device]"),
        (
            changed("serial", Some(&other.context["serial"])),
            "publish_context[serial]",
        ),
        (changed("writable", Some("false")), "publish_context[writable]"),
        (changed("more", Some("x")), "publish_context[more]"),
    ];
    let staging = site.staging(&volume);
    for (context, named) in &table {
        let request = v1::NodeStageVolumeRequest {
            publish_context: context.clone(),
            ..site.mk_stage(&volume, &staging)
        };
        let refused = site.node.node_stage_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().starts_with(named), "{refused}");
    }
    site.stage(&volume).await.unwrap();
    for (context, named) in &table {
        let request = v1::NodePublishVolumeRequest {
            publish_context: context.clone(),
            ..site.mk_publish(&volume, "t")
        };
        let refused = site.node.node_publish_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().starts_with(named), "{refused}");
    }
    site.publish(&volume, "t").await.unwrap();
    site.unpublish(&volume, "t").await.unwrap();
    site.unstage(&volume).await.unwrap();
    site.end().await;
}

#[tokio::test]
async fn publish_context_that_a_rule_has_edited_is_noticed_on_the_node() {
    let mut site = Site::start(Choice::Emulated).await;
    let rule = serde_json::json!({
        "id": "odd", "match": {"method": "ControllerPublishVolume"}, "phase": "after",
        "action": {"edit": {"publish_context.device": "/dev/odd"}},
    });
    let rule = csi_mock_driver::fault::Rule::from_value(rule).unwrap();
    site.server.driver().faults().put(rule).unwrap();
    let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    assert_eq!(site.stage(&volume).await, Err(Code::InvalidArgument));
    assert!(
        site.server
            .driver()
            .faults()
            .remove(csi_mock_driver::fault::RuleKind::Rule, "odd")
    );
    let volume = site.attach(volume, false).await;
    site.stage(&volume).await.unwrap();
    site.unstage(&volume).await.unwrap();
    site.end().await;
}

#[tokio::test]
async fn paths_that_the_caller_makes_are_asked_for() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let mut site = Site::start(devices).await;
            let volume = site.attached("a", 64 * MIB, capability).await;
            let nowhere = site.server.path("staging").join("nowhere");
            let request = site.mk_stage(&volume, &nowhere);
            let refused = site.node.node_stage_volume(request).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{devices:?}: {refused}");
            assert!(
                refused.message().starts_with("staging_target_path: "),
                "{refused}"
            );
            site.stage(&volume).await.unwrap();
            let request = site.mk_publish(&volume, "no/where");
            let refused = site.node.node_publish_volume(request).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{devices:?}: {refused}");
            assert!(refused.message().starts_with("target_path: "), "{refused}");
            site.publish(&volume, "t").await.unwrap();
            site.unpublish(&volume, "t").await.unwrap();
            site.unstage(&volume).await.unwrap();
            site.end().await;
        }
    }
}

#[tokio::test]
async fn publishing_gets_the_codes_of_the_specification() {
    let mut site = Site::start(Choice::Emulated).await;
    let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    assert_eq!(
        site.publish(&volume, "t").await,
        Err(Code::FailedPrecondition),
        "not staged"
    );
    site.stage(&volume).await.unwrap();
    let request = v1::NodePublishVolumeRequest {
        staging_target_path: String::new(),
        ..site.mk_publish(&volume, "t")
    };
    assert_eq!(
        site.publish_as(request).await,
        Err(Code::FailedPrecondition),
        "no staging path"
    );
    let request = v1::NodePublishVolumeRequest {
        volume_id: "no-such-volume".to_owned(),
        ..site.mk_publish(&volume, "t")
    };
    assert_eq!(site.publish_as(request).await, Err(Code::NotFound));
    let request = v1::NodePublishVolumeRequest {
        volume_capability: Some(mk_block(Mode::SingleNodeWriter)),
        ..site.mk_publish(&volume, "t")
    };
    assert_eq!(
        site.publish_as(request).await,
        Err(Code::FailedPrecondition),
        "staged as a filesystem"
    );

    fs::create_dir(site.target("full")).unwrap();
    fs::write(site.target("full").join("file"), "precious").unwrap();
    assert_eq!(site.publish(&volume, "full").await, Err(Code::FailedPrecondition));
    assert_eq!(
        fs::read_to_string(site.target("full").join("file")).unwrap(),
        "precious"
    );
    fs::remove_dir_all(site.target("full")).unwrap();

    site.publish(&volume, "t").await.unwrap();
    assert_eq!(
        site.unstage(&volume).await,
        Err(Code::FailedPrecondition),
        "still published"
    );
    let other = site.attached("b", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    site.stage(&other).await.unwrap();
    assert_eq!(
        site.publish(&other, "t").await,
        Err(Code::AlreadyExists),
        "taken by another volume"
    );
    assert_eq!(
        site.unpublish(&other, "t").await,
        Ok(()),
        "it is not published there"
    );
    assert!(site.target("t").exists(), "and the other volume stays");
    site.end().await;
}

#[tokio::test]
async fn malformed_requests_are_refused_by_the_name_of_the_field() {
    let mut site = Site::start(Choice::Emulated).await;
    let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let good = site.mk_publish(&volume, "t");
    let mut group = mount(Mode::SingleNodeWriter);
    if let Some(AccessType::Mount(mount)) = &mut group.access_type {
        mount.volume_mount_group = "staff".to_owned();
    }
    // (field, request)
    let table = [
        (
            "volume_id",
            v1::NodePublishVolumeRequest {
                volume_id: String::new(),
                ..good.clone()
            },
        ),
        (
            "target_path",
            v1::NodePublishVolumeRequest {
                target_path: String::new(),
                ..good.clone()
            },
        ),
        (
            "target_path",
            v1::NodePublishVolumeRequest {
                target_path: "relative".to_owned(),
                ..good.clone()
            },
        ),
        (
            "target_path",
            v1::NodePublishVolumeRequest {
                target_path: "///".to_owned(),
                ..good.clone()
            },
        ),
        (
            "target_path",
            v1::NodePublishVolumeRequest {
                target_path: good.staging_target_path.clone(),
                ..good.clone()
            },
        ),
        (
            "staging_target_path",
            v1::NodePublishVolumeRequest {
                staging_target_path: "x".to_owned(),
                ..good.clone()
            },
        ),
        (
            "volume_capability",
            v1::NodePublishVolumeRequest {
                volume_capability: None,
                ..good.clone()
            },
        ),
        (
            "volume_mount_group",
            v1::NodePublishVolumeRequest {
                volume_capability: Some(group),
                ..good.clone()
            },
        ),
        (
            "volume_context",
            v1::NodePublishVolumeRequest {
                volume_context: mk_map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "much")]),
                ..good.clone()
            },
        ),
    ];
    for (field, request) in table {
        let status = site.node.node_publish_volume(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status}");
        assert!(status.message().contains(field), "{field}: {status}");
    }
    site.end().await;
}

#[tokio::test]
async fn stats_and_health_are_of_the_volume_and_its_paths() {
    for devices in kinds() {
        let mut site = Site::start(devices).await;
        let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        assert_eq!(
            site.health(&volume, None).await,
            Ok(vec![]),
            "may be asked before it is staged"
        );
        site.stage(&volume).await.unwrap();
        site.publish(&volume, "t").await.unwrap();
        let (staging, target) = (site.staging(&volume), site.target("t"));
        for path in [&staging, &target] {
            let usage = site.stats(&volume, path).await.unwrap().usage;
            assert_eq!(usage.len(), 2, "bytes and inodes");
            assert!(
                usage[0].total > 40 * MIB && usage[0].total <= 64 * MIB,
                "its own size: {usage:?}"
            );
            assert_eq!(site.health(&volume, Some(path)).await, Ok(vec![]));
        }
        for nowhere in ["some/path", "/"] {
            assert_eq!(
                site.stats(&volume, Path::new(nowhere)).await.unwrap_err(),
                Code::NotFound
            );
        }
        let nowhere = site.target("nowhere");
        assert_eq!(site.stats(&volume, &nowhere).await.unwrap_err(), Code::NotFound);
        assert_eq!(
            site.health(&volume, Some(&nowhere)).await.unwrap_err(),
            Code::NotFound
        );
        let gone = Volume {
            id: "no-such-volume".to_owned(),
            ..volume.clone()
        };
        assert_eq!(site.stats(&gone, &target).await.unwrap_err(), Code::NotFound);

        site.detach(&volume).await;
        assert_eq!(
            site.health(&volume, Some(&target)).await,
            Ok(vec!["DeviceGone".to_owned()])
        );
        site.end().await;
    }
}

#[tokio::test]
async fn block_volume_tells_its_size() {
    for devices in kinds() {
        let mut site = Site::start(devices).await;
        let volume = site
            .attached("a", 64 * MIB, mk_block(Mode::SingleNodeWriter))
            .await;
        site.stage(&volume).await.unwrap();
        site.publish(&volume, "t").await.unwrap();
        let usage = site.stats(&volume, &site.target("t")).await.unwrap().usage;
        assert_eq!((usage.len(), usage[0].total), (1, 64 * MIB));
        site.end().await;
    }
}

#[tokio::test]
async fn undoing_something_of_a_volume_that_is_gone_is_a_success_unless_told_otherwise() {
    for (strict, expected) in [(false, Ok(())), (true, Err(Code::NotFound))] {
        let mut site = Site::start_with(Choice::Emulated, |_, settings| {
            settings.node.strict_gone = strict;
        })
        .await;
        let gone = Volume {
            id: "no-such-volume".to_owned(),
            capability: mount(Mode::SingleNodeWriter),
            context: mk_map(&[]),
        };
        assert_eq!(site.unpublish(&gone, "t").await, expected, "strict={strict}");
        assert_eq!(site.unstage(&gone).await, expected, "strict={strict}");
        site.end().await;
    }
}

#[tokio::test]
async fn node_tells_what_it_was_told_and_what_changes() {
    let mut site = Site::start_with(Choice::Emulated, |_, settings| {
        settings.array.attach_limit = Some(7);
        settings.node.topology = [("zone".to_owned(), "a".to_owned())].into();
    })
    .await;
    let info = site
        .node
        .node_get_info(v1::NodeGetInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), (HERE, 7));
    assert_eq!(
        info.accessible_topology.unwrap().segments,
        mk_map(&[("zone", "a")])
    );
    let node = site.server.driver().node().unwrap().clone();
    node.tell(|told| {
        told.id = "other".to_owned();
        told.limit = Some(3);
        told.topology.clear();
    });
    let info = site
        .node
        .node_get_info(v1::NodeGetInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("other", 3));
    assert_eq!(info.accessible_topology, None);
    site.end().await;
}
