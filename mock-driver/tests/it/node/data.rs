//! Data persists, read-only volumes reject writes, and foreign data is never formatted.

use std::os::unix::fs::MetadataExt;

use csi_mock_driver::store::volume_files::FileId;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use tokio::task::JoinSet;

use super::*;
use crate::server::line_in;

#[tokio::test]
async fn data_survives_detach_and_attach() {
    for devices in kinds() {
        for fs_type in ["ext4", "xfs", ""] {
            if !can_make(fs_type, devices) {
                continue;
            }
            let mut env = TestEnv::start(devices).await;
            let capability = mk_mount(fs_type, Mode::SingleNodeWriter);
            let mut volume = env.attached("a", 320 * MIB, capability).await;
            for round in 0..2 {
                env.stage(&volume).await.unwrap();
                env.publish(&volume, "t").await.unwrap();
                let file = env.target("t").join("file");
                if round == 0 {
                    fs::write(&file, "written first").unwrap();
                } else {
                    assert_eq!(
                        fs::read_to_string(&file).unwrap(),
                        "written first",
                        "{devices:?} {fs_type}"
                    );
                }
                env.unpublish(&volume, "t").await.unwrap();
                env.unstage(&volume).await.unwrap();
                env.detach(&volume).await;
                volume = env.attach(volume, false).await;
            }
            env.end().await;
        }
    }
}

#[tokio::test]
async fn block_data_survives_detach_and_attach() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let mut volume = env
            .attached("a", 64 * MIB, mk_block(Mode::SingleNodeWriter))
            .await;
        for round in 0..2 {
            env.stage(&volume).await.unwrap();
            env.publish(&volume, "t").await.unwrap();
            let device = env.target("t");
            if round == 0 {
                let file = fs::OpenOptions::new().write(true).open(&device).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, b"raw", 5 << 20).unwrap();
                file.sync_all().unwrap();
            } else {
                let mut bytes = [0; 3];
                let file = fs::File::open(&device).unwrap();
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 5 << 20).unwrap();
                assert_eq!(&bytes, b"raw", "{devices:?}");
            }
            env.unpublish(&volume, "t").await.unwrap();
            env.unstage(&volume).await.unwrap();
            env.detach(&volume).await;
            volume = env.attach(volume, false).await;
        }
        env.end().await;
    }
}

#[tokio::test]
async fn two_targets_show_the_same_files() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env
            .attached("a", 64 * MIB, mount(Mode::SingleNodeMultiWriter))
            .await;
        env.stage(&volume).await.unwrap();
        for target in ["t1", "t2"] {
            env.publish(&volume, target).await.unwrap();
        }
        fs::write(env.target("t1").join("file"), "text").unwrap();
        assert_eq!(fs::read_to_string(env.target("t2").join("file")).unwrap(), "text");
        env.unpublish(&volume, "t1").await.unwrap();
        assert_eq!(fs::read_to_string(env.target("t2").join("file")).unwrap(), "text");
        env.end().await;
    }
}

#[tokio::test]
async fn data_of_an_unknown_kind_is_never_formatted() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let disk = env.server.disk(&volume.id);
        let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"precious", 9 << 20).unwrap();
        file.sync_all().unwrap();
        assert_eq!(
            env.stage(&volume).await,
            Err(Code::FailedPrecondition),
            "{devices:?}"
        );
        let mut bytes = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&fs::File::open(&disk).unwrap(), &mut bytes, 9 << 20)
            .unwrap();
        assert_eq!(&bytes, b"precious");
        env.end().await;
    }
}

