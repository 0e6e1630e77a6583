//! One test per cell of the error tables: codes and idempotency.

use super::*;

#[tokio::test]
async fn every_step_and_its_reverse_are_idempotent() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let mut env = TestEnv::start(devices).await;
            let volume = env.attached("a", 64 * MIB, capability).await;
            for _ in 0..2 {
                assert_eq!(env.stage(&volume).await, Ok(()));
            }
            for _ in 0..2 {
                assert_eq!(env.publish(&volume, "t").await, Ok(()));
            }
            assert!(fs::symlink_metadata(env.target("t")).is_ok());
            for _ in 0..2 {
                assert_eq!(env.unpublish(&volume, "t").await, Ok(()));
                assert!(
                    fs::symlink_metadata(env.target("t")).is_err(),
                    "the target is removed"
                );
            }
            for _ in 0..2 {
                assert_eq!(env.unstage(&volume).await, Ok(()));
                assert!(
                    env.staging(&volume).is_dir(),
                    "the staging path belongs to the caller"
                );
            }
            env.detach(&volume).await;
            env.end().await;
        }
    }
}

#[tokio::test]
async fn second_publish_returns_the_codes_of_the_specification() {
    use Mode::{
        MultiNodeMultiWriter, MultiNodeReaderOnly, MultiNodeSingleWriter, SingleNodeMultiWriter,
        SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeWriter,
    };
    let mut env = TestEnv::start(Choice::Emulated).await;
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
        let volume = env.attached(name, 64 * MIB, mk_block(mode)).await;
        env.stage(&volume).await.unwrap();
        env.publish(&volume, "t1").await.unwrap();
        let readonly = |target: &str| v1::NodePublishVolumeRequest {
            readonly: true,
            ..env.mk_publish(&volume, target)
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
            env.publish(&volume, "t1").await,
            Ok(()),
            "{name}: same target and arguments"
        );
        assert_eq!(
            env.publish_as(same).await,
            Err(Code::AlreadyExists),
            "{name}: other arguments"
        );
        assert_eq!(
            env.publish_as(other).await,
            second,
            "{name}: other target and arguments"
        );
        env.unpublish(&volume, "t2").await.unwrap();
        assert_eq!(env.publish(&volume, "t3").await, second, "{name}: other target");
        for target in ["t1", "t3"] {
            env.unpublish(&volume, target).await.unwrap();
        }
    }
    env.end().await;
}

#[tokio::test]
async fn staging_returns_the_codes_of_the_specification() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let gone = Volume {
            id: "no-such-volume".to_owned(),
            ..volume.clone()
        };
        assert_eq!(env.stage(&gone).await, Err(Code::NotFound));
        env.stage(&volume).await.unwrap();
        let flags = Volume {
            capability: with_flags(volume.capability.clone(), &["noatime"]),
            ..volume.clone()
        };
        assert_eq!(
            env.stage(&flags).await,
            Err(Code::AlreadyExists),
            "other capability"
        );
        let elsewhere = env.server.path("staging").join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        assert_eq!(
            env.stage_at(&volume, &elsewhere).await,
            Err(Code::FailedPrecondition)
        );
        let old = Volume {
            context: mk_map(&[("attachment", "77")]),
            ..volume.clone()
        };
        assert_eq!(
            env.stage(&old).await,
            Err(Code::AlreadyExists),
            "another attachment than at the staging"
        );

        let detached = env.create("b", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        assert_eq!(
            env.stage(&detached).await,
            Err(Code::FailedPrecondition),
            "not published to the node"
        );
        let second = env.attach(detached, false).await;
        let old = Volume {
            context: mk_map(&[("attachment", "77")]),
            ..second.clone()
        };
        assert_eq!(
            env.stage(&old).await,
            Err(Code::FailedPrecondition),
            "an outdated publish context"
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
                env.stage(&other).await,
                Err(Code::FailedPrecondition),
                "{fs_type} {mode:?}"
            );
        }
        let block = Volume {
            capability: mk_block(Mode::SingleNodeWriter),
            ..second.clone()
        };
        assert_eq!(
            env.stage(&block).await,
            Err(Code::FailedPrecondition),
            "block of a filesystem volume"
        );
        env.end().await;
    }
}

