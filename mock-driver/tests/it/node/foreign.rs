//! Mounts, links and devices of other processes at the driver's paths: they stay.

use std::os::unix::fs::symlink;

use super::*;

/// A foreign mount, link or directory at a path, with a file in it. Removed when dropped.
struct Foreign {
    path: PathBuf,
    is_mount: bool,
}

impl Foreign {
    fn at(path: &Path, devices: Choice, home: &Path) -> Self {
        let is_mount = devices == Choice::Loop;
        if is_mount {
            fs::create_dir_all(path).unwrap();
            run("mount", &["-t", "tmpfs", "foreign", &text(path)]);
        } else {
            let elsewhere = home.join("elsewhere");
            fs::create_dir_all(&elsewhere).unwrap();
            symlink(elsewhere, path).unwrap();
        }
        fs::write(path.join("file"), "precious").unwrap();
        Self {
            path: path.to_owned(),
            is_mount,
        }
    }

    fn is_whole(&self) -> bool {
        let file = match self.path.is_dir() {
            true => self.path.join("file"),
            false => self.path.clone(),
        };
        fs::read_to_string(file).is_ok_and(|text| text == "precious")
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if self.is_mount {
            let removed = verdict::command("umount").arg(&self.path).status();
            fs::remove_dir(&self.path).ok();
            assert!(removed.is_ok() || std::thread::panicking());
        } else {
            fs::remove_file(&self.path).ok();
        }
    }
}

fn run(program: &str, args: &[&str]) -> String {
    let output = verdict::command(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn foreign_file_or_mount_at_a_target_blocks_publish_and_stays() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let mut env = TestEnv::start(devices).await;
            let volume = env.attached("a", 64 * MIB, capability).await;
            env.stage(&volume).await.unwrap();
            let foreign = Foreign::at(&env.target("t"), devices, &env.server.path("."));
            for _ in 0..2 {
                assert_eq!(
                    env.publish(&volume, "t").await,
                    Err(Code::FailedPrecondition),
                    "{devices:?}"
                );
                assert!(foreign.is_whole(), "{devices:?}");
            }
            let inline = v1::NodePublishVolumeRequest {
                volume_id: "inline".to_owned(),
                volume_context: mk_map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Mi")]),
                volume_capability: Some(mount(Mode::SingleNodeWriter)),
                ..env.mk_publish(&volume, "t")
            };
            assert_eq!(env.publish_as(inline).await, Err(Code::FailedPrecondition));
            assert!(foreign.is_whole(), "{devices:?}");
            // OK would mean that nothing is mounted there.
            assert_eq!(env.unpublish(&volume, "t").await, Err(Code::FailedPrecondition));
            assert!(foreign.is_whole(), "{devices:?}");
            drop(foreign);
            assert_eq!(env.publish(&volume, "t").await, Ok(()));
            env.end().await;
        }
    }
}

#[tokio::test]
async fn foreign_link_at_an_unpublished_target_stays() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let foreign = Foreign::at(&env.target("t"), Choice::Emulated, &env.server.path("."));
        assert_eq!(
            env.unpublish(&volume, "t").await,
            Err(Code::FailedPrecondition),
            "{devices:?}"
        );
        assert!(foreign.is_whole(), "{devices:?}");
        drop(foreign);
        assert_eq!(env.unpublish(&volume, "t").await, Ok(()), "{devices:?}");
        env.end().await;
    }
}

/// Puts a foreign mount over a target, or replaces a target that is a link.
fn cover(env: &TestEnv, devices: Choice, capability: &v1::VolumeCapability) -> Foreign {
    let (target, home) = (env.target("t"), env.server.path("."));
    if devices == Choice::Emulated {
        fs::remove_file(&target).unwrap();
        return Foreign::at(&target, devices, &home);
    }
    if capability.access_type == mount(Mode::SingleNodeWriter).access_type {
        return Foreign::at(&target, devices, &home);
    }
    // Only a file can be mounted over a file.
    let file = home.join("file");
    fs::write(&file, "precious").unwrap();
    run("mount", &["--bind", &text(&file), &text(&target)]);
    Foreign {
        path: target,
        is_mount: true,
    }
}

#[tokio::test]
async fn repeated_publish_fails_if_a_foreign_mount_covers_the_target() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let mut env = TestEnv::start(devices).await;
            let volume = env.attached("a", 64 * MIB, capability.clone()).await;
            env.stage(&volume).await.unwrap();
            env.publish(&volume, "t").await.unwrap();
            assert_eq!(env.publish(&volume, "t").await, Ok(()), "{devices:?}");
            let foreign = cover(&env, devices, &capability);
            let target = env.target("t");
            assert_eq!(
                env.publish(&volume, "t").await,
                Err(Code::FailedPrecondition),
                "{devices:?}"
            );
            assert_eq!(env.stats(&volume, &target).await.unwrap_err(), Code::NotFound);
            assert_eq!(
                env.health(&volume, Some(&target)).await.unwrap().len(),
                1,
                "{devices:?}"
            );
            for _ in 0..2 {
                assert_eq!(
                    env.unpublish(&volume, "t").await,
                    Err(Code::FailedPrecondition),
                    "{devices:?}: the volume may be under it"
                );
            }
            assert!(foreign.is_whole(), "{devices:?}");
            drop(foreign);
            assert_eq!(env.publish(&volume, "t").await, Ok(()), "{devices:?}");
            assert!(env.stats(&volume, &target).await.is_ok());
            env.unpublish(&volume, "t").await.unwrap();
            env.end().await;
        }
    }
}

