//! The state of a path, which is read before the path is changed, so that the driver changes no mounts, links or files of
//! others.

use std::path::{Path, PathBuf};

use super::error::Error;
use super::leftovers;
use super::record::{Record, Role};
use super::{Node, VolumeDisk};
use crate::array::Access;
use crate::node::mount::{self, Disk, MountSource, Mounter};

/// What exists at the path of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathState {
    /// Nothing is mounted or linked.
    Absent,
    /// The volume, as recorded.
    AsAsked,
    /// The volume, but another process changed how it is mounted.
    Changed(&'static str),
    /// A mount, link or file of another user, over the volume or instead of it.
    Foreign,
}

// === impl PathState ===

impl PathState {
    pub(super) fn is_there(self) -> bool {
        match self {
            Self::AsAsked | Self::Changed(_) => true,
            Self::Absent | Self::Foreign => false,
        }
    }
}

// === impl Record ===

impl Record {
    pub(super) fn is_for_reading(&self, disk: &Disk) -> bool {
        self.readonly || !disk.writable || self.capability.mode.is_reader_only()
    }
}

// === impl Node ===

impl Node {
    /// Reads the state of a record's path. Blocks.
    pub(super) fn state(&self, record: &Record, disk: &Disk) -> Result<PathState, Error> {
        if self.is_simulated() {
            return Ok(PathState::AsAsked);
        }
        let path = Path::new(&record.path);
        let source = self.mount_at(record)?;
        if source.is_none() && self.shows_nothing(record) {
            let is_up = record.capability.is_block() || self.mounter.is_mounted(disk, path)?;
            return Ok(if is_up {
                PathState::AsAsked
            } else {
                PathState::Absent
            });
        }
        let Some(mounted) = source else {
            return Ok(PathState::Absent);
        };
        if self.mount_source_of(record, disk)?.as_ref() != Some(&mounted) {
            return Ok(match self.is_of(record, &mounted) {
                true => PathState::Changed("device"),
                false => PathState::Foreign,
            });
        }
        let has_mode = match (&record.role, &record.capability.access) {
            (Role::Published { staging, .. }, Access::Mount { flags, .. }) => {
                let from = Path::new(staging);
                self.mounter
                    .has_read_only_mode(path, from, record.is_for_reading(disk), flags)?
            }
            (Role::Published { .. }, Access::Block) | (Role::Staged, _) => true,
        };
        Ok(if has_mode {
            PathState::AsAsked
        } else {
            PathState::Changed("readonly")
        })
    }

    /// Checks that the driver may change a path, before a record claims it: the driver may remove the leftovers of its own
    /// interrupted calls and mounts of the volume, but nothing else. Blocks.
    pub(super) fn claim(&self, record: &Record) -> Result<(), Error> {
        let path = Path::new(&record.path);
        let wanted = if record.is_staged() {
            Some(path)
        } else {
            path.parent()
        };
        if let Some(directory) = wanted.filter(|directory| !directory.is_dir()) {
            return Err(Error::failed_precondition(format!(
                "{}: there is no directory {}, which the caller makes before the call",
                record.path_field(),
                directory.display()
            )));
        }
        if let Some(there) = self.records.at(&record.path)
            && there.volume != record.volume
        {
            return Err(taken(there));
        }
        match self.mount_at(record)? {
            Some(mounted) if !self.shows_nothing(record) && self.is_of(record, &mounted) => Ok(()),
            Some(_) => Err(foreign(&record.path)),
            None if record.is_staged() => Ok(()),
            None => Ok(mount::check_empty(path)?),
        }
    }

    /// The mount source at a record's path if the path is as recorded, `None` if nothing is mounted there. Blocks.
    pub(super) fn mount_source_of(&self, record: &Record, disk: &Disk) -> Result<Option<MountSource>, Error> {
        if self.shows_nothing(record) {
            return Ok(None);
        }
        if !record.capability.is_block() {
            let passthrough = self.passthroughs.source(&record.volume);
            if let Some(source) = passthrough.filter(|_| !record.is_staged()) {
                return Ok(Some(source));
            }
            return Ok(Some(self.mounter.files_of(disk)?));
        }
        Ok(Some(self.mounter.device_of(&disk.device)?))
    }

    /// Whether a mount source belongs to the record's volume: the recorded one, or the one that would be mounted now. Blocks.
    pub(super) fn is_of(&self, record: &Record, mounted: &MountSource) -> bool {
        let known = self.records.at(&record.path);
        known.is_some_and(|known| {
            known.volume == record.volume && known.mount_source.as_ref() == Some(mounted)
        }) || self.passthroughs.source(&record.volume).as_ref() == Some(mounted)
            || self.is_of_volume_disk(&self.volume_disk_of(record, None), mounted)
    }

