//! CSI ephemeral (inline) volumes.

use super::*;

fn mk_inline(env: &TestEnv, target: &str, size: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_id: format!("csi-{target}"),
        target_path: text(&env.target(target)),
        volume_capability: Some(mount(Mode::SingleNodeWriter)),
        volume_context: mk_map(&[
            ("csi.storage.k8s.io/ephemeral", "true"),
            ("csi.storage.k8s.io/pod.name", target),
            ("size", size),
        ]),
        ..Default::default()
    }
}

fn volume_of(request: &v1::NodePublishVolumeRequest) -> Volume {
    Volume {
        id: request.volume_id.clone(),
        capability: request.volume_capability.clone().unwrap(),
        context: mk_map(&[]),
    }
}

#[tokio::test]
async fn inline_volume_is_created_and_deleted_with_its_target() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        let request = mk_inline(&env, "t", "64Mi");
        let volume = volume_of(&request);
        for _ in 0..2 {
            assert_eq!(env.publish_as(request.clone()).await, Ok(()));
        }
        let target = env.target("t");
        fs::write(target.join("file"), "text").unwrap();
        let usage = env.stats(&volume, &target).await.unwrap().usage;
        assert!(
            usage[0].total > 40 * MIB && usage[0].total <= 64 * MIB,
            "{usage:?}"
        );
        for _ in 0..2 {
            assert_eq!(env.unpublish(&volume, "t").await, Ok(()));
        }
        assert!(!target.exists());
        let ephemeral = env.server.media().join("ephemeral").join(HERE);
        assert_eq!(fs::read_dir(ephemeral).unwrap().count(), 0, "its file is deleted");

        assert_eq!(env.publish_as(request).await, Ok(()), "made anew");
        assert!(!target.join("file").exists(), "and blank");
        env.end().await;
    }
}

#[tokio::test]
async fn inline_volume_survives_reboot_and_is_deleted_with_its_target() {
    if !privilege::is_there() {
        return;
    }
    for comes_back in [true, false] {
        let mut env = TestEnv::start_with(Choice::Loop, keep).await;
        let pod = env.target("pod");
        fs::create_dir_all(&pod).unwrap();
        let request = mk_inline(&env, "pod/t", "64Mi");
        let volume = volume_of(&request);
        assert_eq!(env.publish_as(request.clone()).await, Ok(()));
        let target = env.target("pod/t");
        fs::write(target.join("file"), "text").unwrap();
        let stages = fs::read_dir(env.server.media().join("staging").join(HERE)).unwrap();
        let stage = stages.map(|entry| entry.unwrap().path()).next().unwrap();
        let mut env = env
            .again(Choice::Loop, |_| {
                for path in [&target, &stage] {
                    unmount(path);
                }
            })
            .await;
        if comes_back {
            // Kubelet has not created the pod's directory yet.
            fs::remove_dir_all(&pod).unwrap();
            assert_ne!(env.publish_as(request.clone()).await, Ok(()));
            fs::create_dir_all(&pod).unwrap();
            assert_eq!(env.publish_as(request.clone()).await, Ok(()));
            assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "text");
        }
        assert_eq!(env.unpublish(&volume, "pod/t").await, Ok(()));
        let ephemeral = env.server.media().join("ephemeral").join(HERE);
        assert_eq!(
            fs::read_dir(ephemeral).unwrap().count(),
            0,
            "its file is deleted, comes_back={comes_back}"
        );
        assert_nothing_left(&env.server.path(""));
    }
}

