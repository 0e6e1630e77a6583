//! The node of this process: its id, its devices, and the volumes staged and published on it.
//!
//! The array decides which volumes are attached; the node turns them into devices, filesystems and mounts. Invariants:
//! - A record exists from before a path is changed until everything is undone, so that after a crash at any point the
//!   next start, or the repeated call, completes or undoes the work.
//! - A repeated call checks the actual state before it returns.
//! - Without a state directory the process leaves nothing behind at its end; with one, volumes in use remain.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::device::{Devices, Kind};
pub use self::error::Error;
use self::mount::{Disk, Mounter};
use self::passthrough::Passthroughs;
use self::record::Records;
pub(crate) use self::record::{Map, Record, Role};
use crate::array::{self, Attachment, HealthIssue, Segments};
use crate::fault::Faults;
use crate::store::Database;
use crate::store::volume_files::{FileId, VolumeFiles, file_name};

mod compatibility;
pub mod device;
mod error;
pub(crate) mod exec;
pub(crate) mod leftovers;
pub(crate) mod mount;
mod passthrough;
mod path_state;
mod private_staging;
mod record;
pub(crate) mod stage_publish;
pub(crate) mod stats_expand;
mod unpublish;

#[derive(Clone, Debug)]
pub struct Settings {
    pub devices: device::Choice,
    /// Directory of the links to devices; `None` for one beside the volumes' files.
    pub device_dir: Option<PathBuf>,
    pub device_timeout: Duration,
    pub strict_gone: bool,
    /// Whether device faults are possible on all mounted volumes, not only on those that a rule names when they are published.
    pub device_faults: bool,
    /// The node's topology segments; empty for those of the array.
    pub topology: Map,
}

/// The response of NodeGetInfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    pub id: String,
    /// `max_volumes_per_node`; `None` for the array's limit.
    pub limit: Option<usize>,
    /// Wrong topology segments to report; empty for the array's.
    pub topology: Map,
}

#[derive(Debug)]
pub struct Node {
    /// The id at the start. Records are stored under it, whatever id the node gets later.
    home: String,
    /// The topology segments that the node registers with; empty to leave them to the array.
    pub(crate) segments: Segments,
    info: RwLock<NodeInfo>,
    pub(crate) strict_gone: bool,
    pub(crate) volume_files: VolumeFiles,
    pub(crate) devices: Devices,
    mounter: Mounter,
    passthroughs: Passthroughs,
    records: Records,
    pub(crate) device_timeout: Duration,
    /// Running blocking tasks.
    work: TaskTracker,
    /// Stops mkfs and scans.
    stop: CancellationToken,
    faults: Arc<Faults>,
}

/// A volume of the array from the node's point of view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArrayVolume {
    pub(crate) bytes: u64,
    pub(crate) attachment: Option<Attachment>,
    pub(crate) issues: Vec<HealthIssue>,
}

#[derive(Clone, Debug)]
struct VolumeDisk {
    volume: String,
    file_id: FileId,
    serial: String,
    bytes: u64,
    writable: bool,
}

// === impl Settings ===

impl Default for Settings {
    /// Emulated devices, which appear without delay.
    fn default() -> Self {
        Self {
            devices: device::Choice::Emulated,
            device_dir: None,
            device_timeout: Duration::ZERO,
            strict_gone: false,
            device_faults: false,
            topology: Map::new(),
        }
    }
}

// === impl VolumeDisk ===

impl VolumeDisk {
    fn of_volume(volume: &str) -> Self {
        Self {
            volume: volume.to_owned(),
            file_id: FileId::Volume(volume.to_owned()),
            serial: array::serial(volume),
            bytes: 0,
            writable: true,
        }
    }

    /// The disk of a pod's volume, by the name of its files.
    fn of_ephemeral(node: &str, name: String) -> Self {
        Self {
            volume: name.clone(),
            serial: array::serial(&format!("ephemeral/{name}")),
            file_id: FileId::Ephemeral {
                node: node.to_owned(),
                name,
            },
            bytes: 0,
            writable: true,
        }
    }
}

