//! Mounts, links and devices of another process in the driver's way: they stay.

use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;

/// Something of another process at a path, with a file in it. It goes with the test.
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
            let removed = Command::new("umount").arg(&self.path).status();
            fs::remove_dir(&self.path).ok();
            assert!(removed.is_ok() || std::thread::panicking());
        } else {
            fs::remove_file(&self.path).ok();
        }
    }
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn what_somebody_else_has_at_a_target_is_in_the_way_and_stays() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let mut site = Site::start(devices).await;
            let volume = site.attached("a", 64 * MIB, capability).await;
            site.stage(&volume).await.unwrap();
            let foreign = Foreign::at(&site.target("t"), devices, &site.server.path("."));
            for _ in 0..2 {
                assert_eq!(
                    site.publish(&volume, "t").await,
                    Err(Code::FailedPrecondition),
                    "{devices:?}"
                );
                assert!(foreign.is_whole(), "{devices:?}");
            }
            let inline = v1::NodePublishVolumeRequest {
                volume_id: "inline".to_owned(),
                volume_context: mk_map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Mi")]),
                volume_capability: Some(mount(Mode::SingleNodeWriter)),
                ..site.mk_publish(&volume, "t")
            };
            assert_eq!(site.publish_as(inline).await, Err(Code::FailedPrecondition));
            assert!(foreign.is_whole(), "{devices:?}");
            // Nothing of the volume is there, so there is nothing to undo.
            assert_eq!(site.unpublish(&volume, "t").await, Ok(()));
            assert!(foreign.is_whole(), "{devices:?}");
            drop(foreign);
            assert_eq!(site.publish(&volume, "t").await, Ok(()));
            site.end().await;
        }
    }
}

#[tokio::test]
async fn link_of_somebody_else_where_nothing_was_published_is_left_alone() {
    for devices in kinds() {
        let mut site = Site::start(devices).await;
        let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let foreign = Foreign::at(&site.target("t"), Choice::Emulated, &site.server.path("."));
        assert_eq!(site.unpublish(&volume, "t").await, Ok(()), "{devices:?}");
        assert!(foreign.is_whole(), "{devices:?}");
        drop(foreign);
        site.end().await;
    }
}

/// Puts something of another process on top of a target, or in the place of one that is a link.
fn cover(site: &Site, devices: Choice, capability: &v1::VolumeCapability) -> Foreign {
    let (target, home) = (site.target("t"), site.server.path("."));
    if devices == Choice::Emulated {
        fs::remove_file(&target).unwrap();
        return Foreign::at(&target, devices, &home);
    }
    if capability.access_type == mount(Mode::SingleNodeWriter).access_type {
        return Foreign::at(&target, devices, &home);
    }
    // On a file goes a file.
    let file = home.join("file");
    fs::write(&file, "precious").unwrap();
    run("mount", &["--bind", &text(&file), &text(&target)]);
    Foreign {
        path: target,
        is_mount: true,
    }
}

#[tokio::test]
async fn repeated_publish_is_no_success_where_somebody_else_covers_the_target() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let mut site = Site::start(devices).await;
            let volume = site.attached("a", 64 * MIB, capability.clone()).await;
            site.stage(&volume).await.unwrap();
            site.publish(&volume, "t").await.unwrap();
            assert_eq!(site.publish(&volume, "t").await, Ok(()), "{devices:?}");
            let foreign = cover(&site, devices, &capability);
            let target = site.target("t");
            assert_eq!(
                site.publish(&volume, "t").await,
                Err(Code::FailedPrecondition),
                "{devices:?}"
            );
            assert_eq!(site.stats(&volume, &target).await.unwrap_err(), Code::NotFound);
            assert_eq!(
                site.health(&volume, Some(&target)).await.unwrap().len(),
                1,
                "{devices:?}"
            );
            for _ in 0..2 {
                assert_eq!(
                    site.unpublish(&volume, "t").await,
                    Err(Code::FailedPrecondition),
                    "{devices:?}: the volume may be under it"
                );
            }
            assert!(foreign.is_whole(), "{devices:?}");
            drop(foreign);
            assert_eq!(site.publish(&volume, "t").await, Ok(()), "{devices:?}");
            assert!(site.stats(&volume, &target).await.is_ok());
            site.unpublish(&volume, "t").await.unwrap();
            site.end().await;
        }
    }
}

