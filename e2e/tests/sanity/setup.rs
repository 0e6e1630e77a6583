//! The set-ups of csi-sanity.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use csi_e2e::process::{Process, Spec, wait_until_listening};
use csi_e2e::test_binary::TestBinary;
use csi_e2e::toolchain::Peer;
use csi_e2e::wait::{self, Progress};
use serde_json::{Map, Value, json};
use verdict::Requirement;
use verdict::Requirement::{LoopDevices, RealComponents};

use crate::report::Report;

/// Timeout of a round of csi-sanity.
const ROUND: Duration = Duration::from_secs(240);
/// Maximum time for a driver to listen, and to exit.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
/// Small, because xfs and ext4 are really created on loop devices.
const VOLUME_BYTES: u64 = 512 << 20;
const EXPANDED_BYTES: u64 = 1 << 30;
/// More than csi-sanity attaches outside of the spec for the attach limit.
const ATTACH_LIMIT: u32 = 20;
/// Calls that need a secret in the set-ups with secrets, with csi-sanity's name for it.
const SECRETS: &[(&str, &str)] = &[
    ("CreateVolume", "CreateVolumeSecret"),
    ("DeleteVolume", "DeleteVolumeSecret"),
    ("ControllerPublishVolume", "ControllerPublishVolumeSecret"),
    ("ControllerUnpublishVolume", "ControllerUnpublishVolumeSecret"),
    (
        "ValidateVolumeCapabilities",
        "ControllerValidateVolumeCapabilitiesSecret",
    ),
    ("NodeStageVolume", "NodeStageVolumeSecret"),
    ("NodePublishVolume", "NodePublishVolumeSecret"),
    ("CreateSnapshot", "CreateSnapshotSecret"),
    ("DeleteSnapshot", "DeleteSnapshotSecret"),
    ("ControllerExpandVolume", "ControllerExpandVolumeSecret"),
    ("ControllerModifyVolume", "ControllerModifyVolumeSecret"),
    ("ListSnapshots", "ListSnapshotsSecret"),
    ("GetSnapshot", "GetSnapshotSecret"),
];

/// One configuration of driver and suite.
pub(crate) struct SetUp {
    /// Name in test names.
    pub(crate) name: &'static str,
    access: &'static str,
    split: bool,
    secrets: bool,
    /// Whether csi-sanity connects through a fault proxy without faults.
    proxied: bool,
    /// Whether both run without options except node name and paths, like the first run of a driver's author.
    plain: bool,
}

/// Devices of attached volumes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Devices {
    /// Directories and regular files.
    Emulated,
    /// Loop devices with filesystems.
    Loop,
}

/// The processes of a set-up: one driver, or a controller and a node, or a driver and its proxy.
pub(crate) struct Started {
    pub(crate) processes: Vec<Process>,
}

const MOUNT: SetUp = SetUp {
    name: "mount",
    access: "mount",
    split: false,
    secrets: false,
    proxied: false,
    plain: false,
};

pub(crate) const PLAIN: SetUp = SetUp {
    name: "plain",
    plain: true,
    ..MOUNT
};

pub(crate) const ALL: &[SetUp] = &[
    MOUNT,
    SetUp {
        name: "block",
        access: "block",
        ..MOUNT
    },
    SetUp {
        name: "split",
        split: true,
        ..MOUNT
    },
    SetUp {
        name: "secrets",
        secrets: true,
        ..MOUNT
    },
    SetUp {
        name: "proxied",
        secrets: true,
        proxied: true,
        ..MOUNT
    },
];

// === impl Devices ===

impl Devices {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Emulated => "emulated",
            Self::Loop => "loop",
        }
    }

    pub(crate) fn requirements(self) -> &'static [Requirement] {
        match self {
            Self::Emulated => &[RealComponents],
            Self::Loop => &[RealComponents, LoopDevices],
        }
    }
}

// === impl SetUp ===

impl SetUp {
    /// Starts the driver with the state in `dir`, and waits until it listens.
    pub(crate) async fn start(&self, harness: &TestBinary, devices: Devices, dir: &Path) -> Result<Started> {
        let binary = harness.toolchain.csi_mock_driver().await?;
        let common = |name: &str, socket: &str| {
            Spec::new(name, &binary)
                .dir(dir)
                .arg(format!("--endpoint=unix://{}", dir.join(socket).display()))
                .arg("--driver-name=sanity.csi.local")
        };
        let array = |command: Spec| {
            let state = dir.join("state");
            let mut command = command
                .arg(format!("--state-dir={}", state.display()))
                .arg("--nodes=2")
                .arg(format!("--attach-limit={ATTACH_LIMIT}"));
            for (rpc, _) in SECRETS.iter().filter(|_| self.secrets) {
                command = command.arg(format!("--require-secret={rpc}:key={rpc}-password"));
            }
            command
        };
        let node = |command: Spec| {
            command
                .arg("--node-id=node-0")
                .arg(format!("--devices={}", devices.name()))
                .arg(format!("--device-dir={}", dir.join("devices").display()))
        };
        std::fs::create_dir_all(dir.join("state")).context("make the state directory")?;
        let commands = if self.plain {
            let driver = Spec::new("driver", &binary).dir(dir);
            vec![(
                driver
                    .arg("--node-id=node-0")
                    .arg(format!("--endpoint=unix://{}", dir.join(SOCKET).display())),
                SOCKET,
            )]
        } else if self.split {
            let array_socket = format!("unix://{}", dir.join("array.sock").display());
            let media = format!("--media-dir={}", dir.join("media").display());
            vec![
                (
                    array(common("controller", CONTROLLER))
                        .arg("--mode=controller")
                        .arg(format!("--admin-endpoint={array_socket}"))
                        .arg(&media),
                    CONTROLLER,
                ),
                (
                    node(common("node", SOCKET))
                        .arg("--mode=node")
                        .arg(format!("--array-endpoint={array_socket}"))
                        .arg(&media),
                    SOCKET,
                ),
            ]
        } else if self.proxied {
            let proxy =
                common("proxy", SOCKET).arg(format!("--proxy-to=unix://{}", dir.join(BEHIND).display()));
            vec![(node(array(common("driver", BEHIND))), BEHIND), (proxy, SOCKET)]
        } else {
            vec![(node(array(common("driver", SOCKET))), SOCKET)]
        };
        let mut started = Started {
            processes: Vec::new(),
        };
        for (command, socket) in commands {
            let process = Process::spawn(&harness.run, command)?;
            process
                .while_alive(wait_until_listening(&dir.join(socket), DEADLINE))
                .await?;
            started.processes.push(process);
        }
        Ok(started)
    }