#[tokio::test]
async fn directories_may_be_given_by_relative_paths() {
    let up: PathBuf = std::env::current_dir()
        .unwrap()
        .components()
        .skip(1)
        .map(|_| "..")
        .collect();
    let relative = |path: &Path| up.join(path.strip_prefix("/").unwrap());
    for devices in kinds() {
        for beside in [true, false] {
            let mut env = TestEnv::start_with(devices, |directory, settings| {
                settings.media_dir = Some(relative(&directory.join("media")));
                settings.node.device_dir = Some(directory.join("devices"))
                    .filter(|_| !beside)
                    .map(|path| relative(&path));
            })
            .await;
            let media = env.server.path("media");
            let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
            env.stage(&volume).await.unwrap();
            env.publish(&volume, "t").await.unwrap();
            fs::write(env.target("t").join("file"), "text").unwrap();
            env.unpublish(&volume, "t").await.unwrap();
            env.unstage(&volume).await.unwrap();
            env.detach(&volume).await;
            assert_nothing_left(&media);
            let directory = env.server.stop().await;
            assert_nothing_left(directory.path());
        }
    }
}

#[tokio::test]
async fn blank_read_only_volume_is_not_formatted() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.create("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let volume = env.attach(volume, true).await;
        assert_eq!(
            env.stage(&volume).await,
            Err(Code::FailedPrecondition),
            "{devices:?}"
        );
        env.end().await;
    }
}

#[tokio::test]
async fn staging_with_another_fs_type_is_refused() {
    for devices in kinds() {
        if !can_make("xfs", devices) {
            continue;
        }
        let mut env = TestEnv::start(devices).await;
        let volume = env
            .attached("a", 320 * MIB, mk_mount("xfs", Mode::SingleNodeWriter))
            .await;
        env.stage(&volume).await.unwrap();
        env.unstage(&volume).await.unwrap();
        let other = Volume {
            capability: mk_mount("ext4", Mode::SingleNodeWriter),
            ..volume.clone()
        };
        assert_eq!(
            env.stage(&other).await,
            Err(Code::FailedPrecondition),
            "{devices:?}"
        );
        assert_eq!(env.stage(&volume).await, Ok(()));
        env.end().await;
    }
}

#[tokio::test]
async fn absent_or_wrong_device_is_refused() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        for (kind, code) in [
            ("device-absent", Code::Unavailable),
            ("wrong-device", Code::Internal),
        ] {
            let device = if kind == "wrong-device" {
                ", device: /dev/nothing"
            } else {
                ""
            };
            let rule = format!("backend-faults: [{{id: x, type: {kind}{device}}}]");
            env.server.set_faults(&rule);
            assert_eq!(env.stage(&volume).await, Err(code), "{devices:?} {kind}");
        }
        env.server.set_faults("");
        assert_eq!(env.stage(&volume).await, Ok(()), "{devices:?}");
        env.end().await;
    }
}

#[tokio::test]
async fn foreign_data_of_a_backend_fault_is_not_formatted_and_ends_with_it() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        let disk = env.server.disk(&volume.id);
        let blank = fs::read(&disk).unwrap();
        for (data, words) in [
            ("", "unknown kind"),
            (", data: luks", "LUKS"),
            (", data: btrfs", "btrfs"),
        ] {
            let rule = format!(
                "backend-faults: [{{id: x, type: foreign-data, volume: {}{data}}}]",
                volume.id
            );
            env.server.set_faults(&rule);
            let request = env.mk_stage(&volume, &env.staging(&volume));
            let refused = env.node.node_stage_volume(request).await.unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition, "{devices:?}");
            assert!(refused.message().contains(words), "{refused}");
        }
        assert!(
            fs::read(&disk).unwrap() == blank,
            "{devices:?}: nothing was written"
        );
        env.server
            .set_faults("backend-faults: [{id: x, type: foreign-data, volume: other}]");
        assert_eq!(env.stage(&volume).await, Ok(()), "{devices:?}: another volume's");
        env.publish(&volume, "t").await.unwrap();
        fs::write(env.target("t").join("file"), "precious").unwrap();
        env.unpublish(&volume, "t").await.unwrap();

        env.server
            .set_faults("backend-faults: [{id: x, type: foreign-data}]");
        assert_eq!(env.stage(&volume).await, Ok(()), "{devices:?}: staged already");
        env.unstage(&volume).await.unwrap();
        assert_eq!(env.stage(&volume).await, Err(Code::FailedPrecondition));
        env.server.set_faults("");
        assert_eq!(env.stage(&volume).await, Ok(()));
        env.publish(&volume, "t").await.unwrap();
        let file = fs::read_to_string(env.target("t").join("file")).unwrap();
        assert_eq!(file, "precious", "{devices:?}");
        env.end().await;
    }
}

