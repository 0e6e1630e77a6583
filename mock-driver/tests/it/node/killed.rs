//! Processes that are killed at any moment: the next start undoes what they left, and no call answers OK for a mount that
//! stays.

use std::process::Command;

use rustix::process::Signal;
use verdict::Requirement::Fuse;

use super::*;
use crate::program::{Program, command};
use crate::server::{DEADLINE, published};

/// A machine's directories, and the drivers that run on it one after the other.
pub(super) struct Machine {
    /// Where the drivers run, if not in the namespace of the tests. Dropped first.
    pub(super) namespace: Option<Namespace>,
    directory: tempfile::TempDir,
    devices: Choice,
    keeps_state: bool,
    /// Whether all mounted volumes have device faults.
    device_faults: bool,
}

/// A mount namespace of its own. Its processes, mounts and loop devices end with it. A watchdog ends them after a time, also if the
/// tests are killed: a FUSE filesystem without its server, and a process that waits for it, are gone then.
pub(super) struct Namespace {
    watchdog: std::process::Child,
}

/// A running driver.
pub(super) struct Running {
    pub(super) program: Program,
    pub(super) calls: Calls,
}

/// Calls of a CO.
#[derive(Clone)]
pub(super) struct Calls {
    pub(super) controller: ControllerClient<Channel>,
    pub(super) node: NodeClient<Channel>,
    /// The latest request for a target of an attached volume.
    pub(super) published: Option<v1::NodePublishVolumeRequest>,
}

// === impl Machine ===

