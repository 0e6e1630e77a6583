//! Processes that are killed at any moment: the next start undoes what they left, and no call answers OK for a mount that
//! stays.

use std::process::Command;

use rustix::process::Signal;
use verdict::Requirement::Fuse;

use super::*;
use crate::program::{self, command};
use crate::server::{DEADLINE, published};

/// A machine's directories, and the drivers that run on it one after the other.
pub(super) struct Machine {
    /// Where the drivers run, if not in the namespace of the tests. Dropped first.
    pub(super) namespace: Option<Namespace>,
    directory: tempfile::TempDir,
    devices: Choice,
    keeps_state: bool,
    /// Whether the links to the devices are outside the driver's own directory.
    has_device_dir: bool,
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
    pub(super) program: program::Program,
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
            has_device_dir: false,
            device_faults: false,
            namespace: None,
        }
    }

    fn with_device_dir(mut self) -> Self {
        self.has_device_dir = true;
        fs::create_dir(self.path("links")).unwrap();
        self
    }

    /// In a mount namespace of its own.
    pub(super) fn apart(keeps_state: bool) -> Self {
        let machine = Self::new(Choice::Loop, keeps_state);
        Self {
            namespace: Some(Namespace::new(machine.directory.path())),
            ..machine
        }
    }

    /// All mounted volumes have device faults.
    fn with_device_faults(keeps_state: bool) -> Self {
        Self {
            device_faults: true,
            ..Self::apart(keeps_state)
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
        if self.has_device_dir {
            command.arg(format!("--device-dir={}", self.path("links").display()));
        }
        command
    }

    pub(super) async fn start(&self, socket: &str) -> Running {
        self.start_with(self.command(socket), socket).await
    }

    pub(super) async fn start_with(&self, command: Command, socket: &str) -> Running {
        let program = program::Program::run(command, &self.path(socket)).await;
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
            .filter(|line| line.contains(&under) && !line.starts_with("csi-mock-driver-test "))
            .map(str::to_owned)
            .collect();
        let devices = names_in(Path::new("/sys/block")).into_iter();
        all.extend(devices.filter_map(|device| {
            // Absent for a device without a file.
            let file = fs::read_to_string(format!("/sys/block/{device}/loop/backing_file")).ok()?;
            file.contains(&under).then(|| format!("{device}: {file}"))
        }));
        for folder in ["tmp", "targets", "links", "."] {
            let is_left =
                |path: &PathBuf| folder != "." || path.extension().is_some_and(|kind| kind == "sock");
            let entries = fs::read_dir(self.path(folder)).into_iter().flatten();
            let paths = entries.map(|entry| entry.unwrap().path()).filter(is_left);
            all.extend(paths.map(|path| text(&path)));
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
    /// Creates and attaches a volume; returns its id and the call that stages it.
    async fn attach(
        &mut self,
        machine: &Machine,
        name: &str,
        capability: v1::VolumeCapability,
    ) -> Result<(String, v1::NodeStageVolumeRequest), tonic::Status> {
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
        let stage = v1::NodeStageVolumeRequest {
            volume_id: volume.clone(),
            publish_context: attached.into_inner().publish_context,
            staging_target_path: text(&staging),
            volume_capability: Some(capability),
            ..Default::default()
        };
        Ok((volume, stage))
    }

    /// Creates and attaches a volume, and uses it and an inline volume at targets.
    pub(super) async fn use_volume(
        &mut self,
        machine: &Machine,
        name: &str,
        capability: v1::VolumeCapability,
    ) -> Result<(), tonic::Status> {
        let (volume, stage) = self.attach(machine, name, capability.clone()).await?;
        let (publish_context, staging) = (stage.publish_context.clone(), stage.staging_target_path.clone());
        self.node.node_stage_volume(stage).await?;
        let request = v1::NodePublishVolumeRequest {
            volume_id: volume.clone(),
            publish_context,
            staging_target_path: staging,
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

/// Containers have a `/tmp` of their own, and all loop devices in common.
#[tokio::test]
async fn unstage_without_record_keeps_the_devices_of_a_driver_in_another_container() {
    if !verdict::are_met(&[LoopDevices, Program("unshare")]) {
        return;
    }
    let machine = Machine::new(Choice::Loop, false);
    let container = |socket: &str| {
        let driver = machine.command(socket);
        let mut command = verdict::command("unshare");
        command
            .args([
                "--mount",
                "sh",
                "-c",
                "mount -t tmpfs tmpfs \"$TMPDIR\" && exec \"$@\"",
                "sh",
            ])
            .arg(driver.get_program())
            .args(driver.get_args())
            .envs(driver.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    };
    let mut first = machine.start_with(container("first.sock"), "first.sock").await;
    let mut second = machine.start_with(container("second.sock"), "second.sock").await;
    let (volume, stage) = first
        .calls
        .attach(&machine, "a", mk_block(Mode::SingleNodeWriter))
        .await
        .unwrap();
    for _ in 0..2 {
        assert_eq!(second.calls.unstage(&machine, &volume).await, Ok(()));
    }
    first.calls.node.node_stage_volume(stage).await.unwrap();
    first.calls.undo_all(&machine, "").await;
    first.end().await;
    second.end().await;
    assert_clean(&machine, "").await;
}

#[tokio::test]
async fn clean_undoes_what_a_killed_driver_left_and_says_so() {
    let machines = kinds().into_iter().flat_map(|devices| {
        let machine = || Machine::new(devices, false);
        [machine(), machine().with_device_dir()]
    });
    for machine in machines {
        let devices = machine.devices;
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
        if machine.has_device_dir {
            // The devices are now those of a running driver.
            let second = machine.start("second.sock").await;
            assert_eq!(clean(), "nothing to clean\n");
            second.end().await;
            assert_clean(&machine, &format!("{devices:?}")).await;
            let mut third = machine.start("third.sock").await;
            third
                .calls
                .use_volume(&machine, "a", mount(Mode::SingleNodeWriter))
                .await
                .unwrap();
            third.kill().await;
        }
        let said = clean();
        assert!(said.contains("csi-mock-driver-"), "{devices:?}: {said}");
        assert_clean(&machine, &format!("{devices:?}")).await;
        assert_eq!(clean(), "nothing to clean\n");
    }
}

/// The kernel keeps a loop device that is mounted.
#[tokio::test]
async fn next_start_undoes_what_was_mounted_from_a_detached_device() {
    for devices in kinds() {
        for capability in [mount(Mode::SingleNodeWriter), mk_block(Mode::SingleNodeWriter)] {
            let machine = Machine::new(devices, false);
            let mut first = machine.start("first.sock").await;
            first.calls.use_volume(&machine, "a", capability).await.unwrap();
            for (volume, nodes) in published(&mut first.calls.controller).await {
                for node in nodes {
                    let detach = mk_unpublish(&volume, &node);
                    let controller = &mut first.calls.controller;
                    controller.controller_unpublish_volume(detach).await.unwrap();
                }
            }
            first.kill().await;
            machine.start("second.sock").await.end().await;
            assert_clean(&machine, &format!("{devices:?}")).await;
        }
    }
}

/// Number of kills of the test below for each machine; `CSI_MOCK_KILLS` changes it.
const KILLS: u32 = 4;

/// The processes of a round: a driver, a proxy in front of it, and a replay.
struct Processes {
    driver: Running,
    others: [program::Program; 2],
}

// === impl Processes ===

impl Processes {
    async fn start(machine: &Machine) -> Self {
        let driver = machine.start("csi.sock").await;
        let path = |name: &str| machine.path(name).display().to_string();
        let line = r#"{"event":"begin","call":1,"method":"/csi.v1.Identity/Probe","start":"2026-01-01T00:00:00Z","request":{}}"#;
        fs::write(machine.path("journal"), format!("{line}\n")).unwrap();
        let run = async |words: &[String], socket: &str| {
            let driver = command(&machine.path(socket));
            let mut command = Command::new(driver.get_program());
            command.env("TMPDIR", machine.path("tmp"));
            let (before, after) = words.split_at(usize::from(words[0] == "replay"));
            command.args(before).args(driver.get_args()).args(after);
            program::Program::run(command, &machine.path(socket)).await
        };
        let others = [
            run(&[format!("--proxy-to={}", path("csi.sock"))], "proxy.sock").await,
            run(
                &["replay".to_owned(), format!("--journal={}", path("journal"))],
                "replay.sock",
            )
            .await,
        ];
        Self { driver, others }
    }

    /// Kills the driver after some signals, and the others at once.
    async fn kill(&mut self, signals: usize) {
        for other in &mut self.others {
            other.signal(Signal::KILL);
            other.ended().await;
        }
        for _ in 0..signals {
            self.driver.program.signal(Signal::TERM);
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..50_000))).await;
        }
        match signals {
            0 => self.driver.kill().await,
            _ => drop(self.driver.program.ended().await),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_is_as_before_after_kills_at_random_moments() {
    let kills = std::env::var_os("CSI_MOCK_KILLS");
    let kills = kills.map_or(KILLS, |count| count.to_str().unwrap().parse().unwrap());
    let machines = kinds().into_iter().flat_map(|devices| {
        [
            Machine::new(devices, false),
            Machine::new(devices, true),
            Machine::new(devices, false).with_device_dir(),
        ]
    });
    let with_faults = [false, true]
        .map(|keeps_state| verdict::is_met(Fuse).then(|| Machine::with_device_faults(keeps_state)));
    for mut machine in machines.chain(with_faults.into_iter().flatten()) {
        let devices = machine.devices;
        // The filesystem of the driver's files, which fills up before some kills.
        let disk = (verdict::is_met(LoopDevices) && machine.namespace.is_none()).then(|| {
            let path = machine.path(if machine.keeps_state { "state" } else { "tmp" });
            fs::create_dir_all(&path).unwrap();
            super::full::LimitedDisk::mount(path)
        });
        for round in 0..kills {
            if machine.namespace.take().is_some() {
                // Each has its own time until the watchdog.
                machine.namespace = Some(Namespace::new(machine.directory.path()));
            }
            let signals = fastrand::usize(0..4);
            let fills_up = fastrand::bool();
            let case = format!(
                "{devices:?}, state: {}, device directory: {}, device faults: {}, full disk: {fills_up}, signals: {signals}, \
                 round {round}",
                machine.keeps_state, machine.has_device_dir, machine.device_faults
            );
            let mut running = Processes::start(&machine).await;
            let pause = Duration::from_micros(fastrand::u64(0..400_000));
            let mut calls = running.driver.calls.clone();
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
                if let Some(disk) = disk.as_ref().filter(|_| fills_up) {
                    while !disk.try_to_leave(0) {}
                    tokio::time::sleep(pause).await;
                }
                running.kill(signals).await;
            };
            tokio::join!(working, killing);
            if let Some(disk) = &disk {
                disk.leave(10_000);
            }
            let mut next = machine.start("csi.sock").await;
            next.calls.undo_all(&machine, &case).await;
            next.end().await;
            assert_clean(&machine, &case).await;
            fs::remove_dir_all(machine.path("staging")).unwrap();
            fs::create_dir(machine.path("staging")).unwrap();
        }
    }
}