#[tokio::test]
async fn damaged_filesystem_is_refused_until_the_fault_ends() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        env.server
            .set_faults("backend-faults: [{id: x, type: damaged-filesystem}]");
        assert_eq!(
            env.stage(&volume).await,
            Ok(()),
            "{devices:?}: blank has no errors"
        );
        env.unstage(&volume).await.unwrap();
        assert_eq!(env.stage(&volume).await, Err(Code::Internal), "{devices:?}");
        env.server.set_faults("");
        assert_eq!(env.stage(&volume).await, Ok(()), "{devices:?}");
        env.unstage(&volume).await.unwrap();
        env.end().await;
    }
}

#[tokio::test]
async fn node_stage_waits_for_a_late_device() {
    let mut env = TestEnv::start_with(Choice::Emulated, |directory, settings| {
        settings.node.device_timeout = crate::server::DEADLINE;
        settings.journal = Some(directory.join("journal"));
    })
    .await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    let absent = "backend-faults: [{id: x, type: device-absent}]";
    env.server.set_faults(absent);
    let journal = env.server.path("journal");
    let driver = env.server.driver().clone();
    let comes = async {
        let staging = |line: &serde_json::Value| {
            line["method"]
                .as_str()
                .is_some_and(|m| m.ends_with("NodeStageVolume"))
        };
        line_in(&journal, staging).await;
        driver
            .faults
            .remove(csi_mock_driver::fault::RuleKind::BackendFault, "x");
    };
    let (staged, ()) = tokio::join!(env.stage(&volume), comes);
    assert_eq!(staged, Ok(()));
    env.end().await;
}

#[tokio::test]
async fn real_mounts_obey_readonly_options_and_group() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let mut capability = with_flags(mount(Mode::SingleNodeMultiWriter), &["noexec", "noatime"]);
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
        mount.volume_mount_group = "4711".to_owned();
    }
    let volume = env.attached("a", 64 * MIB, capability).await;
    env.stage(&volume).await.unwrap();
    env.publish(&volume, "rw").await.unwrap();
    let readonly = v1::NodePublishVolumeRequest {
        readonly: true,
        ..env.mk_publish(&volume, "ro")
    };
    env.publish_as(readonly).await.unwrap();

    fs::write(env.target("rw").join("file"), "text").unwrap();
    let refused = fs::write(env.target("ro").join("file"), "other").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read_to_string(env.target("ro").join("file")).unwrap(), "text");
    for target in ["rw", "ro"] {
        let path = env.target(target);
        let line = mount_line(&path);
        assert!(line.contains("noexec") && line.contains("noatime"), "{line}");
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.gid(), meta.mode() & 0o2070), (4711, 0o2070));
    }
    assert_eq!(
        fs::metadata(env.target("rw").join("file")).unwrap().gid(),
        4711,
        "files belong to the group"
    );

    let refused = Volume {
        capability: with_flags(mount(Mode::SingleNodeMultiWriter), &["no-such-option"]),
        ..env
            .attached("b", 64 * MIB, mount(Mode::SingleNodeMultiWriter))
            .await
    };
    assert_eq!(env.stage(&refused).await, Err(Code::InvalidArgument));
    env.end().await;
}