#[tokio::test]
async fn repeated_publish_is_no_success_where_somebody_else_made_it_writable() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    site.stage(&volume).await.unwrap();
    let (target, request) = (text(&site.target("t")), site.mk_publish(&volume, "t"));
    // (as it was asked for, as somebody makes it, as it was before)
    for (readonly, other, back) in [(true, "rw", "ro"), (false, "ro", "rw")] {
        let request = v1::NodePublishVolumeRequest {
            readonly,
            ..request.clone()
        };
        site.publish_as(request.clone()).await.unwrap();
        run("mount", &["-o", &format!("remount,bind,{other}"), &target]);
        assert_eq!(
            site.publish_as(request.clone()).await,
            Err(Code::AlreadyExists),
            "now {other}"
        );
        run("mount", &["-o", &format!("remount,bind,{back}"), &target]);
        assert_eq!(site.publish_as(request).await, Ok(()));
        site.unpublish(&volume, "t").await.unwrap();
    }
    site.end().await;
}

#[tokio::test]
async fn target_with_files_keeps_them_and_no_record_is_left() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let keep = |directory: &Path, settings: &mut csi_mock_driver::driver::Settings| {
                settings.state_dir = Some(directory.join("state"));
            };
            let mut site = Site::start_with(devices, keep).await;
            let volume = site.attached("a", 64 * MIB, capability.clone()).await;
            site.stage(&volume).await.unwrap();
            let records = count_records(site.server.driver());
            let target = site.target("t");
            let precious = target.join("file");
            fs::create_dir(&target).unwrap();
            fs::write(&precious, "precious").unwrap();
            let plain = site.mk_publish(&volume, "t");
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
                    site.publish_as(request.clone()).await,
                    Err(Code::FailedPrecondition),
                    "{devices:?}"
                );
                assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
            }
            let left = count_records(site.server.driver());
            assert_eq!(left, records, "{devices:?}");
            assert!(!site.server.media().join("ephemeral").exists(), "{devices:?}");
            // What was recorded would be in the way of this.
            assert_eq!(site.unstage(&volume).await, Ok(()));
            assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");

            site.stage(&volume).await.unwrap();
            fs::remove_file(&precious).unwrap();
            assert_eq!(site.publish_as(plain).await, Ok(()), "{devices:?}");
            site.unpublish(&volume, "t").await.unwrap();
            site.unstage(&volume).await.unwrap();
            site.detach(&volume).await;
            let directory = site.server.stop().await;
            nothing_is_left(directory.path());
        }
    }
}

#[tokio::test]
async fn what_somebody_else_mounts_over_a_staging_path_is_in_the_way_and_stays() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    site.stage(&volume).await.unwrap();
    let staging = site.staging(&volume);
    let foreign = Foreign::at(&staging, Choice::Loop, &site.server.path("."));
    assert_eq!(site.stage(&volume).await, Err(Code::FailedPrecondition));
    assert_eq!(site.publish(&volume, "t").await, Err(Code::FailedPrecondition));
    assert_eq!(site.unstage(&volume).await, Err(Code::FailedPrecondition));
    assert!(foreign.is_whole());
    drop(foreign);
    assert_eq!(site.unstage(&volume).await, Ok(()));
    site.end().await;
}

#[tokio::test]
async fn what_somebody_else_has_mounted_at_a_staging_path_is_in_the_way_and_stays() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let volume = site.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let staging = site.staging(&volume);
    let foreign = Foreign::at(&staging, Choice::Loop, &site.server.path("."));
    let wrong = Volume {
        capability: with_flags(volume.capability.clone(), &["no-such-option"]),
        ..volume.clone()
    };
    for volume in [&volume, &wrong] {
        assert_eq!(site.stage(volume).await, Err(Code::FailedPrecondition));
        assert!(foreign.is_whole());
    }
    assert_eq!(site.unstage(&volume).await, Ok(()));
    assert!(foreign.is_whole());
    drop(foreign);
    assert_eq!(site.stage(&volume).await, Ok(()));
    site.end().await;
}

