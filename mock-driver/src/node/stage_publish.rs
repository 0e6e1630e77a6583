use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use tokio::sync::oneshot;

use super::compatibility::{self, Compatibility};
use super::error::Error;
use super::path_state::{PathState, foreign, taken};
use super::record::{Progress, Record, Role};
use super::{ArrayVolume, Node, VolumeDisk};
use crate::array::{Access, Attachment};
use crate::node::mount::{self, Disk, MountSource, Mounter};
use crate::store::PathError;

#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeFeatures {
    /// PUBLISH_UNPUBLISH_VOLUME: the controller attaches volumes.
    pub(crate) attaches: bool,
    /// STAGE_UNSTAGE_VOLUME: volumes are staged before they are published.
    pub(crate) stages: bool,
}

// === impl Node ===

impl Node {
    /// Stages a volume of the array.
    ///
    /// # Guarantees
    /// After an error or a crash, this call leaves nothing mounted.
    ///
    /// # Errors
    /// The volume is not attached here or is staged with other arguments, the path belongs to another user, the
    /// capability is not supported, or a device or mount failed.
    pub(crate) async fn stage(
        self: &Arc<Self>,
        record: &Record,
        view: &ArrayVolume,
        features: NodeFeatures,
    ) -> Result<(), Error> {
        let compatibility = self.compare(record)?;
        if let Access::Mount { fs_type, .. } = &record.capability.access {
            Mounter::supports(fs_type)?;
        }
        let volume_disk = self.reachable(record, view, features).await?;
        self.stage_device(record, &volume_disk, compatibility).await
    }

    /// Publishes a volume of the array.
    ///
    /// # Guarantees
    /// Those of [`Node::stage`].
    ///
    /// # Errors
    /// Those of [`Node::stage`]; besides, the volume is not staged at the staging path, or its access mode forbids a second
    /// target.
    pub(crate) async fn publish(
        self: &Arc<Self>,
        record: &Record,
        view: &ArrayVolume,
        features: NodeFeatures,
    ) -> Result<(), Error> {
        if features.stages {
            if record.staging().is_empty() {
                let reason = "staging_target_path: must be set, this driver stages volumes";
                return Err(Error::failed_precondition(reason.to_owned()));
            }
            return self
                .publish_staged(record, view, features, self.compare(record)?)
                .await;
        }
        let record = self.privately_staged(record)?;
        let compatibility = self.compare(&record)?;
        // Before the record is written: the device may not have appeared yet.
        let volume_disk = self.reachable(&record, view, features).await?;
        self.disk(&volume_disk).await?;
        let work = async {
            self.stage_for(&record, view, features).await?;
            self.publish_staged(&record, view, features, compatibility).await
        };
        self.all_or_nothing(&record, compatibility, work).await
    }

    async fn publish_staged(
        self: &Arc<Self>,
        record: &Record,
        view: &ArrayVolume,
        features: NodeFeatures,
        compatibility: Compatibility,
    ) -> Result<(), Error> {
        let staged = self
            .records
            .at(record.staging())
            .filter(|staged| staged.is_staged() && staged.is_done() && staged.volume == record.volume)
            .ok_or_else(|| Error::not_staged(&record.volume, record.staging()))?;
        compatibility::covered(&record.volume, "staged", &staged.capability, &record.capability)?;
        let volume_disk = self.reachable(record, view, features).await?;
        self.stage_device(record, &volume_disk, compatibility).await
    }

    pub(super) fn compare(&self, record: &Record) -> Result<Compatibility, Error> {
        compatibility::compare(
            self.records.at(&record.path).as_ref(),
            &self.records.of(&record.volume),
            record,
        )
    }