#[tokio::test]
async fn emulated_filesystems_belong_to_the_mount_group() {
    let mut env = TestEnv::start(Choice::Emulated).await;
    // Root may change a file's group to any, other users only to their own groups.
    let own = fs::metadata(env.server.path("targets")).unwrap();
    let (group, foreign) = match own.uid() {
        0 => (4711, None),
        _ => (own.gid(), Some(0)),
    };
    let with_group = |group: u32| {
        let mut capability = mount(Mode::SingleNodeWriter);
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
            mount.volume_mount_group = group.to_string();
        }
        capability
    };
    let volume = env.attached("a", 64 * MIB, with_group(group)).await;
    env.stage(&volume).await.unwrap();
    env.publish(&volume, "t").await.unwrap();
    fs::write(env.target("t").join("file"), "text").unwrap();
    let meta = fs::metadata(env.target("t")).unwrap();
    assert_eq!((meta.gid(), meta.mode() & 0o2070), (group, 0o2070));
    assert_eq!(fs::metadata(env.target("t").join("file")).unwrap().gid(), group);
    if let Some(foreign) = foreign {
        let volume = env.attached("b", 64 * MIB, with_group(foreign)).await;
        assert_eq!(env.stage(&volume).await, Err(Code::FailedPrecondition));
    }
    env.end().await;
}

#[tokio::test]
async fn loop_device_of_a_readonly_attachment_rejects_writes() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env.attached("a", 64 * MIB, mount(Mode::SingleNodeWriter)).await;
    env.stage(&volume).await.unwrap();
    env.unstage(&volume).await.unwrap();
    env.detach(&volume).await;
    let volume = env.attach(volume, true).await;
    env.stage(&volume).await.unwrap();
    env.publish(&volume, "t").await.unwrap();
    let refused = fs::write(env.target("t").join("file"), "text").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    env.end().await;
}

#[tokio::test]
async fn copies_of_mounted_filesystems_are_as_after_a_power_failure_and_pods_continue() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        let volume = env.attached(name, 64 * MIB, mount(Mode::SingleNodeWriter)).await;
        env.stage(&volume).await.unwrap();
        env.publish(&volume, name).await.unwrap();
        let mut file = fs::File::create(env.target(name).join("file")).unwrap();
        std::io::Write::write_all(&mut file, name.as_bytes()).unwrap();
        file.sync_all().unwrap();
        ids.push(volume.id);
    }
    let group = v1::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: ids.clone(),
        ..Default::default()
    };
    let mut groups = GroupControllerClient::new(env.server.channel().await);
    let group = groups.create_volume_group_snapshot(group).await.unwrap();
    let group = group.into_inner().group_snapshot.unwrap();
    let single = v1::CreateSnapshotRequest {
        name: "s".to_owned(),
        source_volume_id: ids[0].clone(),
        ..Default::default()
    };
    let single = env.controller.create_snapshot(single).await.unwrap();
    let mut copies: Vec<(FileId, &str)> = Vec::new();
    for snapshot in group.snapshots.into_iter().chain(single.into_inner().snapshot) {
        let name = if snapshot.source_volume_id == ids[0] {
            "a"
        } else {
            "b"
        };
        copies.push((FileId::Snapshot(snapshot.snapshot_id), name));
    }
    let clone = v1::CreateVolumeRequest {
        volume_content_source: Some(v1::VolumeContentSource {
            r#type: Some(v1::volume_content_source::Type::Volume(
                v1::volume_content_source::VolumeSource {
                    volume_id: ids[1].clone(),
                },
            )),
        }),
        volume_capabilities: vec![mount(Mode::SingleNodeWriter)],
        ..mk_create("c")
    };
    let clone = env.controller.create_volume(clone).await.unwrap().into_inner();
    copies.push((FileId::Volume(clone.volume.unwrap().volume_id), "b"));
    assert_eq!(copies.len(), 4);
    let media = &env.server.driver().volume_files;
    for (medium, content) in copies {
        let disk = media.disk(&medium).unwrap();
        assert!(needs_recovery(&disk), "{medium:?}: nothing was frozen");
        let repaired = verdict::command("e2fsck").arg("-p").arg(&disk).status().unwrap();
        assert!(matches!(repaired.code(), Some(0 | 1)), "{medium:?}: {repaired}");
        let read = verdict::command("debugfs")
            .args(["-R", "cat /file"])
            .arg(&disk)
            .output();
        assert_eq!(
            String::from_utf8(read.unwrap().stdout).unwrap(),
            content,
            "{medium:?}"
        );
    }
    for (id, name) in ids.iter().zip(["a", "b"]) {
        fs::write(env.target(name).join("file"), "goes on").unwrap();
        assert!(media.exists(&FileId::Volume(id.clone())).unwrap());
    }
    env.end().await;
}

