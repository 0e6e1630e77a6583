//! The Node service, by cells of the specification's error tables. Each test runs with emulated devices, and with loop
//! devices if privileged.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use csi_mock_driver::driver::Driver;
use csi_mock_driver::node::device::Choice;
use csi_mock_driver::store::{Database, OpenError};
use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::volume_capability::AccessType;
use csi_proto::v1::volume_capability::access_mode::Mode;
use tonic::Code;
use tonic::transport::Channel;
use verdict::Requirement::{LoopDevices, Program};

use crate::privilege;
use crate::server::{Server, mk_block, mk_create, mk_map, mk_mount, mk_publish, mk_unpublish};

mod cells;
mod data;
mod device_faults;
mod exit;
mod expand;
mod foreign;
mod full;
mod in_use;
mod inline;
mod killed;
mod reading;
mod registration;
mod restart;
mod split;
mod topology;
mod unattached;
mod unstaged;

/// The node of the driver under test.
const HERE: &str = "node-0";

const MIB: i64 = 1 << 20;

/// Changes or removes the node's records while no driver runs, to simulate a crash.
fn edit_records(directory: &Path, mut edit: impl FnMut(&str) -> Option<String>) {
    let state = directory.join("state");
    // A child process that another test is starting has a copy of the lock until its exec.
    let database = loop {
        match Database::open(&state) {
            Err(OpenError::InUse { .. }) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    let dump = database.dump().unwrap();
    let records = dump["node_records"].as_object().unwrap();
    assert!(!records.is_empty());
    for (path, record) in records {
        let row = edit(&record.to_string()).map(String::into_bytes);
        database.write([(("node_records", path.clone()), row)]);
    }
}

/// Number of records of a running driver's node.
fn count_records(driver: &Driver) -> usize {
    let dump = driver.store.database.as_ref().unwrap().dump().unwrap();
    dump["node_records"].as_object().map_or(0, serde_json::Map::len)
}

/// The progress of a finished operation, and of an unfinished one.
const DONE: &str = "\"progress\":\"done\"";
const DOING: &str = "\"progress\":\"doing\"";

/// A driver on a node, its clients, and a directory for paths.
struct TestEnv {
    server: Server,
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
}

/// A volume and its attachment.
#[derive(Clone)]
struct Volume {
    id: String,
    capability: v1::VolumeCapability,
    context: std::collections::HashMap<String, String>,
}

/// Configures a persistent state directory.
fn keep(directory: &Path, settings: &mut csi_mock_driver::driver::Settings) {
    settings.state_dir = Some(directory.join("state"));
}

/// Unmounts without the driver, like a reboot.
fn unmount(path: &Path) {
    rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).unwrap();
}

// === impl TestEnv ===

impl TestEnv {
    async fn start(devices: Choice) -> Self {
        Self::start_with(devices, |_, _| {}).await
    }

    async fn start_with(
        devices: Choice,
        change: impl FnOnce(&Path, &mut csi_mock_driver::driver::Settings),
    ) -> Self {
        let server = Server::start_with(|directory, settings| {
            settings.node_id = Some(HERE.to_owned());
            settings.node.devices = devices;
            change(directory, settings);
        })
        .await;
        Self::on(server).await
    }

    async fn on(server: Server) -> Self {
        for directory in ["staging", "targets"] {
            fs::create_dir_all(server.path(directory)).unwrap();
        }
        Self {
            controller: server.controller().await,
            node: server.node().await,
            server,
        }
    }

    /// A volume that is created and attached to this node.
    async fn attached(&mut self, name: &str, bytes: i64, capability: v1::VolumeCapability) -> Volume {
        let created = self.create(name, bytes, capability).await;
        self.attach(created, false).await
    }

    async fn create(&mut self, name: &str, bytes: i64, capability: v1::VolumeCapability) -> Volume {
        let request = v1::CreateVolumeRequest {
            capacity_range: Some(v1::CapacityRange {
                required_bytes: bytes,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![capability.clone()],
            ..mk_create(name)
        };
        let volume = self.controller.create_volume(request).await.unwrap().into_inner();
        Volume {
            id: volume.volume.unwrap().volume_id,
            capability,
            context: mk_map(&[]),
        }
    }

    async fn attach(&mut self, volume: Volume, readonly: bool) -> Volume {
        let request = v1::ControllerPublishVolumeRequest {
            volume_capability: Some(volume.capability.clone()),
            readonly,
            ..mk_publish(&volume.id, HERE)
        };
        let response = self.controller.controller_publish_volume(request).await.unwrap();
        Volume {
            context: response.into_inner().publish_context,
            ..volume
        }
    }

    async fn detach(&mut self, volume: &Volume) {
        self.controller
            .controller_unpublish_volume(mk_unpublish(&volume.id, HERE))
            .await
            .unwrap();
    }

    fn staging(&self, volume: &Volume) -> PathBuf {
        let path = self.server.path("staging").join(&volume.id);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn target(&self, name: &str) -> PathBuf {
        self.server.path("targets").join(name)
    }

    async fn stage(&mut self, volume: &Volume) -> Result<(), Code> {
        let path = self.staging(volume);
        self.stage_at(volume, &path).await
    }

    async fn stage_at(&mut self, volume: &Volume, path: &Path) -> Result<(), Code> {
        let request = self.mk_stage(volume, path);
        code(self.node.node_stage_volume(request).await)
    }

    fn mk_stage(&self, volume: &Volume, path: &Path) -> v1::NodeStageVolumeRequest {
        v1::NodeStageVolumeRequest {
            volume_id: volume.id.clone(),
            publish_context: volume.context.clone(),
            staging_target_path: text(path),
            volume_capability: Some(volume.capability.clone()),
            ..Default::default()
        }
    }

    async fn unstage(&mut self, volume: &Volume) -> Result<(), Code> {
        let request = v1::NodeUnstageVolumeRequest {
            volume_id: volume.id.clone(),
            staging_target_path: text(&self.staging(volume)),
        };
        code(self.node.node_unstage_volume(request).await)
    }

    fn mk_publish(&self, volume: &Volume, target: &str) -> v1::NodePublishVolumeRequest {
        v1::NodePublishVolumeRequest {
            volume_id: volume.id.clone(),
            publish_context: volume.context.clone(),
            staging_target_path: text(&self.staging(volume)),
            target_path: text(&self.target(target)),
            volume_capability: Some(volume.capability.clone()),
            ..Default::default()
        }
    }

    async fn publish(&mut self, volume: &Volume, target: &str) -> Result<(), Code> {
        let request = self.mk_publish(volume, target);
        self.publish_as(request).await
    }

    async fn publish_as(&mut self, request: v1::NodePublishVolumeRequest) -> Result<(), Code> {
        code(self.node.node_publish_volume(request).await)
    }

    async fn unpublish(&mut self, volume: &Volume, target: &str) -> Result<(), Code> {
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: volume.id.clone(),
            target_path: text(&self.target(target)),
        };
        code(self.node.node_unpublish_volume(request).await)
    }

    async fn stats(&mut self, volume: &Volume, path: &Path) -> Result<v1::NodeGetVolumeStatsResponse, Code> {
        let request = v1::NodeGetVolumeStatsRequest {
            volume_id: volume.id.clone(),
            volume_path: text(path),
            ..Default::default()
        };
        let response = self.node.node_get_volume_stats(request).await;
        response
            .map(tonic::Response::into_inner)
            .map_err(|status| status.code())
    }

    async fn health(&mut self, volume: &Volume, path: Option<&Path>) -> Result<Vec<String>, Code> {
        let request = v1::NodeGetVolumeHealthRequest {
            volume_id: volume.id.clone(),
            volume_publish_path: path.map(text).unwrap_or_default(),
            ..Default::default()
        };
        let response = self.node.node_get_volume_health(request).await;
        let health = response
            .map_err(|status| status.code())?
            .into_inner()
            .volume_health
            .unwrap();
        Ok(health
            .health_statuses
            .into_iter()
            .map(|entry| entry.reason)
            .collect())
    }

    /// Restarts the driver in the same directory.
    async fn again(self, devices: Choice, between: impl FnOnce(&Path)) -> Self {
        let keep = |directory: &Path, settings: &mut csi_mock_driver::driver::Settings| {
            settings.state_dir = Some(directory.join("state"));
        };
        self.again_with(devices, between, keep).await
    }

    async fn again_with(
        self,
        devices: Choice,
        between: impl FnOnce(&Path),
        change: impl FnOnce(&Path, &mut csi_mock_driver::driver::Settings),
    ) -> Self {
        let directory = self.server.stop().await;
        between(directory.path());
        let server = Server::start_in(directory, |directory, settings| {
            settings.node_id = Some(HERE.to_owned());
            settings.node.devices = devices;
            change(directory, settings);
        })
        .await;
        // A response means that the start is complete.
        server.identity().await.probe(v1::ProbeRequest {}).await.unwrap();
        Self {
            controller: server.controller().await,
            node: server.node().await,
            server,
        }
    }

    /// Stops the driver and verifies that it left nothing on the machine.
    async fn end(self) {
        let media = self.server.media();
        let directory = self.server.stop().await;
        assert_nothing_left(directory.path());
        assert_nothing_left(&media);
        assert!(!media.exists(), "the volume files are deleted");
        assert_eq!(
            fs::read_dir(directory.path().join("targets")).unwrap().count(),
            0,
            "targets are removed"
        );
    }
}

/// Asserts that there is no mount under the directory and no loop device backed by a file in it.
fn assert_nothing_left(directory: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let directory = directory.to_str().unwrap();
    let left: Vec<_> = mounts.lines().filter(|line| line.contains(directory)).collect();
    assert_eq!(left, Vec::<&str>::new(), "mounts are left");
    let devices = || -> Vec<_> {
        let entries = fs::read_dir("/sys/block").unwrap();
        let backing = entries.map(|entry| entry.unwrap().path().join("loop/backing_file"));
        let made_of =
            |backing: &PathBuf| fs::read_to_string(backing).is_ok_and(|file| file.starts_with(directory));
        backing.filter(made_of).collect()
    };
    // The kernel frees a device when its last descriptor is closed, and a child process that another test is starting has
    // copies of our descriptors until its exec.
    let freed = (0..1_000).any(|_| {
        devices().is_empty() || {
            thread::sleep(Duration::from_millis(10));
            false
        }
    });
    assert!(freed, "{:?} are left", devices());
}

/// The kinds of devices that are available here.
fn kinds() -> Vec<Choice> {
    let mut kinds = vec![Choice::Emulated];
    if verdict::is_met(LoopDevices) {
        kinds.push(Choice::Loop);
    }
    kinds
}

/// Whether the driver can make this filesystem; the kernel's needs programs.
fn can_make(fs_type: &str, devices: Choice) -> bool {
    devices == Choice::Emulated || fs_type != "xfs" || verdict::is_met(Program("mkfs.xfs"))
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn code<T>(response: Result<T, tonic::Status>) -> Result<(), Code> {
    response.map(drop).map_err(|status| {
        assert!(!status.message().is_empty(), "an error has a message");
        status.code()
    })
}

fn mount(mode: Mode) -> v1::VolumeCapability {
    mk_mount("ext4", mode)
}

fn with_flags(capability: v1::VolumeCapability, flags: &[&str]) -> v1::VolumeCapability {
    let mut capability = capability;
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
        mount.mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }
    capability
}