/// Callers must pass the complete publish context unchanged: real drivers find the device by it.
#[tokio::test]
async fn publish_context_that_is_dropped_or_changed_is_refused() {
    let mut env = TestEnv::start(Choice::Emulated).await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let other = env.attached("b", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let changed = |key: &str, value: Option<&str>| {
        let mut context = volume.context.clone();
        context.remove(key);
        context.extend(value.map(|value| (key.to_owned(), value.to_owned())));
        context
    };
    // (context, the key in the error message)
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
    let staging = env.staging(&volume);
    for (context, named) in &table {
        let request = v1::NodeStageVolumeRequest {
            publish_context: context.clone(),
            ..env.mk_stage(&volume, &staging)
        };
        let refused = env.node.node_stage_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().starts_with(named), "{refused}");
    }
    env.stage(&volume).await.unwrap();
    for (context, named) in &table {
        let request = v1::NodePublishVolumeRequest {
            publish_context: context.clone(),
            ..env.mk_publish(&volume, "t")
        };
        let refused = env.node.node_publish_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().starts_with(named), "{refused}");
    }
    env.publish(&volume, "t").await.unwrap();
    env.unpublish(&volume, "t").await.unwrap();
    env.unstage(&volume).await.unwrap();
    env.end().await;
}

#[tokio::test]
async fn publish_context_edited_by_a_rule_is_refused_by_the_node() {
    let mut env = TestEnv::start(Choice::Emulated).await;
    let rule = serde_json::json!({
        "id": "odd", "match": {"method": "ControllerPublishVolume"}, "phase": "after",
        "action": {"edit": {"publish_context.device": "/dev/odd"}},
    });
    let rule = csi_mock_driver::fault::Rule::from_value(rule).unwrap();
    env.server.driver().faults.put(rule).unwrap();
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    assert_eq!(env.stage(&volume).await, Err(Code::InvalidArgument));
    assert!(
        env.server
            .driver()
            .faults
            .remove(csi_mock_driver::fault::RuleKind::Rule, "odd")
    );
    let volume = env.attach(volume, false).await;
    env.stage(&volume).await.unwrap();
    env.unstage(&volume).await.unwrap();
    env.end().await;
}

#[tokio::test]
async fn missing_parent_directories_of_paths_are_refused() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let mut env = TestEnv::start(devices).await;
            let volume = env.attached("a", 64 * MIB, capability).await;
            let nowhere = env.server.path("staging").join("nowhere");
            let request = env.mk_stage(&volume, &nowhere);
            let refused = env.node.node_stage_volume(request).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{devices:?}: {refused}");
            assert!(
                refused.message().starts_with("staging_target_path: "),
                "{refused}"
            );
            env.stage(&volume).await.unwrap();
            let request = env.mk_publish(&volume, "no/where");
            let refused = env.node.node_publish_volume(request).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{devices:?}: {refused}");
            assert!(refused.message().starts_with("target_path: "), "{refused}");
            env.publish(&volume, "t").await.unwrap();
            env.unpublish(&volume, "t").await.unwrap();
            env.unstage(&volume).await.unwrap();
            env.end().await;
        }
    }
}

#[tokio::test]
async fn publishing_returns_the_codes_of_the_specification() {
    let mut env = TestEnv::start(Choice::Emulated).await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    assert_eq!(
        env.publish(&volume, "t").await,
        Err(Code::FailedPrecondition),
        "not staged"
    );
    env.stage(&volume).await.unwrap();
    let request = v1::NodePublishVolumeRequest {
        staging_target_path: String::new(),
        ..env.mk_publish(&volume, "t")
    };
    assert_eq!(
        env.publish_as(request).await,
        Err(Code::FailedPrecondition),
        "no staging path"
    );
    let request = v1::NodePublishVolumeRequest {
        volume_id: "no-such-volume".to_owned(),
        ..env.mk_publish(&volume, "t")
    };
    assert_eq!(env.publish_as(request).await, Err(Code::NotFound));
    let request = v1::NodePublishVolumeRequest {
        volume_capability: Some(mk_block(Mode::SingleNodeWriter)),
        ..env.mk_publish(&volume, "t")
    };
    assert_eq!(
        env.publish_as(request).await,
        Err(Code::FailedPrecondition),
        "staged as a filesystem"
    );

    fs::create_dir(env.target("full")).unwrap();
    fs::write(env.target("full").join("file"), "precious").unwrap();
    assert_eq!(env.publish(&volume, "full").await, Err(Code::FailedPrecondition));
    assert_eq!(
        fs::read_to_string(env.target("full").join("file")).unwrap(),
        "precious"
    );
    fs::remove_dir_all(env.target("full")).unwrap();

    env.publish(&volume, "t").await.unwrap();
    assert_eq!(
        env.unstage(&volume).await,
        Err(Code::FailedPrecondition),
        "still published"
    );
    let other = env.attached("b", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    env.stage(&other).await.unwrap();
    assert_eq!(
        env.publish(&other, "t").await,
        Err(Code::AlreadyExists),
        "in use by another volume"
    );
    assert_eq!(
        env.unpublish(&other, "t").await,
        Err(Code::FailedPrecondition),
        "OK would mean that nothing is mounted there"
    );
    assert!(env.target("t").exists(), "the other volume stays");
    env.end().await;
}

#[tokio::test]
async fn malformed_requests_are_refused_by_the_name_of_the_field() {
    let mut env = TestEnv::start(Choice::Emulated).await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let good = env.mk_publish(&volume, "t");
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
        let status = env.node.node_publish_volume(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}: {status}");
        assert!(status.message().contains(field), "{field}: {status}");
    }
    env.end().await;
}

