//! Restart with a state directory: pods keep their volumes, and the driver undoes unfinished operations.

use super::*;

#[tokio::test]
async fn published_volumes_survive_a_driver_restart() {
    for devices in kinds() {
        let mut env = TestEnv::start_with(devices, keep).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        env.stage(&volume).await.unwrap();
        env.publish(&volume, "t").await.unwrap();
        fs::write(env.target("t").join("file"), "text").unwrap();
        let mut env = env.again(devices, |_| {}).await;
        assert_eq!(fs::read_to_string(env.target("t").join("file")).unwrap(), "text");
        assert_eq!(env.stage(&volume).await, Ok(()));
        assert_eq!(env.publish(&volume, "t").await, Ok(()));
        let flags = v1::NodePublishVolumeRequest {
            readonly: true,
            ..env.mk_publish(&volume, "t")
        };
        assert_eq!(
            env.publish_as(flags).await,
            Err(Code::AlreadyExists),
            "the arguments are recorded"
        );
        env.unpublish(&volume, "t").await.unwrap();
        env.unstage(&volume).await.unwrap();
        env.detach(&volume).await;
        assert_nothing_left(&env.server.path(""));
    }
}

#[tokio::test]
async fn restart_undoes_unfinished_operations() {
    for devices in kinds() {
        let mut env = TestEnv::start_with(devices, keep).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        env.stage(&volume).await.unwrap();
        env.publish(&volume, "t").await.unwrap();
        let inline = v1::NodePublishVolumeRequest {
            volume_context: mk_map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Mi")]),
            volume_id: "csi-1".to_owned(),
            ..env.mk_publish(&volume, "inline")
        };
        env.publish_as(inline).await.unwrap();
        // The state after a kill between the mount and the update of the record.
        let mut env = env
            .again(devices, |directory| {
                edit_records(directory, |record| {
                    assert!(record.contains(DONE), "{record}");
                    Some(record.replace(DONE, DOING))
                });
            })
            .await;
        for target in ["t", "inline"] {
            assert!(
                fs::symlink_metadata(env.target(target)).is_err(),
                "{devices:?} {target}"
            );
        }
        let ephemeral = env.server.media().join("ephemeral").join(HERE);
        assert_eq!(fs::read_dir(ephemeral).unwrap().count(), 0, "{devices:?}");
        assert_eq!(
            env.publish(&volume, "t").await,
            Err(Code::FailedPrecondition),
            "not staged any more"
        );
        assert_eq!(env.stage(&volume).await, Ok(()));
        assert_eq!(env.publish(&volume, "t").await, Ok(()));
        env.unpublish(&volume, "t").await.unwrap();
        env.unstage(&volume).await.unwrap();
        env.detach(&volume).await;
        assert_nothing_left(&env.server.path(""));
    }
}

#[tokio::test]
async fn restart_undoes_a_stage_without_target() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            // With an unfinished target, and with a target without a record.
            for is_begun in [true, false] {
                let set = |directory: &Path, settings: &mut csi_mock_driver::driver::Settings| {
                    keep(directory, settings);
                    settings.capabilities = "-NODE_STAGE_UNSTAGE_VOLUME".parse().unwrap();
                };
                let mut env = TestEnv::start_with(devices, set).await;
                let volume = env.attached("a", 64 * MIB, capability.clone()).await;
                env.publish(&volume, "t").await.unwrap();
                let target = env.target("t");
                let between = |directory: &Path| {
                    edit_records(directory, |record| {
                        if !record.contains("\"published\"") {
                            return Some(record.to_owned());
                        }
                        assert!(record.contains(DONE), "{record}");
                        if is_begun {
                            return Some(record.replace(DONE, DOING));
                        }
                        if devices == Choice::Loop {
                            unmount(&target);
                        } else {
                            fs::remove_file(&target).unwrap();
                        }
                        None
                    });
                };
                let mut env = env.again_with(devices, between, set).await;
                assert_eq!(
                    count_records(env.server.driver()),
                    0,
                    "{devices:?} begun={is_begun}: no record is left"
                );
                env.detach(&volume).await;
                assert_nothing_left(&env.server.path(""));
            }
        }
    }
}