#[tokio::test]
async fn repeated_publish_fails_if_another_process_remounted_the_target() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    env.stage(&volume).await.unwrap();
    let (target, request) = (text(&env.target("t")), env.mk_publish(&volume, "t"));
    // (as requested, as another process remounts it, as it was before)
    for (readonly, other, back) in [(true, "rw", "ro"), (false, "ro", "rw")] {
        let request = v1::NodePublishVolumeRequest {
            readonly,
            ..request.clone()
        };
        env.publish_as(request.clone()).await.unwrap();
        run("mount", &["-o", &format!("remount,bind,{other}"), &target]);
        assert_eq!(
            env.publish_as(request.clone()).await,
            Err(Code::AlreadyExists),
            "now {other}"
        );
        run("mount", &["-o", &format!("remount,bind,{back}"), &target]);
        assert_eq!(env.publish_as(request).await, Ok(()));
        env.unpublish(&volume, "t").await.unwrap();
    }
    env.end().await;
}

#[tokio::test]
async fn target_with_files_keeps_them_and_no_record_is_left() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let keep = |directory: &Path, settings: &mut csi_mock_driver::driver::Settings| {
                settings.state_dir = Some(directory.join("state"));
            };
            let mut env = TestEnv::start_with(devices, keep).await;
            let volume = env.attached("a", 64 * MIB, capability.clone()).await;
            env.stage(&volume).await.unwrap();
            let records = count_records(env.server.driver());
            let target = env.target("t");
            let precious = target.join("file");
            fs::create_dir(&target).unwrap();
            fs::write(&precious, "precious").unwrap();
            let plain = env.mk_publish(&volume, "t");
            let readonly = v1::NodePublishVolumeRequest {
                readonly: true,
                ..plain.clone()
            };
            let inline = v1::NodePublishVolumeRequest {
                volume_id: "inline".to_owned(),
                volume_context: mk_map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Mi")]),
                ..plain.clone()
            };
            for request in [&plain, &readonly, &inline] {
                assert_eq!(
                    env.publish_as(request.clone()).await,
                    Err(Code::FailedPrecondition),
                    "{devices:?}"
                );
                assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
            }
            let left = count_records(env.server.driver());
            assert_eq!(left, records, "{devices:?}");
            assert!(!env.server.media().join("ephemeral").exists(), "{devices:?}");
            // A left-over record would make this fail.
            assert_eq!(env.unstage(&volume).await, Ok(()));
            assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");

            env.stage(&volume).await.unwrap();
            fs::remove_file(&precious).unwrap();
            assert_eq!(env.publish_as(plain).await, Ok(()), "{devices:?}");
            env.unpublish(&volume, "t").await.unwrap();
            env.unstage(&volume).await.unwrap();
            env.detach(&volume).await;
            let directory = env.server.stop().await;
            assert_nothing_left(directory.path());
        }
    }
}

#[tokio::test]
async fn foreign_mount_over_a_staged_path_blocks_calls_and_stays() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    env.stage(&volume).await.unwrap();
    let staging = env.staging(&volume);
    let foreign = Foreign::at(&staging, Choice::Loop, &env.server.path("."));
    assert_eq!(env.stage(&volume).await, Err(Code::FailedPrecondition));
    assert_eq!(env.publish(&volume, "t").await, Err(Code::FailedPrecondition));
    assert_eq!(env.unstage(&volume).await, Err(Code::FailedPrecondition));
    assert!(foreign.is_whole());
    drop(foreign);
    assert_eq!(env.unstage(&volume).await, Ok(()));
    env.end().await;
}

#[tokio::test]
async fn foreign_mount_at_an_unstaged_path_blocks_calls_and_stays() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let staging = env.staging(&volume);
    let foreign = Foreign::at(&staging, Choice::Loop, &env.server.path("."));
    let wrong = Volume {
        capability: with_flags(volume.capability.clone(), &["no-such-option"]),
        ..volume.clone()
    };
    for volume in [&volume, &wrong] {
        assert_eq!(env.stage(volume).await, Err(Code::FailedPrecondition));
        assert!(foreign.is_whole());
    }
    assert_eq!(env.unstage(&volume).await, Err(Code::FailedPrecondition));
    assert!(foreign.is_whole());
    drop(foreign);
    assert_eq!(env.unstage(&volume).await, Ok(()));
    assert_eq!(env.stage(&volume).await, Ok(()));
    env.end().await;
}