#[tokio::test]
async fn inline_volume_of_a_failed_call_is_deleted() {
    for devices in kinds() {
        let mut env = TestEnv::start(devices).await;
        fs::create_dir(env.target("t")).unwrap();
        fs::write(env.target("t").join("file"), "path in use").unwrap();
        let request = mk_inline(&env, "t", "64Mi");
        assert_eq!(
            env.publish_as(request.clone()).await,
            Err(Code::FailedPrecondition)
        );
        assert_eq!(
            fs::read_to_string(env.target("t").join("file")).unwrap(),
            "path in use"
        );
        fs::remove_dir_all(env.target("t")).unwrap();
        let late = v1::NodePublishVolumeRequest {
            volume_capability: Some(mk_mount("no-such-type", Mode::SingleNodeWriter)),
            ..request.clone()
        };
        assert_eq!(
            env.publish_as(late).await,
            Err(Code::FailedPrecondition),
            "after its creation"
        );
        assert_eq!(env.unpublish(&volume_of(&request), "t").await, Ok(()));
        let ephemeral = env.server.media().join("ephemeral").join(HERE);
        assert_eq!(fs::read_dir(ephemeral).unwrap().count(), 0, "{devices:?}");
        env.end().await;
    }
}

#[tokio::test]
async fn inline_volume_files_without_a_record_are_removed_at_the_start() {
    for devices in kinds() {
        let with_media = |directory: &Path, settings: &mut csi_mock_driver::driver::Settings| {
            settings.media_dir = Some(directory.join("media"));
        };
        let mut env = TestEnv::start_with(devices, with_media).await;
        let request = mk_inline(&env, "t", "64Mi");
        assert_eq!(env.publish_as(request.clone()).await, Ok(()));
        // The state after a kill: files of this node's volumes, and of other nodes.
        let ephemeral = env.server.media().join("ephemeral");
        let left = [
            format!("{HERE}/csi-left"),
            format!("{HERE}/csi-used"),
            // An interrupted removal.
            format!("{HERE}/.old-csi-mine"),
            format!("{HERE}/.photos"),
            "node-1/csi-elsewhere".to_owned(),
            "node-1/.old-csi-theirs".to_owned(),
        ];
        for name in &left {
            let directory = ephemeral.join(name);
            fs::create_dir_all(&directory).unwrap();
            fs::File::create(directory.join("disk"))
                .unwrap()
                .set_len(1 << 20)
                .unwrap();
        }
        let disk = ephemeral.join(&left[1]).join("disk");
        let used = (devices == Choice::Loop).then(|| LoopDevice::of(&disk));
        let env = env.again_with(devices, |_| {}, with_media).await;
        let own = ephemeral.join(HERE).join(&request.volume_id);
        assert!(!own.exists(), "{devices:?}");
        for (name, is_left) in left.iter().zip([false, used.is_some(), false, true, true, true]) {
            assert_eq!(ephemeral.join(name).exists(), is_left, "{devices:?} {name}");
        }
        drop(used);
        let env = env.again_with(devices, |_| {}, with_media).await;
        assert!(!disk.exists(), "not in use any more");
        env.server.stop().await;
    }
}

/// A loop device of another program.
struct LoopDevice(String);

// === impl LoopDevice ===

impl LoopDevice {
    fn of(file: &Path) -> Self {
        let output = verdict::command("losetup")
            .args(["--find", "--show"])
            .arg(file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        Self(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = verdict::command("losetup").arg("--detach").arg(&self.0).status();
        assert!(detached.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[tokio::test]
async fn driver_without_staging_publishes_in_one_step() {
    for devices in kinds() {
        let mut env = TestEnv::start_with(devices, |_, settings| {
            settings.capabilities = "-NODE_STAGE_UNSTAGE_VOLUME".parse().unwrap();
        })
        .await;
        let volume = env
            .attached("a", 64 * MIB, mount(Mode::SingleNodeMultiWriter))
            .await;
        for target in ["t1", "t2", "t1"] {
            let request = v1::NodePublishVolumeRequest {
                staging_target_path: String::new(),
                ..env.mk_publish(&volume, target)
            };
            assert_eq!(env.publish_as(request).await, Ok(()), "{devices:?} {target}");
        }
        fs::write(env.target("t1").join("file"), "text").unwrap();
        assert_eq!(fs::read_to_string(env.target("t2").join("file")).unwrap(), "text");
        for target in ["t1", "t2"] {
            env.unpublish(&volume, target).await.unwrap();
        }
        env.end().await;
    }
}