// === impl Node ===

impl Node {
    /// Opens the node with its stored records, if it has a state directory. Locks its device directory first if that exists.
    pub(crate) fn open(
        id: String,
        settings: Settings,
        volume_files: VolumeFiles,
        state: Option<Arc<Database>>,
        faults: Arc<Faults>,
    ) -> Result<Self, Error> {
        let kind = settings.devices.settle()?;
        let devices = match settings.device_dir {
            Some(directory) => Devices::within(kind, directory),
            None => Devices::beside(kind, volume_files.clone(), &id),
        };
        devices.lock_used()?;
        let records = match state {
            Some(database) => Records::open(database)?,
            None => Records::in_memory(devices.notes()),
        };
        Ok(Self {
            home: id.clone(),
            segments: settings.topology.into_iter().collect(),
            info: RwLock::new(NodeInfo {
                id,
                limit: None,
                topology: Map::new(),
            }),
            strict_gone: settings.strict_gone,
            volume_files,
            mounter: match kind {
                Kind::Loop => Mounter::Kernel,
                Kind::Emulated | Kind::None | Kind::Simulated => Mounter::Emulated,
            },
            passthroughs: Passthroughs::new(faults.clone(), settings.device_faults),
            devices,
            records,
            device_timeout: settings.device_timeout,
            work: TaskTracker::new(),
            stop: CancellationToken::new(),
            faults,
        })
    }

