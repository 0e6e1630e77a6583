//! Volumes that are written into a pod.

use super::*;

fn mk_inline(site: &Site, target: &str, size: &str) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_id: format!("csi-{target}"),
        target_path: text(&site.target(target)),
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
async fn inline_volume_comes_and_goes_with_its_target() {
    for devices in kinds() {
        let mut site = Site::start(devices).await;
        let request = mk_inline(&site, "t", "64Mi");
        let volume = volume_of(&request);
        for _ in 0..2 {
            assert_eq!(site.publish_as(request.clone()).await, Ok(()));
        }
        let target = site.target("t");
        fs::write(target.join("file"), "text").unwrap();
        let usage = site.stats(&volume, &target).await.unwrap().usage;
        assert!(
            usage[0].total > 40 * MIB && usage[0].total <= 64 * MIB,
            "{usage:?}"
        );
        for _ in 0..2 {
            assert_eq!(site.unpublish(&volume, "t").await, Ok(()));
        }
        assert!(!target.exists());
        let ephemeral = site.server.media().join("ephemeral");
        assert_eq!(fs::read_dir(ephemeral).unwrap().count(), 0, "its bytes are gone");

        assert_eq!(site.publish_as(request).await, Ok(()), "made anew");
        assert!(!target.join("file").exists(), "and blank");
        site.end().await;
    }
}

#[tokio::test]
async fn inline_volume_outlives_a_reboot_and_goes_with_its_target_also_if_its_pod_does_not_come_back() {
    if !privilege::is_there() {
        return;
    }
    for comes_back in [true, false] {
        let mut site = Site::start_with(Choice::Loop, keep).await;
        let pod = site.target("pod");
        fs::create_dir_all(&pod).unwrap();
        let request = mk_inline(&site, "pod/t", "64Mi");
        let volume = volume_of(&request);
        assert_eq!(site.publish_as(request.clone()).await, Ok(()));
        let target = site.target("pod/t");
        fs::write(target.join("file"), "text").unwrap();
        let stages = fs::read_dir(site.server.media().join("staging").join(HERE)).unwrap();
        let stage = stages.map(|entry| entry.unwrap().path()).next().unwrap();
        let mut site = site
            .again(Choice::Loop, |_| {
                for path in [&target, &stage] {
                    unmount(path);
                }
            })
            .await;
        if comes_back {
            // Kubelet has not made the pod's directory yet.
            fs::remove_dir_all(&pod).unwrap();
            assert_ne!(site.publish_as(request.clone()).await, Ok(()));
            fs::create_dir_all(&pod).unwrap();
            assert_eq!(site.publish_as(request.clone()).await, Ok(()));
            assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "text");
        }
        assert_eq!(site.unpublish(&volume, "pod/t").await, Ok(()));
        let ephemeral = site.server.media().join("ephemeral");
        assert_eq!(
            fs::read_dir(ephemeral).unwrap().count(),
            0,
            "its bytes are gone, comes_back={comes_back}"
        );
        nothing_is_left(&site.server.path(""));
    }
}

#[tokio::test]
async fn inline_volume_of_a_failed_call_is_gone() {
    for devices in kinds() {
        let mut site = Site::start(devices).await;
        fs::create_dir(site.target("t")).unwrap();
        fs::write(site.target("t").join("file"), "in the way").unwrap();
        let request = mk_inline(&site, "t", "64Mi");
        assert_eq!(
            site.publish_as(request.clone()).await,
            Err(Code::FailedPrecondition)
        );
        assert_eq!(
            fs::read_to_string(site.target("t").join("file")).unwrap(),
            "in the way"
        );
        fs::remove_dir_all(site.target("t")).unwrap();
        let late = v1::NodePublishVolumeRequest {
            volume_capability: Some(mk_mount("no-such-type", Mode::SingleNodeWriter)),
            ..request.clone()
        };
        assert_eq!(
            site.publish_as(late).await,
            Err(Code::FailedPrecondition),
            "when it has been made"
        );
        assert_eq!(site.unpublish(&volume_of(&request), "t").await, Ok(()));
        let ephemeral = site.server.media().join("ephemeral");
        assert_eq!(fs::read_dir(ephemeral).unwrap().count(), 0, "{devices:?}");
        site.end().await;
    }
}

#[tokio::test]
async fn files_of_pods_volumes_that_are_on_no_record_are_removed_at_the_start() {
    for devices in kinds() {
        let with_media = |directory: &Path, settings: &mut csi_mock_driver::driver::Settings| {
            settings.media_dir = Some(directory.join("media"));
        };
        let mut site = Site::start_with(devices, with_media).await;
        let request = mk_inline(&site, "t", "64Mi");
        assert_eq!(site.publish_as(request.clone()).await, Ok(()));
        // What a kill leaves: the files of this node's volumes, beside those of other nodes and of earlier versions.
        let ephemeral = site.server.media().join("ephemeral");
        let note = fs::read_to_string(ephemeral.join(&request.volume_id).join("node.json")).unwrap();
        for (name, note) in [
            ("csi-left", Some(note.replace(&request.volume_id, "csi-left"))),
            (
                "csi-elsewhere",
                Some(
                    note.replace(&request.volume_id, "csi-elsewhere")
                        .replace(HERE, "node-1"),
                ),
            ),
            ("csi-used", Some(note.replace(&request.volume_id, "csi-used"))),
            ("csi-old", None),
        ] {
            let place = ephemeral.join(name);
            fs::create_dir(&place).unwrap();
            fs::File::create(place.join("disk"))
                .unwrap()
                .set_len(1 << 20)
                .unwrap();
            if let Some(note) = note {
                fs::write(place.join("node.json"), note).unwrap();
            }
        }
        let used = (devices == Choice::Loop).then(|| LoopDevice::of(&ephemeral.join("csi-used/disk")));
        let site = site.again_with(devices, |_| {}, with_media).await;
        let mut left: Vec<_> = fs::read_dir(&ephemeral)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort_unstable();
        let mut expected = vec!["csi-elsewhere", "csi-old"];
        expected.extend(used.is_some().then_some("csi-used"));
        assert_eq!(left, expected, "{devices:?}");
        drop(used);
        let site = site.again_with(devices, |_| {}, with_media).await;
        assert!(!ephemeral.join("csi-used").exists(), "not in use any more");
        site.server.stop().await;
    }
}

/// A loop device that another program made.
struct LoopDevice(String);

// === impl LoopDevice ===

impl LoopDevice {
    fn of(file: &Path) -> Self {
        let output = std::process::Command::new("losetup")
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
        let detached = std::process::Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
        assert!(detached.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[tokio::test]
async fn driver_that_does_not_stage_brings_volumes_to_targets_in_one_step() {
    for devices in kinds() {
        let mut site = Site::start_with(devices, |_, settings| {
            settings.capabilities = "-NODE_STAGE_UNSTAGE_VOLUME".parse().unwrap();
        })
        .await;
        let volume = site
            .attached("a", 64 * MIB, mount(Mode::SingleNodeMultiWriter))
            .await;
        for target in ["t1", "t2", "t1"] {
            let request = v1::NodePublishVolumeRequest {
                staging_target_path: String::new(),
                ..site.mk_publish(&volume, target)
            };
            assert_eq!(site.publish_as(request).await, Ok(()), "{devices:?} {target}");
        }
        fs::write(site.target("t1").join("file"), "text").unwrap();
        assert_eq!(
            fs::read_to_string(site.target("t2").join("file")).unwrap(),
            "text"
        );
        for target in ["t1", "t2"] {
            site.unpublish(&volume, target).await.unwrap();
        }
        site.end().await;
    }
}