/// Whether an ext4 filesystem was not unmounted cleanly, so that its journal must be replayed.
fn needs_recovery(disk: &Path) -> bool {
    const FEATURES: u64 = 1024 + 0x60;
    const RECOVER: u8 = 4;
    let mut features = [0; 4];
    let disk = fs::File::open(disk).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&disk, &mut features, FEATURES).unwrap();
    features[0] & RECOVER != 0
}

fn mount_line(path: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let wanted = format!(" {} ", path.display());
    mounts
        .lines()
        .find(|line| line.contains(&wanted))
        .unwrap()
        .to_owned()
}

/// Whether a process waits for a lock on the file.
fn has_lock_waiter(file: &Path) -> bool {
    let inode = format!(":{} ", fs::metadata(file).unwrap().ino());
    let locks = fs::read_to_string("/proc/locks").unwrap();
    locks
        .lines()
        .any(|lock| lock.contains("->") && lock.contains(&inode))
}

#[tokio::test]
async fn block_volume_waits_for_a_mkfs_of_another_node_and_keeps_its_filesystem() {
    if !privilege::is_there() {
        return;
    }
    let mut env = TestEnv::start(Choice::Loop).await;
    let volume = env
        .attached("a", 64 * MIB, mk_block(Mode::MultiNodeMultiWriter))
        .await;
    let disk = env.server.disk(&volume.id);
    for step in ["stage", "publish"] {
        // The state during another node's mkfs: the lock, the mark, and a partial filesystem.
        let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
        file.lock().unwrap();
        let mark = disk.with_file_name("formatting");
        fs::write(&mark, "").unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"half a filesystem", 1 << 20).unwrap();

        let (mut node, mut other) = (env.node.clone(), env.node.clone());
        let (stage, publish) = (
            env.mk_stage(&volume, &env.staging(&volume)),
            env.mk_publish(&volume, "t"),
        );
        let mut calls = JoinSet::new();
        let call = calls.spawn(async move {
            match step {
                "stage" => code(node.node_stage_volume(stage).await),
                _ => code(other.node_publish_volume(publish).await),
            }
        });
        while !call.is_finished() && !has_lock_waiter(&disk) {
            tokio::task::yield_now().await;
        }
        assert!(!call.is_finished(), "{step}: does not wait for the lock");
        let made = verdict::command("mkfs.ext4")
            .arg("-q")
            .arg("-F")
            .arg(&disk)
            .status();
        assert!(made.unwrap().success());
        std::os::unix::fs::FileExt::write_all_at(&file, b"precious", 0x478).unwrap();
        fs::remove_file(&mark).unwrap();
        drop(file);
        let called = calls.join_next().await.unwrap().unwrap();
        assert_eq!(called, Ok(()), "{step}");
        let mut label = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&fs::File::open(&disk).unwrap(), &mut label, 0x478)
            .unwrap();
        assert_eq!(&label, b"precious", "{step}: the filesystem was wiped");
    }
    env.unpublish(&volume, "t").await.unwrap();
    env.unstage(&volume).await.unwrap();
    env.detach(&volume).await;
    env.end().await;
}