    /// Runs csi-sanity; all specs must pass.
    pub(crate) async fn verify(&self, harness: &TestBinary, dir: &Path) -> Result<()> {
        let report = dir.join("report.json");
        let write = |name: &str, value: &Value| -> Result<PathBuf> {
            let file = dir.join(name);
            // JSON is YAML.
            std::fs::write(&file, value.to_string()).with_context(|| format!("write {name}"))?;
            Ok(file)
        };
        let mutable = write("mutable-parameters.yaml", &json!({"iops": "500"}))?;
        let path = |name: &str| dir.join(name).display().to_string();
        // Explicit directories, because two runs would share the default ones in /tmp.
        let mut command = Spec::new("csi-sanity", harness.toolchain.peer(Peer::CsiSanity).await?)
            .dir(dir)
            .arg(format!("--csi.endpoint=unix://{}", path(SOCKET)))
            .arg(format!("--csi.mountdir={}", path("mount")))
            .arg(format!("--csi.stagingdir={}", path("staging")))
            .arg("--ginkgo.no-color")
            .arg(format!("--ginkgo.json-report={}", report.display()));
        if !self.plain {
            command = command
                .arg(format!("--csi.testvolumeaccesstype={}", self.access))
                .arg(format!("--csi.testvolumesize={VOLUME_BYTES}"))
                .arg(format!("--csi.testvolumeexpandsize={EXPANDED_BYTES}"))
                .arg(format!("--csi.testvolumemutableparameters={}", mutable.display()))
                .arg("--csi.testnodevolumeattachlimit");
        }
        if self.split {
            command = command.arg(format!("--csi.controllerendpoint=unix://{}", path(CONTROLLER)));
        }
        if self.secrets {
            let secret = |rpc: &str| json!({"key": format!("{rpc}-password")});
            let secrets: Map<_, _> = SECRETS
                .iter()
                .map(|(rpc, name)| ((*name).to_owned(), secret(rpc)))
                .collect();
            let file = write("secrets.yaml", &secrets.into())?;
            command = command.arg(format!("--csi.secrets={}", file.display()));
        }
        let process = Process::spawn(&harness.run, command)?;
        let exit = process.exited_within(ROUND).await?;
        Report::read(&report)
            .and_then(|report| match self.plain {
                true => report.ensure_none_failed(),
                false => report.ensure_all_passed(),
            })
            .with_context(|| {
                format!(
                    "csi-sanity ended with {}, and its output with\n{}",
                    exit.status,
                    process.log_tail(20)
                )
            })?;
        ensure!(exit.status.success(), "csi-sanity ended with {}", exit.status);
        Ok(())
    }
}

// === impl Started ===

impl Started {
    pub(crate) fn log_tail(&self) -> String {
        let tails = self.processes.iter().map(|process| process.log_tail(20));
        tails.collect::<Vec<_>>().join("\n")
    }
}

const SOCKET: &str = "csi.sock";
const CONTROLLER: &str = "controller.sock";
/// The driver's socket if csi-sanity connects to a proxy.
const BEHIND: &str = "behind.sock";

/// Waits until [`ensure_no_leftovers`]: a separate node process polls the array, so it detaches the device of an unpublished
/// volume after ControllerUnpublishVolume has returned.
pub(crate) async fn wait_until_no_leftovers(dir: &Path) -> Result<()> {
    wait::poll(DEADLINE, "the set-up to leave nothing", || async {
        Ok(match ensure_no_leftovers(dir) {
            Ok(()) => Progress::Reached(()),
            Err(error) => Progress::Pending(format!("{error:#}")),
        })
    })
    .await
}

/// No mount, loop device or link of a set-up exists.
pub(crate) fn ensure_no_leftovers(dir: &Path) -> Result<()> {
    let ours = dir.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
    let left: Vec<_> = mounts.lines().filter(|line| line.contains(&ours)).collect();
    ensure!(left.is_empty(), "mounts are left: {left:?}");
    for device in std::fs::read_dir("/sys/block").context("list the block devices")? {
        let backing = device?.path().join("loop/backing_file");
        // Absent for other devices and for free loop devices.
        let backing = std::fs::read_to_string(backing).unwrap_or_default();
        ensure!(
            !backing.contains(&ours),
            "a loop device is left on {}",
            backing.trim()
        );
    }
    let devices = dir.join("devices");
    if devices.exists() {
        let left: Vec<_> = std::fs::read_dir(&devices)?
            .filter_map(|entry| entry.ok().map(|entry| entry.file_name()))
            .collect();
        ensure!(left.is_empty(), "links are left: {left:?}");
    }
    Ok(())
}