    /// Whether a mount source belongs to the disk of a volume now. `false` if it cannot be looked up. Blocks.
    pub(super) fn is_of_volume_disk(&self, volume_disk: &VolumeDisk, mounted: &MountSource) -> bool {
        let Ok(disk) = self.volume_files.disk(&volume_disk.file_id) else {
            return false;
        };
        let MountSource::Device(_) = mounted else {
            let tree = self.volume_files.tree(&volume_disk.file_id);
            return tree.is_ok_and(|tree| *mounted == MountSource::Link(tree))
                || *mounted == MountSource::Link(disk);
        };
        let device = self.devices.find(&volume_disk.serial, &disk).ok().flatten();
        device.is_some_and(|device| {
            let source = self.mounter.device_of(&device.path);
            source.is_ok_and(|source| source == *mounted)
        })
    }

    /// Whether a mount source belongs to a volume without record, either of the array or of a pod, also on a device without a
    /// link. Blocks.
    pub(super) fn is_of_lost(&self, volume: &str, mounted: &MountSource) -> bool {
        let is_source = |device: PathBuf| {
            let source = self.mounter.device_of(&device);
            source.is_ok_and(|source| source == *mounted)
        };
        let is_on_device_of = |volume_disk: &VolumeDisk| {
            let disk = self.volume_files.disk(&volume_disk.file_id).ok();
            let devices = disk.and_then(|disk| self.devices.all_of(&disk).ok());
            devices.into_iter().flatten().any(is_source)
        };
        let volume_disks = [VolumeDisk::of_volume(volume), self.ephemeral_disk(volume)];
        let mut volume_disks = volume_disks.iter();
        volume_disks.any(|volume_disk| {
            self.is_of_volume_disk(volume_disk, mounted)
                || is_on_device_of(volume_disk)
                || leftovers::passthrough_of(&volume_disk.serial, mounted).is_some()
        }) || self.abandoned_device(volume, mounted).is_some()
    }

    /// The mounted loop device, if it is one of a volume that a process without a state directory left when it was killed, as in
    /// a container whose files are gone. Blocks.
    pub(super) fn abandoned_device(&self, volume: &str, mounted: &MountSource) -> Option<PathBuf> {
        let volume_disks = [VolumeDisk::of_volume(volume), self.ephemeral_disk(volume)];
        // Below its passthrough filesystem, it is the device of the same process.
        let mut links = volume_disks.iter();
        let link = links.find_map(|volume_disk| leftovers::passthrough_of(&volume_disk.serial, mounted));
        // Links are in devices/<node> of the private directory.
        let directory = link.as_deref().and_then(|link| link.ancestors().nth(3));
        let devices = volume_disks.map(|volume_disk| self.devices.abandoned(&volume_disk.file_id).ok());
        devices.into_iter().flatten().flatten().find(|device| {
            let source = self.mounter.device_of(device);
            source.is_ok_and(|source| source == *mounted)
                || directory.is_some_and(|directory| super::device::has_file_below(device, directory))
        })
    }

    /// What is mounted or linked at a record's path, of whatever kind the devices were then. A raw block device is staged without a
    /// mount, and a link to a staging path is the caller's, as is another mount where an emulated filesystem is staged. Blocks.
    pub(super) fn mount_at(&self, record: &Record) -> Result<Option<MountSource>, Error> {
        let path = Path::new(&record.path);
        let mounted = match record.role {
            Role::Staged if record.capability.is_block() => None,
            Role::Staged => mount::device_at(path)?.map(MountSource::Device),
            Role::Published { .. } => mount::source_at(path)?,
        };
        Ok(mounted.filter(|mounted| !self.shows_nothing(record) || self.is_of(record, mounted)))
    }

    /// Whether nothing is mounted at the record's path: a raw block device is staged without a mount, and so is an emulated
    /// filesystem.
    pub(super) fn shows_nothing(&self, record: &Record) -> bool {
        record.is_staged() && (record.capability.is_block() || self.mounter == Mounter::Emulated)
    }
}

/// The error for a path of another volume.
pub(super) fn taken(there: Record) -> Error {
    Error::Taken {
        path: there.path.clone(),
        done: there.done(),
        volume: there.volume,
    }
}

pub(super) fn foreign(path: &str) -> Error {
    mount::Error::in_the_way(Path::new(path), "shows something that is not of this volume").into()
}