    /// The present response of NodeGetInfo.
    pub fn info(&self) -> NodeInfo {
        self.info.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_info(&self, change: impl FnOnce(&mut NodeInfo)) {
        change(&mut self.info.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether volumes are only recorded, without devices and mounts.
    fn is_simulated(&self) -> bool {
        self.devices.kind == Kind::Simulated
    }

    /// Attaches or detaches the device of a volume according to its attachment.
    ///
    /// # Guarantees
    /// Afterwards the device exists if and only if the volume is attached. Idempotent, also after a crash.
    pub(crate) async fn reconcile_device(
        self: &Arc<Self>,
        volume: &str,
        view: Option<&ArrayVolume>,
    ) -> Result<(), Error> {
        if self.is_simulated() {
            return Ok(());
        }
        match view.and_then(|view| Some((view.bytes, view.attachment.as_ref()?))) {
            Some(_) if self.devices.kind == Kind::None => {}
            Some((bytes, attachment)) => {
                let volume_disk = VolumeDisk {
                    bytes,
                    writable: attachment.params.writes(),
                    ..VolumeDisk::of_volume(volume)
                };
                self.attach(&volume_disk).await?;
            }
            None => {
                let volume = volume.to_owned();
                self.blocking(move |node| {
                    node.passthroughs.detach(&volume);
                    Ok(node.devices.detach(&array::serial(&volume))?)
                })
                .await?;
            }
        }
        Ok(())
    }

    async fn attach(self: &Arc<Self>, volume_disk: &VolumeDisk) -> Result<(), Error> {
        if self.is_simulated() {
            return Ok(());
        }
        let disk = self
            .volume_files
            .ensure(&volume_disk.file_id, volume_disk.bytes)
            .await?;
        let (serial, writable) = (volume_disk.serial.clone(), volume_disk.writable);
        self.blocking(move |node| Ok(node.devices.attach(&serial, &disk, writable)?))
            .await
    }

    async fn refresh(self: &Arc<Self>, volume_disk: &VolumeDisk, disk: &Disk) -> Result<(), Error> {
        if self.is_simulated() {
            return Ok(());
        }
        self.volume_files
            .grow(&volume_disk.file_id, volume_disk.bytes)
            .await?;
        let disk = disk.clone();
        self.blocking(move |node| Ok(node.devices.refresh(&disk.device)?))
            .await
    }

    /// The disk of a volume with its device, and its size in bytes.
    async fn disk(self: &Arc<Self>, volume_disk: &VolumeDisk) -> Result<(Disk, u64), Error> {
        if self.devices.kind == Kind::None {
            return Err(Error::failed_precondition(format!(
                "this driver has no devices (--devices=none), so it cannot bring volume \"{}\" to a path",
                volume_disk.volume
            )));
        }
        let volume_disk = volume_disk.clone();
        self.blocking(move |node| {
            node.find(&volume_disk)?.ok_or_else(|| Error::NoDevice {
                volume: volume_disk.volume.clone(),
                waited: node.device_timeout,
            })
        })
        .await
    }

    /// Looks up the device of a volume once. Blocks.
    fn find(&self, volume_disk: &VolumeDisk) -> Result<Option<(Disk, u64)>, Error> {
        let fault = self.faults.device(&volume_disk.volume, &self.info().id);
        self.devices.set_fault(&volume_disk.serial, fault);
        if self.is_simulated() {
            if !self.devices.is_simulated_there(&volume_disk.serial)? {
                return Ok(None);
            }
            let path = PathBuf::from(format!("/dev/disk/by-id/csi-mock-{}", volume_disk.serial));
            let disk = Disk {
                file: path.clone(),
                tree: path.clone(),
                formatting: path.clone(),
                device: path,
                _held: None,
                writable: volume_disk.writable,
                lock: None,
                stop: self.stop.clone(),
            };
            return Ok(Some((disk, volume_disk.bytes)));
        }
        let file = self.volume_files.disk(&volume_disk.file_id)?;
        let Some(device) = self.devices.find(&volume_disk.serial, &file)? else {
            return Ok(None);
        };
        let bytes = device.bytes;
        let disk = Disk {
            tree: self.volume_files.tree(&volume_disk.file_id)?,
            formatting: self.volume_files.formatting_mark(&volume_disk.file_id)?,
            file,
            device: device.path,
            _held: Some(device.held),
            writable: volume_disk.writable,
            lock: None,
            stop: self.stop.clone(),
        };
        Ok(Some((disk, bytes)))
    }

    fn volume_disk_of(&self, record: &Record, view: Option<&ArrayVolume>) -> VolumeDisk {
        let volume = record.volume.clone();
        match record.inline {
            Some(bytes) => VolumeDisk {
                bytes,
                ..self.ephemeral_disk(&volume)
            },
            None => VolumeDisk {
                bytes: view.map_or(0, |view| view.bytes),
                writable: view
                    .and_then(|view| view.attachment.as_ref())
                    .is_none_or(|attachment| attachment.params.writes()),
                ..VolumeDisk::of_volume(&volume)
            },
        }
    }

    fn ephemeral_disk(&self, volume: &str) -> VolumeDisk {
        VolumeDisk {
            volume: volume.to_owned(),
            ..VolumeDisk::of_ephemeral(&self.home, file_name(volume))
        }
    }

    /// Why there are no device faults on this node.
    pub(crate) fn lacks_for_device_faults(&self) -> Option<String> {
        match self.devices.kind {
            Kind::Loop => passthrough::unavailable(),
            Kind::Emulated | Kind::None | Kind::Simulated => Some(format!(
                "device faults need mounted volumes: --devices=loop as root, and /dev/fuse; the devices of this node are {}",
                self.devices.kind.name()
            )),
        }
    }

    /// Stops mkfs and scans, aborts the operations of processes on volumes with device faults, and waits until all blocking tasks
    /// have ended, also those whose callers have left.
    pub(crate) async fn finish(self: &Arc<Self>) {
        self.stop.cancel();
        self.abort_passthroughs().await;
        self.work.close();
        self.work.wait().await;
    }

    /// Waits until no blocking task runs.
    pub(crate) async fn settle(&self) {
        self.work.close();
        self.work.wait().await;
        self.work.reopen();
    }

    async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        act: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        if self.is_simulated() {
            // It does not block, and a thread would not follow simulated time.
            return act(self);
        }
        let node = self.clone();
        let done = crate::blocking(&self.work, move || act(&node)).await;
        done.unwrap_or_else(|| Err(Error::no_array("the driver is ending")))
    }
}