/// Kubelet bind-mounts the published device at another path, and requests its statistics there.
#[tokio::test]
async fn stats_accept_another_path_of_the_device() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let block = mk_block(Mode::SingleNodeWriter);
    let volume = env.attached("a", 8 * MIB, block.clone()).await;
    let other = env.attached("b", 16 * MIB, block).await;
    for (volume, target) in [(&volume, "t"), (&other, "u")] {
        env.stage(volume).await.unwrap();
        env.publish(volume, target).await.unwrap();
    }
    let link = env.target("link");
    std::os::unix::fs::symlink(env.target("t"), &link).unwrap();
    assert_eq!(env.stats(&volume, &link).await.unwrap().usage[0].total, 8 * MIB);
    assert_eq!(env.stats(&other, &link).await.unwrap_err(), Code::NotFound);
    fs::remove_file(link).unwrap();
    env.end().await;
}

#[tokio::test]
async fn stats_and_health_accept_only_paths_of_the_volume() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        assert_eq!(
            env.health(&volume, None).await,
            Ok(vec![]),
            "health is available before staging"
        );
        env.stage(&volume).await.unwrap();
        env.publish(&volume, "t").await.unwrap();
        let (staging, target) = (env.staging(&volume), env.target("t"));
        for path in [&staging, &target] {
            let usage = env.stats(&volume, path).await.unwrap().usage;
            assert_eq!(usage.len(), 2, "bytes and inodes");
            assert!(
                usage[0].total > 40 * MIB && usage[0].total <= 64 * MIB,
                "its own size: {usage:?}"
            );
            assert_eq!(env.health(&volume, Some(path)).await, Ok(vec![]));
        }
        for nowhere in ["some/path", "/"] {
            assert_eq!(
                env.stats(&volume, Path::new(nowhere)).await.unwrap_err(),
                Code::NotFound
            );
        }
        let nowhere = env.target("nowhere");
        assert_eq!(env.stats(&volume, &nowhere).await.unwrap_err(), Code::NotFound);
        assert_eq!(
            env.health(&volume, Some(&nowhere)).await.unwrap_err(),
            Code::NotFound
        );
        let gone = Volume {
            id: "no-such-volume".to_owned(),
            ..volume.clone()
        };
        assert_eq!(env.stats(&gone, &target).await.unwrap_err(), Code::NotFound);

        env.detach(&volume).await;
        assert_eq!(
            env.health(&volume, Some(&target)).await,
            Ok(vec!["DeviceGone".to_owned()])
        );
        env.end().await;
    }
}

#[tokio::test]
async fn stats_of_block_volume_have_its_size() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env
            .attached("a", 64 * MIB, mk_block(Mode::SingleNodeWriter))
            .await;
        env.stage(&volume).await.unwrap();
        env.publish(&volume, "t").await.unwrap();
        let usage = env.stats(&volume, &env.target("t")).await.unwrap().usage;
        assert_eq!((usage.len(), usage[0].total), (1, 64 * MIB));
        env.end().await;
    }
}

#[tokio::test]
async fn unpublish_of_deleted_volume_succeeds_unless_strict() {
    for (strict, expected) in [(false, Ok(())), (true, Err(Code::NotFound))] {
        let mut env = TestEnv::start_with(Choice::Emulated, |_, settings| {
            settings.node.strict_gone = strict;
        })
        .await;
        let gone = Volume {
            id: "no-such-volume".to_owned(),
            capability: mount(Mode::SingleNodeWriter),
            context: mk_map(&[]),
        };
        assert_eq!(env.unpublish(&gone, "t").await, expected, "strict={strict}");
        assert_eq!(env.unstage(&gone).await, expected, "strict={strict}");
        env.end().await;
    }
}

#[tokio::test]
async fn node_get_info_reports_settings_and_later_changes() {
    let mut env = TestEnv::start_with(Choice::Emulated, |_, settings| {
        settings.array.attach_limit = Some(7);
        settings.node.topology = [("zone".to_owned(), "a".to_owned())].into();
    })
    .await;
    let info = env
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
    let node = env.server.driver().node.as_ref().unwrap().clone();
    node.set_info(|info| {
        info.id = "other".to_owned();
        info.limit = Some(3);
        info.topology.clear();
    });
    let info = env
        .node
        .node_get_info(v1::NodeGetInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("other", 3));
    assert_eq!(info.accessible_topology, None);
    env.end().await;
}