    /// The disk of a volume that the request says is attached to this node.
    pub(super) async fn reachable(
        self: &Arc<Self>,
        record: &Record,
        view: &ArrayVolume,
        features: NodeFeatures,
    ) -> Result<VolumeDisk, Error> {
        let volume_disk = self.volume_disk_of(record, Some(view));
        let Some(attachment) = &view.attachment else {
            if features.attaches {
                return Err(Error::not_attached(&record.volume));
            }
            // The driver has no ControllerPublishVolume, so the node attaches the device.
            self.attach(&volume_disk).await?;
            return Ok(volume_disk);
        };
        if let Some(given) = record.publish_context.get(Attachment::NUMBER)
            && *given != attachment.number.to_string()
        {
            return Err(Error::failed_precondition(format!(
                "publish_context: is of attachment {given} of volume \"{}\", which is attached as {} now",
                record.volume, attachment.number
            )));
        }
        if features.attaches {
            let expected = attachment.publish_context(&record.volume);
            compatibility::same_context(&record.volume, &expected, &record.publish_context)?;
        }
        compatibility::covered(
            &record.volume,
            "attached",
            &attachment.params.capability,
            &record.capability,
        )?;
        Ok(volume_disk)
    }

    /// Performs the staging or publishing of a record, or verifies that it is complete.
    pub(super) async fn stage_device(
        self: &Arc<Self>,
        record: &Record,
        volume_disk: &VolumeDisk,
        compatibility: Compatibility,
    ) -> Result<(), Error> {
        let (disk, bytes) = self.disk(volume_disk).await?;
        if self.is_simulated() {
            return match self.records.at(&record.path) {
                Some(there) if there.volume != record.volume => Err(taken(there)),
                Some(_) | None => self.records.put(&record.when(Progress::Done)),
            };
        }
        if record.is_staged() && bytes < volume_disk.bytes {
            // The volume has grown since its device was attached.
            self.refresh(volume_disk, &disk).await?;
        }
        let (record, repeat) = (record.clone(), compatibility == Compatibility::Repeat);
        self.blocking(move |node| {
            if repeat {
                match node.state(&record, &disk)? {
                    PathState::AsAsked => return Ok(()),
                    PathState::Absent => {}
                    PathState::Foreign => return Err(foreign(&record.path)),
                    // Pods may use it, so the driver does not remount it.
                    PathState::Changed(field) => {
                        return Err(Error::Otherwise {
                            volume: record.volume.clone(),
                            done: record.done(),
                            path: record.path.clone(),
                            field,
                        });
                    }
                }
            }
            node.claim(&record)?;
            node.clear_rest(&record)?;
            let known = node.records.at(&record.path).and_then(|known| known.mount_source);
            let record = Record {
                mount_source: known,
                progress: Progress::Doing,
                ..record
            };
            // An inline volume exists as long as its target's record: if only the remount after a reboot failed, the record must
            // not become unfinished.
            let keeps = repeat && record.inline.is_some() && !record.is_staged();
            if !keeps {
                node.records.put(&record)?;
            }
            match node.show(&record, &disk) {
                Ok(mounted) => node.records.put(&Record {
                    mount_source: mounted,
                    progress: Progress::Done,
                    ..record
                }),
                Err(error) if keeps => {
                    node.unmount(&record)?;
                    Err(error)
                }
                Err(error) => {
                    // Steps that could not be undone remain recorded.
                    node.records.put(&record.when(Progress::Undoing))?;
                    node.discard(&record)?;
                    Err(error)
                }
            }
        })
        .await
    }

