//! A full disk below the node's files: each file that a call creates may be the one that does not fit.

use csi_mock_driver::driver::Settings;

use super::*;
use crate::server::published;

/// A tmpfs with a limited number of files, unmounted when dropped.
pub(super) struct LimitedDisk(PathBuf);

// === impl LimitedDisk ===

impl LimitedDisk {
    pub(super) fn mount(path: PathBuf) -> Self {
        let disk = Self(path);
        let args = ["-t", "tmpfs", "-o", "size=256m", "csi-mock-driver-test"];
        assert!(disk.run("mount", &args));
        disk
    }

    /// Number of files.
    fn used(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.0).unwrap();
        stat.f_files - stat.f_ffree
    }

    /// Leaves room for so many more files.
    pub(super) fn leave(&self, files: u64) {
        assert!(self.try_to_leave(files), "{files} files");
    }

    /// Fails if files are created meanwhile.
    pub(super) fn try_to_leave(&self, files: u64) -> bool {
        let limit = self.used() + files;
        self.run("mount", &["-o", &format!("remount,nr_inodes={limit}")])
    }

    fn run(&self, program: &str, args: &[&str]) -> bool {
        let mut command = verdict::command(program);
        let output = command.args(args).arg(&self.0).output();
        output.unwrap().status.success()
    }
}

impl Drop for LimitedDisk {
    fn drop(&mut self) {
        assert!(self.run("umount", &["--lazy"]));
    }
}

/// Attaches, stages and publishes a volume and an inline volume, and takes a snapshot. Repeats what has been done.
async fn use_all(env: &mut TestEnv, volume: &Volume) -> Result<(), Code> {
    let request = v1::ControllerPublishVolumeRequest {
        volume_capability: Some(volume.capability.clone()),
        ..mk_publish(&volume.id, HERE)
    };
    let attached = env.controller.controller_publish_volume(request).await;
    let context = match attached {
        Ok(attached) => attached.into_inner().publish_context,
        Err(status) => {
            // There, RESOURCE_EXHAUSTED means that the node has as many volumes as it can have.
            assert_eq!(status.code(), Code::Internal, "{status}");
            let published = published(&mut env.controller).await;
            assert!(
                published.iter().all(|(_, nodes)| nodes.is_empty()),
                "{published:?}"
            );
            return Err(Code::ResourceExhausted);
        }
    };
    let volume = Volume {
        context,
        ..volume.clone()
    };
    env.stage(&volume).await?;
    env.publish(&volume, "t").await?;
    let inline = v1::NodePublishVolumeRequest {
        volume_id: "csi-1".to_owned(),
        volume_context: mk_map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Mi")]),
        volume_capability: Some(mount(Mode::SingleNodeWriter)),
        ..env.mk_publish(&volume, "inline")
    };
    env.publish_as(inline).await?;
    let request = v1::CreateSnapshotRequest {
        source_volume_id: volume.id.clone(),
        name: "s".to_owned(),
        ..Default::default()
    };
    code(env.controller.create_snapshot(request).await)
}

#[tokio::test]
async fn call_without_room_for_a_file_says_so_and_succeeds_once_there_is_room() {
    verdict::require!(LoopDevices);
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let directory = tempfile::tempdir().unwrap();
            let disk = LimitedDisk::mount(directory.path().to_owned());
            let media = disk.0.join("media");
            let set = |_: &Path, settings: &mut Settings| settings.media_dir = Some(media.clone());
            let mut env = TestEnv::start_with(devices, set).await;
            let volume = env.create("a", 64 * MIB, capability).await;
            let (mut failures, mut room, mut before) = (0, 0, disk.used());
            disk.leave(room);
            while let Err(code) = use_all(&mut env, &volume).await {
                assert_eq!(code, Code::ResourceExhausted, "{devices:?}, failure {failures}");
                failures += 1;
                // The next file is that which does not fit, also if a failed call has removed what it made.
                let used = disk.used();
                room = if used == before { room + 1 } else { 1 };
                before = used;
                disk.leave(room);
                assert!(failures < 200, "{devices:?}: does not end");
            }
            assert!(failures > 5, "{devices:?}: {failures}");
            let inline = Volume {
                id: "csi-1".to_owned(),
                ..volume.clone()
            };
            env.unpublish(&inline, "inline").await.unwrap();
            env.unpublish(&volume, "t").await.unwrap();
            env.unstage(&volume).await.unwrap();
            env.detach(&volume).await;
            let directory = env.server.stop().await;
            assert_nothing_left(directory.path());
            assert_nothing_left(&media);
            for folder in ["volumes", "snapshots", "ephemeral/node-0", "devices/node-0"] {
                let entries = fs::read_dir(media.join(folder)).unwrap();
                let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
                let expected = usize::from(matches!(folder, "volumes" | "snapshots"));
                assert_eq!(names.len(), expected, "{devices:?} {folder}: {names:?}");
            }
        }
    }
}
