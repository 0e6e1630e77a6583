//! Targets of volumes that the caller does not stage: those of a driver without NODE_STAGE_UNSTAGE_VOLUME, and inline
//! volumes. The driver stages them at a path of its own. Invariants:
//! - A private stage exists only while a record of one of its targets exists.
//! - The record of a target is written before its stage is created.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::compatibility::Compatibility;
use super::error::Error;
use super::record::{Progress, Record, Role};
use super::stage_publish::{NodeFeatures, text};
use super::{ArrayVolume, Node, VolumeDisk};
use crate::error_chain;
use crate::node::mount;
use crate::store::PathError;
use crate::store::volume_files::file_name;

// === impl Node ===

impl Node {
    /// Creates an inline volume and publishes it.
    ///
    /// # Guarantees
    /// Those of [`Node::stage`]; after a failed or interrupted call the volume is deleted.
    pub(crate) async fn publish_inline(self: &Arc<Self>, record: &Record) -> Result<(), Error> {
        let record = self.privately_staged(record)?;
        let compatibility = self.compare(&record)?;
        let volume_disk = self.volume_disk_of(&record, None);
        let work = async {
            self.volume_files
                .note_target(&volume_disk.file_id, &record.path)
                .await?;
            self.attach(&volume_disk).await?;
            let stage = staged_for(&record);
            self.make_private_staging(&stage.path).await?;
            self.stage_device(&stage, &volume_disk, self.compare(&stage)?)
                .await?;
            self.stage_device(&record, &volume_disk, compatibility).await
        };
        self.all_or_nothing(&record, compatibility, work).await
    }

    /// Publishes a volume that the driver stages, or creates, for its targets: either all steps are completed or all are
    /// undone.
    ///
    /// # Guarantees
    /// The record is written first; the next call undoes an unfinished one.
    pub(super) async fn all_or_nothing(
        self: &Arc<Self>,
        record: &Record,
        compatibility: Compatibility,
        work: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        if compatibility == Compatibility::Proceed && !self.is_simulated() {
            let begun = record.clone();
            self.blocking(move |node| {
                node.claim(&begun)?;
                let mounted = node.records.at(&begun.path).and_then(|known| known.mount_source);
                node.records.put(&Record {
                    mount_source: mounted,
                    ..begun
                })
            })
            .await?;
        }
        let result = work.await;
        let is_done = || self.records.at(&record.path).is_some_and(|left| left.is_done());
        if result.is_err() && !is_done() {
            let (volume, path) = (&record.volume, &record.path);
            // The stored record also has the mount source.
            let known = self.records.at(&record.path).unwrap_or_else(|| record.clone());
            if let Err(error) = self.back_out(known).await {
                tracing::warn!(volume, path, error = error_chain(&error), "cannot be undone yet");
            }
        }
        result
    }

    pub(super) async fn stage_for(
        self: &Arc<Self>,
        record: &Record,
        view: &ArrayVolume,
        features: NodeFeatures,
    ) -> Result<(), Error> {
        let stage = staged_for(record);
        let volume_disk = self.reachable(&stage, view, features).await?;
        self.make_private_staging(&stage.path).await?;
        match self.records.at(&stage.path) {
            // Another target of the same volume staged it with its own arguments.
            Some(there) if there.is_done() && there.volume == stage.volume => {
                self.stage_device(&there, &volume_disk, Compatibility::Repeat)
                    .await
            }
            Some(_) | None => {
                self.stage_device(&stage, &volume_disk, self.compare(&stage)?)
                    .await
            }
        }
    }

    async fn make_private_staging(self: &Arc<Self>, path: &str) -> Result<(), Error> {
        if self.is_simulated() {
            return Ok(());
        }
        let path = PathBuf::from(path);
        self.blocking(move |_| {
            // Not flushed: its mount does not survive a reboot either.
            Ok(std::fs::create_dir_all(&path).map_err(PathError::of("create", &path))?)
        })
        .await
    }

    /// Unstages a privately staged volume without recorded targets, as after a reboot.
    pub(super) async fn undo_idle_stage(self: &Arc<Self>, volume: &str) -> Result<(), Error> {
        let of_volume = self.records.of(volume);
        if of_volume.is_empty() {
            return Ok(());
        }
        let staging = text(&self.private_staging(volume)?);
        let (stages, targets): (Vec<_>, Vec<_>) = of_volume
            .into_iter()
            .filter(|record| record.staging() == staging)
            .partition(Record::is_staged);
        match stages.first() {
            Some(stage) if targets.is_empty() => self.undo_private_stage(stage, &staging).await,
            Some(_) | None => Ok(()),
        }
    }