impl Machine {
    pub(super) fn new(devices: Choice, keeps_state: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["tmp", "staging", "targets"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self {
            directory,
            devices,
            keeps_state,
            device_faults: false,
            namespace: None,
        }
    }

    /// In a mount namespace of its own.
    pub(super) fn apart(keeps_state: bool) -> Self {
        let machine = Self::new(Choice::Loop, keeps_state);
        Self {
            namespace: Some(Namespace::new(machine.directory.path())),
            ..machine
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn command(&self, socket: &str) -> Command {
        let mut command = command(&self.path(socket));
        if let Some(namespace) = &self.namespace {
            command = namespace.command(&command);
        }
        command.env("TMPDIR", self.path("tmp")).args([
            format!("--node-id={HERE}"),
            format!("--devices={}", self.devices.settle().unwrap().name()),
            "--shutdown-grace=500ms".to_owned(),
            "--seed=7".to_owned(),
        ]);
        if self.device_faults {
            command.arg("--device-faults");
        }
        if self.keeps_state {
            command.arg(format!("--state-dir={}", self.path("state").display()));
        }
        command
    }

    pub(super) async fn start(&self, socket: &str) -> Running {
        self.start_with(self.command(socket), socket).await
    }

    pub(super) async fn start_with(&self, command: Command, socket: &str) -> Running {
        let program = Program::run(command, &self.path(socket)).await;
        let mut calls = Calls {
            controller: program.controller().await,
            node: NodeClient::new(program.channel().await),
            published: None,
        };
        // A response means that the start is complete.
        let request = v1::NodeGetInfoRequest {};
        calls.node.node_get_info(request).await.unwrap();
        Running { program, calls }
    }

    /// What is on the machine besides the state directory: mounts, loop devices, and files.
    pub(super) fn leftovers(&self) -> Vec<String> {
        let under = text(self.directory.path());
        let of = self
            .namespace
            .as_ref()
            .map(|namespace| namespace.watchdog.id().to_string());
        let of = of.unwrap_or_else(|| "self".to_owned());
        let mounts = fs::read_to_string(format!("/proc/{of}/mounts")).unwrap();
        let mut all: Vec<String> = mounts
            .lines()
            .filter(|line| line.contains(&under))
            .map(str::to_owned)
            .collect();
        let devices = names_in(Path::new("/sys/block")).into_iter();
        all.extend(devices.filter_map(|device| {
            // Absent for a device without a file.
            let file = fs::read_to_string(format!("/sys/block/{device}/loop/backing_file")).ok()?;
            file.contains(&under).then(|| format!("{device}: {file}"))
        }));
        for folder in ["tmp", "targets"] {
            let entries = fs::read_dir(self.path(folder)).unwrap();
            all.extend(entries.map(|entry| text(&entry.unwrap().path())));
        }
        all
    }
}

// === impl Namespace ===

impl Namespace {
    /// Waits for the end of its input, or for a time. Then it ends all other processes of its namespace, and detaches the loop devices
    /// with files in the directory.
    const WATCHDOG: &str = r#"
        timeout 120 cat
        own=$(readlink /proc/self/ns/mnt)
        for process in /proc/[0-9]*; do
            id=${process#/proc/}
            if [ "$id" != $$ ] && [ "$(readlink $process/ns/mnt)" = "$own" ]; then kill -9 "$id"; fi
        done
        for device in /sys/block/loop*; do
            case $(cat $device/loop/backing_file) in
                "$1"/*) umount --all-targets --lazy "/dev/${device##*/}"; losetup --detach "/dev/${device##*/}" ;;
            esac
        done"#;

    pub(super) fn new(directory: &Path) -> Self {
        let mut unshare = verdict::command("unshare");
        unshare.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            Self::WATCHDOG,
            "watchdog",
        ]);
        unshare.arg(directory).stdin(std::process::Stdio::piped());
        let quiet = unshare
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let namespace = Self {
            watchdog: quiet.spawn().unwrap(),
        };
        while namespace.id() == fs::read_link("/proc/self/ns/mnt").ok() {
            thread::yield_now();
        }
        namespace
    }

    fn id(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/ns/mnt", self.watchdog.id())).ok()
    }

    /// A command line in the namespace.
    pub(super) fn command(&self, inner: &Command) -> Command {
        let mut command = verdict::command("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.watchdog.id()));
        command.arg(inner.get_program()).args(inner.get_args());
        command.stdin(std::process::Stdio::null());
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        self.watchdog.wait().ok();
    }
}

// === impl Calls ===

impl Calls {
    /// Creates and attaches a volume, and uses it and an inline volume at targets.
    pub(super) async fn use_volume(
        &mut self,
        machine: &Machine,
        name: &str,
        capability: v1::VolumeCapability,
    ) -> Result<(), tonic::Status> {
        let request = v1::CreateVolumeRequest {
            capacity_range: Some(v1::CapacityRange {
                required_bytes: 64 * MIB,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![capability.clone()],
            ..mk_create(name)
        };
        let created = self.controller.create_volume(request).await?.into_inner();
        let volume = created.volume.unwrap().volume_id;
        let request = v1::ControllerPublishVolumeRequest {
            volume_capability: Some(capability.clone()),
            ..mk_publish(&volume, HERE)
        };
        let attached = self.controller.controller_publish_volume(request).await?;
        let staging = machine.path("staging").join(&volume);
        fs::create_dir_all(&staging).unwrap();
        let publish_context = attached.into_inner().publish_context;
        let request = v1::NodeStageVolumeRequest {
            volume_id: volume.clone(),
            publish_context: publish_context.clone(),
            staging_target_path: text(&staging),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        };
        self.node.node_stage_volume(request).await?;
        let request = v1::NodePublishVolumeRequest {
            volume_id: volume.clone(),
            publish_context,
            staging_target_path: text(&staging),
            target_path: text(&machine.path("targets").join(&volume)),
            volume_capability: Some(capability),
            ..Default::default()
        };
        self.published = Some(request.clone());
        self.node.node_publish_volume(request).await?;
        let request = v1::NodePublishVolumeRequest {
            volume_id: format!("inline-{name}"),
            target_path: text(&machine.path("targets").join(format!("inline-{name}"))),
            volume_capability: Some(mount(Mode::SingleNodeWriter)),
            volume_context: mk_map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Mi")]),
            ..Default::default()
        };
        self.node.node_publish_volume(request).await?;
        let request = v1::CreateSnapshotRequest {
            source_volume_id: volume,
            name: format!("of-{name}"),
            ..Default::default()
        };
        self.controller.create_snapshot(request).await.map(drop)
    }

    pub(super) async fn unpublish(&mut self, machine: &Machine, volume: &str) -> Result<(), String> {
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            target_path: text(&machine.path("targets").join(volume)),
        };
        said(self.node.node_unpublish_volume(request).await)
    }

    async fn unstage(&mut self, machine: &Machine, volume: &str) -> Result<(), String> {
        let request = v1::NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: text(&machine.path("staging").join(volume)),
        };
        said(self.node.node_unstage_volume(request).await)
    }

    /// Undoes all that earlier processes did for volumes, as a CO does.
    pub(super) async fn undo_all(&mut self, machine: &Machine, case: &str) {
        for volume in names_in(&machine.path("targets")) {
            assert_eq!(self.unpublish(machine, &volume).await, Ok(()), "{case}: {volume}");
        }
        for volume in names_in(&machine.path("staging")) {
            assert_eq!(self.unstage(machine, &volume).await, Ok(()), "{case}: {volume}");
        }
        for (volume, nodes) in published(&mut self.controller).await {
            if !nodes.is_empty() {
                let detach = mk_unpublish(&volume, HERE);
                self.controller.controller_unpublish_volume(detach).await.unwrap();
            }
        }
    }
}

// === impl Running ===

impl Running {
    pub(super) async fn kill(&mut self) {
        self.program.signal(Signal::KILL);
        self.program.ended().await;
    }

    pub(super) async fn end(mut self) {
        self.program.signal(Signal::TERM);
        assert!(self.program.ended().await.success());
    }
}

fn said<T>(response: Result<T, tonic::Status>) -> Result<(), String> {
    response.map(drop).map_err(|status| status.to_string())
}

pub(super) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// The kernel frees a loop device when its last descriptor is closed, for example by udev or a mkfs that outlives its parent.
pub(super) async fn assert_clean(machine: &Machine, case: &str) {
    let clean = async {
        while !machine.leftovers().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let is_clean = tokio::time::timeout(DEADLINE, clean).await.is_ok();
    assert!(is_clean, "{case}: {:#?}", machine.leftovers());
}

#[tokio::test]
async fn next_start_undoes_what_a_killed_driver_without_state_left() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let machine = Machine::new(devices, false);
            let mut first = machine.start("first.sock").await;
            first.calls.use_volume(&machine, "a", capability).await.unwrap();
            first.kill().await;
            let volumes = names_in(&machine.path("targets"));
            assert_eq!(volumes.len(), 2, "{devices:?}");

            let mut second = machine.start("second.sock").await;
            assert!(!machine.path("first.sock").exists(), "{devices:?}");
            for volume in &volumes {
                assert_eq!(
                    second.calls.unpublish(&machine, volume).await,
                    Ok(()),
                    "{devices:?}"
                );
                assert_eq!(
                    second.calls.unstage(&machine, volume).await,
                    Ok(()),
                    "{devices:?}"
                );
            }
            second.end().await;
            assert_clean(&machine, &format!("{devices:?}")).await;
        }
    }
}

#[tokio::test]
async fn start_undoes_nothing_of_a_running_driver() {
    for devices in kinds() {
        let machine = Machine::new(devices, false);
        let mut first = machine.start("first.sock").await;
        let capability = mount(Mode::SingleNodeWriter);
        first.calls.use_volume(&machine, "a", capability).await.unwrap();
        let before = machine.leftovers();
        machine.start("second.sock").await.end().await;
        assert_eq!(machine.leftovers(), before, "{devices:?}");
        first.calls.undo_all(&machine, "").await;
        first.end().await;
        assert_clean(&machine, &format!("{devices:?}")).await;
    }
}

#[tokio::test]
async fn clean_undoes_what_a_killed_driver_left_and_says_so() {
    for devices in kinds() {
        let machine = Machine::new(devices, false);
        let mut first = machine.start("first.sock").await;
        let capability = mount(Mode::SingleNodeWriter);
        first.calls.use_volume(&machine, "a", capability).await.unwrap();
        first.kill().await;
        let clean = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_csi-mock-driver"));
            command.arg("clean").env("TMPDIR", machine.path("tmp"));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let said = clean();
        assert!(said.contains("csi-mock-driver-"), "{devices:?}: {said}");
        assert_clean(&machine, &format!("{devices:?}")).await;
        assert_eq!(clean(), "nothing to clean\n");
    }
}

/// Number of kills of the test below with and without state; `CSI_MOCK_KILLS` changes it.
const KILLS: u32 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_is_as_before_after_kills_at_random_moments() {
    let kills = std::env::var_os("CSI_MOCK_KILLS");
    let kills = kills.map_or(KILLS, |count| count.to_str().unwrap().parse().unwrap());
    for keeps_state in [false, true] {
        let mut machines: Vec<_> = kinds()
            .into_iter()
            .map(|kind| Machine::new(kind, keeps_state))
            .collect();
        if verdict::is_met(Fuse) {
            let machine = Machine::apart(keeps_state);
            machines.push(Machine {
                device_faults: true,
                ..machine
            });
        }
        for mut machine in machines {
            for round in 0..kills {
                if machine.namespace.take().is_some() {
                    // Each has its own time until the watchdog.
                    machine.namespace = Some(Namespace::new(machine.directory.path()));
                }
                let Machine {
                    devices,
                    device_faults,
                    ..
                } = machine;
                let case = format!(
                    "{devices:?}, device faults: {device_faults}, state: {keeps_state}, round {round}"
                );
                let mut running = machine.start("csi.sock").await;
                let pause = Duration::from_micros(fastrand::u64(0..400_000));
                let signals = fastrand::usize(0..4);
                let mut calls = running.calls.clone();
                let working = async {
                    for number in 0.. {
                        let capability = match number % 2 {
                            0 => mount(Mode::SingleNodeWriter),
                            _ => mk_block(Mode::SingleNodeWriter),
                        };
                        let name = format!("{round}-{number}");
                        if calls.use_volume(&machine, &name, capability).await.is_err() {
                            return;
                        }
                    }
                };
                let killing = async {
                    tokio::time::sleep(pause).await;
                    if signals == 0 {
                        return running.kill().await;
                    }
                    for _ in 0..signals {
                        running.program.signal(Signal::TERM);
                        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..50_000))).await;
                    }
                    running.program.ended().await;
                };
                tokio::join!(working, killing);
                let mut next = machine.start("csi.sock").await;
                next.calls.undo_all(&machine, &case).await;
                next.end().await;
                assert_clean(&machine, &case).await;
                fs::remove_dir_all(machine.path("staging")).unwrap();
                fs::create_dir(machine.path("staging")).unwrap();
            }
        }
    }
}