#[tokio::test]
async fn filesystem_is_mounted_through_one_device_only() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env
        .attached("a", 64 * MIB, mount(Mode::MultiNodeMultiWriter))
        .await;
    env.stage(&volume).await.unwrap();
    env.unstage(&volume).await.unwrap();
    // Like another node of this machine.
    let disk = text(&env.server.disk(&volume.id));
    let other = run("losetup", &["--find", "--show", &disk]).trim().to_owned();
    assert_eq!(env.stage(&volume).await, Ok(()), "it is not mounted yet");
    env.unstage(&volume).await.unwrap();

    let elsewhere = env.server.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    run("mount", &[&other, &text(&elsewhere)]);
    let refused = env.stage(&volume).await;
    run("umount", &[&text(&elsewhere)]);
    let again = env.stage(&volume).await;
    run("losetup", &["--detach", &other]);
    assert_eq!(refused, Err(Code::FailedPrecondition));
    assert_eq!(again, Ok(()));
    env.end().await;
}

/// Waits until a process waits for the lock of a file.
async fn lock_is_awaited(file: &fs::File) {
    let inode = format!(
        ":{} ",
        std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap())
    );
    let waits = || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks
            .lines()
            .any(|line| line.contains("->") && line.contains(&inode))
    };
    tokio::time::timeout(crate::server::DEADLINE, async {
        while !waits() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn loop_device_is_not_reused_while_a_volume_is_staged() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let mut volumes = Vec::new();
    for name in ["a", "b"] {
        let volume = env.attached(name, 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        env.stage(&volume).await.unwrap();
        fs::write(env.staging(&volume).join("name"), name).unwrap();
        env.unstage(&volume).await.unwrap();
        env.detach(&volume).await;
        volumes.push(volume);
    }
    let [a, b] = [volumes[0].clone(), volumes[1].clone()];
    let a = env.attach(a, false).await;
    // Just before it inspects and mounts the disk, a node waits for the other nodes of its machine.
    let turn = fs::File::open(env.server.disk(&a.id)).unwrap();
    turn.lock().unwrap();
    let path = text(&env.staging(&a));
    let stage = v1::NodeStageVolumeRequest {
        volume_id: a.id.clone(),
        publish_context: a.context.clone(),
        staging_target_path: path.clone(),
        volume_capability: Some(a.capability.clone()),
        ..Default::default()
    };
    let mut node = env.server.node().await;
    let taken = async {
        lock_is_awaited(&turn).await;
        // A force detach; the freed device is used for the next volume.
        env.detach(&a).await;
        let b = env.attach(b, false).await;
        drop(turn);
        b
    };
    // For any result of the stage.
    let (_, b) = tokio::join!(node.node_stage_volume(stage), taken);
    let found = fs::read_to_string(Path::new(&path).join("name")).ok();
    assert_ne!(found.as_deref(), Some("b"), "another volume's filesystem");
    assert_eq!(env.stage(&b).await, Ok(()));
    assert_eq!(fs::read_to_string(env.staging(&b).join("name")).unwrap(), "b");
    env.end().await;
}

#[tokio::test]
async fn partial_mkfs_is_wiped_before_a_volume_is_published_as_block() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env
            .attached("a", 64 * MIB, mk_block(Mode::SingleNodeWriter))
            .await;
        let disk = env.server.disk(&volume.id);
        fs::write(disk.with_file_name("formatting"), "").unwrap();
        let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"half", 9 << 20).unwrap();
        file.sync_all().unwrap();

        env.stage(&volume).await.unwrap();
        env.publish(&volume, "t").await.unwrap();
        let device = fs::File::options()
            .read(true)
            .write(true)
            .open(env.target("t"))
            .unwrap();
        let mut bytes = [1; 4];
        std::os::unix::fs::FileExt::read_exact_at(&device, &mut bytes, 9 << 20).unwrap();
        assert_eq!(bytes, [0; 4], "{devices:?}: wiped");
        std::os::unix::fs::FileExt::write_all_at(&device, b"mine", 9 << 20).unwrap();
        device.sync_all().unwrap();
        drop(device);
        env.unpublish(&volume, "t").await.unwrap();
        env.unstage(&volume).await.unwrap();
        env.stage(&volume).await.unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&fs::File::open(&disk).unwrap(), &mut bytes, 9 << 20)
            .unwrap();
        assert_eq!(&bytes, b"mine", "{devices:?}");
        env.end().await;
    }
}

#[tokio::test]
async fn unpublish_and_unstage_of_a_path_of_another_volume_are_refused() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        env.stage(&volume).await.unwrap();
        env.publish(&volume, "t").await.unwrap();
        let other = v1::NodeUnpublishVolumeRequest {
            volume_id: "other".to_owned(),
            target_path: text(&env.target("t")),
        };
        let refused = code(env.node.node_unpublish_volume(other).await);
        assert_eq!(refused, Err(Code::FailedPrecondition), "{devices:?}");
        let other = v1::NodeUnstageVolumeRequest {
            volume_id: "other".to_owned(),
            staging_target_path: text(&env.staging(&volume)),
        };
        let refused = code(env.node.node_unstage_volume(other).await);
        assert_eq!(refused, Err(Code::FailedPrecondition), "{devices:?}");
        env.unpublish(&volume, "t").await.unwrap();
        env.unstage(&volume).await.unwrap();
        env.end().await;
    }
}