    pub(super) async fn undo_private_stage(
        self: &Arc<Self>,
        record: &Record,
        staging: &str,
    ) -> Result<(), Error> {
        let volume_disk = self.volume_disk_of(record, None);
        let (path, file_id) = (staging.to_owned(), volume_disk.file_id.clone());
        let inline = record.inline.is_some();
        self.blocking(move |node| {
            if let Some(staged) = node.records.at(&path) {
                node.unmount(&staged)?;
            }
            if !node.is_simulated() {
                mount::remove_empty(Path::new(&path))?;
            }
            node.records.remove(&path)?;
            if inline {
                node.devices.detach(&volume_disk.serial)?;
            }
            Ok(())
        })
        .await?;
        if inline {
            self.volume_files.delete(&file_id).await?;
        }
        Ok(())
    }

    /// Deletes inline volumes without record that an earlier driver process created, as after a kill of a process without
    /// state directory. One that is still mounted remains until the next start. Must run after recovery, before an inline volume
    /// is created, and only in the array's media directory.
    pub(crate) async fn sweep_ephemeral(self: &Arc<Self>) {
        if let Err(error) = self.try_sweep_ephemeral().await {
            tracing::warn!(
                error = error_chain(&error),
                "files of pods' volumes are left behind"
            );
        }
    }

    async fn try_sweep_ephemeral(self: &Arc<Self>) -> Result<(), Error> {
        let recorded = self.records.all().into_iter();
        let recorded: BTreeSet<String> = recorded.map(|record| file_name(&record.volume)).collect();
        for volume in self.volume_files.sweep_ephemeral(&self.home).await? {
            if !recorded.contains(&volume)
                && let Err(error) = self.remove_lost_ephemeral(&volume).await
            {
                let error = error_chain(&error);
                tracing::warn!(volume, error, "files of a pod's volume are left behind");
            }
        }
        Ok(())
    }

    /// Deletes an inline volume without record, by the name of its files, unless it is still mounted.
    async fn remove_lost_ephemeral(self: &Arc<Self>, volume: &str) -> Result<(), Error> {
        let volume_disk = VolumeDisk::of_ephemeral(&self.home, volume.to_owned());
        let (file_id, serial) = (volume_disk.file_id.clone(), volume_disk.serial.clone());
        let (disk, target) = (
            self.volume_files.disk(&file_id)?,
            self.volume_files.target(&file_id)?,
        );
        let is_used = self.blocking(move |node| {
            // A device that is in use is detached by its last user.
            node.devices.detach(&serial)?;
            let mounted = target.map(|target| mount::source_at(&target));
            let mounted = mounted.transpose()?.flatten();
            let is_mounted = mounted.is_some_and(|mounted| node.is_of_volume_disk(&volume_disk, &mounted));
            Ok(is_mounted || !node.devices.all_of(&disk)?.is_empty())
        });
        if is_used.await? {
            tracing::warn!(volume, "a pod's volume is on no record and still in use");
            return Ok(());
        }
        self.volume_files.delete(&file_id).await?;
        tracing::info!(volume, "removed the files of a pod's volume that is on no record");
        Ok(())
    }

    /// Removes the private stage and the inline volume's files of a volume without record.
    pub(super) async fn clear_private(self: &Arc<Self>, volume: &str) -> Result<(), Error> {
        if self.is_simulated() || !self.records.of(volume).is_empty() {
            return Ok(());
        }
        let (staging, volume_id) = (self.private_staging(volume)?, volume.to_owned());
        self.blocking(move |node| {
            mount::unmount(&staging, |mounted| node.is_of_lost(&volume_id, mounted))?;
            Ok(mount::remove_empty(&staging)?)
        })
        .await?;
        let file_id = self.ephemeral_disk(volume).file_id;
        match self.volume_files.is_kept() && self.volume_files.exists(&file_id)? {
            true => self.remove_lost_ephemeral(file_id.id()).await,
            false => Ok(()),
        }
    }

    /// The record of a target whose volume the driver stages itself.
    pub(super) fn privately_staged(&self, record: &Record) -> Result<Record, Error> {
        let staging = text(&self.private_staging(&record.volume)?);
        Ok(Record {
            role: Role::Published { staging, ours: true },
            ..record.clone()
        })
    }

    pub(super) fn private_staging(&self, volume: &str) -> Result<PathBuf, Error> {
        let directory = self.volume_files.directory()?.join("staging");
        Ok(directory.join(file_name(&self.home)).join(file_name(volume)))
    }
}

fn staged_for(record: &Record) -> Record {
    Record {
        path: record.staging().to_owned(),
        role: Role::Staged,
        readonly: false,
        mount_source: None,
        progress: Progress::Doing,
        ..record.clone()
    }
}