#[tokio::test]
async fn filesystem_is_mounted_through_one_device_at_a_time() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let volume = site
        .attached("a", 64 * MIB, mount(Mode::MultiNodeMultiWriter))
        .await;
    site.stage(&volume).await.unwrap();
    site.unstage(&volume).await.unwrap();
    // As another node of this machine has it.
    let disk = text(&site.server.disk(&volume.id));
    let other = run("losetup", &["--find", "--show", &disk]).trim().to_owned();
    assert_eq!(site.stage(&volume).await, Ok(()), "it is not mounted yet");
    site.unstage(&volume).await.unwrap();

    let elsewhere = site.server.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    run("mount", &[&other, &text(&elsewhere)]);
    let refused = site.stage(&volume).await;
    run("umount", &[&text(&elsewhere)]);
    let again = site.stage(&volume).await;
    run("losetup", &["--detach", &other]);
    assert_eq!(refused, Err(Code::FailedPrecondition));
    assert_eq!(again, Ok(()));
    site.end().await;
}

/// Awaits that somebody waits for the lock of a file.
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
async fn loop_device_is_no_other_volumes_while_a_volume_is_staged() {
    if !privilege::is_there() {
        return;
    }
    let mut site = Site::start(Choice::Loop).await;
    let mut volumes = Vec::new();
    for name in ["a", "b"] {
        let volume = site.attached(name, 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        site.stage(&volume).await.unwrap();
        fs::write(site.staging(&volume).join("name"), name).unwrap();
        site.unstage(&volume).await.unwrap();
        site.detach(&volume).await;
        volumes.push(volume);
    }
    let [a, b] = [volumes[0].clone(), volumes[1].clone()];
    let a = site.attach(a, false).await;
    // The last thing before the disk is looked at and mounted is that nodes of one machine take turns.
    let turn = fs::File::open(site.server.disk(&a.id)).unwrap();
    turn.lock().unwrap();
    let path = text(&site.staging(&a));
    let stage = v1::NodeStageVolumeRequest {
        volume_id: a.id.clone(),
        publish_context: a.context.clone(),
        staging_target_path: path.clone(),
        volume_capability: Some(a.capability.clone()),
        ..Default::default()
    };
    let mut node = site.server.node().await;
    let taken = async {
        lock_is_awaited(&turn).await;
        // By force, as of a node that is given up; the device that is free then is the next one's.
        site.detach(&a).await;
        let b = site.attach(b, false).await;
        drop(turn);
        b
    };
    // However the stage ends.
    let (_, b) = tokio::join!(node.node_stage_volume(stage), taken);
    let found = fs::read_to_string(Path::new(&path).join("name")).ok();
    assert_ne!(found.as_deref(), Some("b"), "another volume's filesystem");
    assert_eq!(site.stage(&b).await, Ok(()));
    assert_eq!(fs::read_to_string(site.staging(&b).join("name")).unwrap(), "b");
    site.end().await;
}

#[tokio::test]
async fn rest_of_a_mkfs_is_wiped_before_a_volume_is_a_raw_device() {
    for devices in kinds() {
        let mut site = Site::start(devices).await;
        let volume = site
            .attached("a", 64 * MIB, mk_block(Mode::SingleNodeWriter))
            .await;
        let disk = site.server.disk(&volume.id);
        fs::write(disk.with_file_name("formatting"), "").unwrap();
        let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"half", 9 << 20).unwrap();
        file.sync_all().unwrap();

        site.stage(&volume).await.unwrap();
        site.publish(&volume, "t").await.unwrap();
        let device = fs::File::options()
            .read(true)
            .write(true)
            .open(site.target("t"))
            .unwrap();
        let mut bytes = [1; 4];
        std::os::unix::fs::FileExt::read_exact_at(&device, &mut bytes, 9 << 20).unwrap();
        assert_eq!(bytes, [0; 4], "{devices:?}: wiped");
        std::os::unix::fs::FileExt::write_all_at(&device, b"mine", 9 << 20).unwrap();
        device.sync_all().unwrap();
        drop(device);
        site.unpublish(&volume, "t").await.unwrap();
        site.unstage(&volume).await.unwrap();
        site.stage(&volume).await.unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&fs::File::open(&disk).unwrap(), &mut bytes, 9 << 20)
            .unwrap();
        assert_eq!(&bytes, b"mine", "{devices:?}");
        site.end().await;
    }
}