#[tokio::test]
async fn devices_and_mounts_are_restored_after_a_reboot() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start_with(Choice::Loop, keep).await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    env.stage(&volume).await.unwrap();
    env.publish(&volume, "t").await.unwrap();
    fs::write(env.target("t").join("file"), "text").unwrap();
    let (target, staging) = (env.target("t"), env.staging(&volume));
    let mut env = env
        .again(Choice::Loop, |directory| {
            for path in [&target, &staging] {
                unmount(path);
            }
            let links = directory.join("state/media/devices").join(HERE);
            for link in fs::read_dir(links).unwrap() {
                let device = fs::read_link(link.unwrap().path()).unwrap();
                if !device.is_absolute() {
                    continue;
                }
                let freed = verdict::command("losetup").arg("--detach").arg(device).status();
                assert!(freed.unwrap().success());
            }
        })
        .await;
    assert_eq!(env.stage(&volume).await, Ok(()));
    assert_eq!(env.publish(&volume, "t").await, Ok(()));
    assert_eq!(fs::read_to_string(env.target("t").join("file")).unwrap(), "text");
    env.unpublish(&volume, "t").await.unwrap();
    env.unstage(&volume).await.unwrap();
    env.detach(&volume).await;
    assert_nothing_left(&env.server.path(""));
}

#[tokio::test]
async fn unpublish_works_after_the_records_are_lost() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let set = |directory: &Path, settings: &mut csi_mock_driver::driver::Settings| {
                keep(directory, settings);
                settings.capabilities = "-NODE_STAGE_UNSTAGE_VOLUME".parse().unwrap();
            };
            let mut env = TestEnv::start_with(devices, set).await;
            let volume = env.attached("a", 64 * MIB, capability.clone()).await;
            env.publish(&volume, "t").await.unwrap();
            let inline = v1::NodePublishVolumeRequest {
                volume_context: mk_map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Mi")]),
                volume_id: "csi-1".to_owned(),
                volume_capability: Some(mount(Mode::SingleNodeWriter)),
                ..env.mk_publish(&volume, "inline")
            };
            env.publish_as(inline).await.unwrap();
            let file = env.target("inline").join("file");
            fs::write(&file, "text").unwrap();
            let between = |directory: &Path| edit_records(directory, |_| None);
            let mut env = env.again_with(devices, between, set).await;
            assert_eq!(count_records(env.server.driver()), 0);
            assert_eq!(
                fs::read_to_string(&file).unwrap(),
                "text",
                "{devices:?}: the pod keeps its volume"
            );

            let inline = Volume {
                id: "csi-1".to_owned(),
                ..volume.clone()
            };
            for (volume, target) in [(&volume, "t"), (&inline, "inline")] {
                assert_eq!(env.unpublish(volume, target).await, Ok(()));
                assert!(
                    fs::symlink_metadata(env.target(target)).is_err(),
                    "{devices:?} {target}"
                );
            }
            let media = env.server.media();
            for made in [format!("ephemeral/{HERE}"), format!("staging/{HERE}")] {
                let left = fs::read_dir(media.join(&made)).unwrap();
                assert_eq!(left.count(), 0, "{devices:?} {made}");
            }
            env.detach(&volume).await;
            assert_nothing_left(&env.server.path(""));
        }
    }
}

/// A path keeps what is mounted or linked there, of whatever kind the devices are after the restart.
#[tokio::test]
async fn volumes_are_unpublished_after_the_kind_of_devices_changed() {
    for before in kinds() {
        for after in [Choice::None, Choice::Emulated, Choice::Loop] {
            if after == before || (after == Choice::Loop && !kinds().contains(&after)) {
                continue;
            }
            for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
                let case = format!("{before:?} {after:?}");
                let mut env = TestEnv::start_with(before, keep).await;
                let volume = env.attached("a", 64 * MIB, capability).await;
                env.stage(&volume).await.unwrap();
                env.publish(&volume, "t").await.unwrap();
                let mut env = env.again(after, |_| {}).await;
                // An emulated filesystem is staged without a mount.
                let is_staged =
                    !(after == Choice::Loop && volume.capability == mount(Mode::SingleNodeWriter));
                assert_eq!(
                    count_records(env.server.driver()),
                    1 + usize::from(is_staged),
                    "{case}"
                );
                assert_eq!(env.unpublish(&volume, "t").await, Ok(()), "{case}");
                assert!(fs::symlink_metadata(env.target("t")).is_err(), "{case}");
                assert_eq!(env.unstage(&volume).await, Ok(()), "{case}");
                env.detach(&volume).await;
                assert_nothing_left(&env.server.path(""));
            }
        }
    }
}