    /// Unmounts the leftovers of an unfinished call at a staging path, if the options differ. Blocks.
    fn clear_rest(&self, record: &Record) -> Result<(), Error> {
        match self.records.at(&record.path) {
            Some(rest) if rest.is_staged() && !rest.is_done() && compatibility::differ(&rest, record) => {
                self.unmount(&rest)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Mounts or links a record's volume at its path and returns the mount source. Blocks.
    fn show(&self, record: &Record, disk: &Disk) -> Result<Option<MountSource>, Error> {
        let path = Path::new(&record.path);
        let readonly = record.is_for_reading(disk);
        match (&record.role, &record.capability.access) {
            // The device exists; publishing creates the link or mount.
            (Role::Staged, Access::Block) => self.wipe_interrupted_mkfs(disk)?,
            (
                Role::Staged,
                Access::Mount {
                    fs_type,
                    flags,
                    group,
                },
            ) => {
                let disk = &Disk {
                    lock: self.alone(record, disk)?.map(Arc::new),
                    ..disk.clone()
                };
                if let Some(disk_fault) = self.faults.disk(&record.volume, &self.info().id) {
                    self.mounter.apply_disk_fault(disk, path, fs_type, disk_fault)?;
                }
                self.mounter.mount(disk, path, fs_type, flags, group)?;
            }
            (Role::Published { staging, .. }, Access::Mount { flags, .. }) => {
                let from = Path::new(staging);
                if !self.mounter.is_mounted(disk, from)? {
                    return Err(Error::not_staged(&record.volume, staging));
                }
                // The leftovers of an interrupted call: see `claim`.
                self.unmount(record)?;
                mount::remove_empty(path)?;
                let root = self.passthrough_of(record, from)?;
                let from = root.as_deref().unwrap_or(from);
                self.mounter.show_files(disk, from, path, readonly, flags)?;
            }
            (Role::Published { .. }, Access::Block) => {
                self.wipe_interrupted_mkfs(disk)?;
                self.unmount(record)?;
                self.check_block(record)?;
                mount::remove_empty(path)?;
                self.mounter.show_device(disk, path, readonly)?;
            }
        }
        self.mount_source_of(record, disk)
    }

    /// Locks a disk that is published as a raw block device against a running mkfs of another node, which has the same mark as an
    /// interrupted one.
    fn wipe_interrupted_mkfs(&self, disk: &Disk) -> Result<(), Error> {
        let lock = match self.mounter {
            Mounter::Kernel => Some(Arc::new(lock_disk(disk)?)),
            Mounter::Emulated => None,
        };
        let disk = Disk { lock, ..disk.clone() };
        Ok(mount::wipe_interrupted(&disk)?)
    }

    /// Checks that the filesystem of a disk is mounted through no other device: two mounts would overwrite each other's
    /// data. The returned file locks out other nodes on the same machine.
    fn alone(&self, record: &Record, disk: &Disk) -> Result<Option<File>, Error> {
        if self.mounter == Mounter::Emulated || self.mounter.is_mounted(disk, Path::new(&record.path))? {
            return Ok(None);
        }
        let guard = lock_disk(disk)?;
        let elsewhere = self
            .devices
            .mounted_elsewhere(&disk.device, &disk.file, disk.writable)?;
        match elsewhere {
            Some(device) => Err(Error::failed_precondition(format!(
                "the filesystem of volume \"{}\" is mounted already through {}, as by another node: a filesystem is \
                 written to through one device at a time; unstage it there first, or use the volume as a raw block device",
                record.volume,
                device.display()
            ))),
            None => Ok(Some(guard)),
        }
    }
}

/// Locks a disk against other nodes on the same machine, until the file is closed, or until the driver ends. A wait in flock(2) cannot
/// be stopped: its thread is left behind, and ends with the process or when the other node unlocks the disk.
fn lock_disk(disk: &Disk) -> Result<File, PathError> {
    let failed = |error: io::Error| PathError::of("lock", &disk.file)(error);
    let file = File::open(&disk.file).map_err(PathError::of("open", &disk.file))?;
    if file.try_lock().is_ok() {
        return Ok(file);
    }
    let (locked_tx, locked) = oneshot::channel();
    thread::spawn(move || locked_tx.send(file.lock().map(|()| file)));
    let locked = futures::executor::block_on(disk.stop.run_until_cancelled(locked));
    match locked {
        Some(Ok(locked)) => locked.map_err(failed),
        Some(Err(_)) | None => Err(failed(io::Error::other("stopped: the driver is ending"))),
    }
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[test]
    fn wait_for_the_lock_of_a_disk_ends_with_the_driver() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let disk = Disk {
            file: path.clone(),
            tree: path.clone(),
            formatting: path.clone(),
            device: path,
            _held: None,
            writable: true,
            lock: None,
            stop: CancellationToken::new(),
        };
        let other_node = lock_disk(&disk).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock_disk(&disk));
            disk.stop.cancel();
            let stopped = waiting.join().unwrap().unwrap_err();
            assert!(
                stopped.source.to_string().contains("driver is ending"),
                "{stopped:?}"
            );
        });
        let disk = Disk {
            stop: CancellationToken::new(),
            ..disk
        };
        drop(other_node);
        lock_disk(&disk).unwrap();
    }
}
