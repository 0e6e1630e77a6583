//! Targets of volumes that no caller stages: those of a driver without NODE_STAGE_UNSTAGE_VOLUME, and those of
//! volumes that are made for one target. We stage them ourselves. Invariants:
//! - Such a stage is there only while a target of it is on record, so that it goes with the last one.
//! - The record of a target is there before its stage.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::compatibility::Compatibility;
use super::error::Error;
use super::record::{Progress, Record, Role};
use super::stage_publish::{InlineVolume, NodeFeatures, Publish};
use super::stage_publish::{published, text};
use super::{Node, View, VolumeDisk};
use crate::error_chain;
use crate::store::OpenError;
use crate::store::volume_files::NodeNote;

// === impl Node ===

impl Node {
    /// Makes a volume for one target and publishes it there.
    ///
    /// # Guarantees
    /// As for [`Node::stage`]; a volume of a call that failed or was cut off is gone.
    pub(crate) async fn publish_inline(
        self: &Arc<Self>,
        wish: Publish,
        inline: InlineVolume,
    ) -> Result<(), Error> {
        let staging = text(&self.private_staging(&wish.volume)?);
        let record = published(wish, staging, true, Some(inline.bytes));
        let verdict = self.compare(&record)?;
        let unit = self.unit_of(&record, None);
        let brought = async {
            let target = &record.path;
            self.volume_files
                .note_node(&unit.file_id, &self.home, target)
                .await?;
            self.attach(&unit).await?;
            let stage = staged_for(&record);
            self.make_private_staging(&stage.path).await?;
            self.stage_device(&stage, &unit, self.compare(&stage)?).await?;
            self.stage_device(&record, &unit, verdict).await
        };
        self.all_or_nothing(&record, verdict, brought).await
    }

    /// Publishes a volume that is staged, or even made, for its targets alone: what is done for this one is
    /// done whole or not at all.
    ///
    /// # Guarantees
    /// The record is written first: a call that finds it unfinished undoes all of it.
    pub(super) async fn all_or_nothing(
        self: &Arc<Self>,
        record: &Record,
        verdict: Compatibility,
        brought: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        if verdict == Compatibility::Proceed && !self.is_simulated() {
            let begun = record.clone();
            self.blocking(move |node| {
                node.claim(&begun)?;
                let shown = node.records.at(&begun.path).and_then(|known| known.shown);
                node.records.put(&Record { shown, ..begun })
            })
            .await?;
        }
        let result = brought.await;
        let is_done = || self.records.at(&record.path).is_some_and(|left| left.is_done());
        if result.is_err() && !is_done() {
            let (volume, path) = (&record.volume, &record.path);
            // With what the path shows, which the wish does not know.
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
        view: &View,
        ways: NodeFeatures,
    ) -> Result<(), Error> {
        let stage = staged_for(record);
        let unit = self.reachable(&stage, view, ways).await?;
        self.make_private_staging(&stage.path).await?;
        match self.records.at(&stage.path) {
            // Another target of the same volume brought it up, in its own way.
            Some(there) if there.is_done() && there.volume == stage.volume => {
                self.stage_device(&there, &unit, Compatibility::Repeat).await
            }
            Some(_) | None => self.stage_device(&stage, &unit, self.compare(&stage)?).await,
        }
    }

    async fn make_private_staging(self: &Arc<Self>, path: &str) -> Result<(), Error> {
        if self.is_simulated() {
            return Ok(());
        }
        let path = PathBuf::from(path);
        self.blocking(move |_| {
            std::fs::create_dir_all(&path).map_err(|source| {
                Error::State(OpenError::Io {
                    act: "create",
                    path,
                    source,
                })
            })
        })
        .await
    }

    /// Takes away what we staged ourselves for targets of which none is on record any more, as after a reboot.
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
        let unit = self.unit_of(record, None);
        let (path, file_id) = (staging.to_owned(), unit.file_id.clone());
        let inline = record.inline.is_some();
        self.blocking(move |node| {
            if let Some(staged) = node.records.at(&path) {
                node.withdraw(&staged)?;
            }
            if !node.is_simulated() {
                node.mounter.remove(Path::new(&path))?;
            }
            node.records.remove(&path)?;
            if inline {
                node.devices.detach(&unit.serial)?;
            }
            Ok(())
        })
        .await?;
        if inline {
            self.volume_files.delete(&file_id).await?;
        }
        Ok(())
    }

    /// Removes volumes of pods that a process before this one made here and that are on no record, as after a kill of a
    /// process that keeps none. One that is still mounted stays until the next start. Call it before calls are
    /// answered, and after the records are in order.
    pub(super) async fn sweep_ephemeral(self: &Arc<Self>) -> Result<(), Error> {
        for note in self.volume_files.ephemeral_of(&self.home).await? {
            if self.records.of(&note.volume).is_empty() {
                self.remove_lost_ephemeral(note).await?;
            }
        }
        Ok(())
    }

    /// Removes a pod's volume that is on no record, unless it is still mounted or its target shows it.
    async fn remove_lost_ephemeral(self: &Arc<Self>, note: NodeNote) -> Result<(), Error> {
        let NodeNote { volume, target, .. } = note;
        let unit = VolumeDisk::of_ephemeral(&volume);
        let (id, serial, disk) = (
            volume.clone(),
            unit.serial.clone(),
            self.volume_files.disk(&unit.file_id)?,
        );
        let is_used = self.blocking(move |node| {
            // One that is in use goes with its last user.
            node.devices.detach(&serial)?;
            let shown = target.map(|target| node.mounter.source_at(&target)).transpose()?;
            let is_shown = shown.flatten().is_some_and(|shown| node.is_of_lost(&id, &shown));
            Ok(is_shown || !node.devices.all_of(&disk)?.is_empty())
        });
        if is_used.await? {
            tracing::warn!(volume, "a pod's volume is on no record and still in use");
            return Ok(());
        }
        self.volume_files.delete(&unit.file_id).await?;
        tracing::info!(volume, "removed the files of a pod's volume that is on no record");
        Ok(())
    }

    /// Removes what the driver itself made for the targets of a volume that is on no record: the stage, and the files of
    /// a pod's volume.
    pub(super) async fn clear_private(self: &Arc<Self>, volume: &str) -> Result<(), Error> {
        if self.is_simulated() || !self.records.of(volume).is_empty() {
            return Ok(());
        }
        let (staging, unit) = (self.private_staging(volume)?, volume.to_owned());
        self.blocking(move |node| {
            node.mounter
                .unmount(&staging, |shown| node.is_of_lost(&unit, shown))?;
            Ok(node.mounter.remove(&staging)?)
        })
        .await?;
        let ephemeral = self.volume_files.ephemeral_of(&self.home).await?;
        match ephemeral.into_iter().find(|note| note.volume == volume) {
            Some(note) => self.remove_lost_ephemeral(note).await,
            None => Ok(()),
        }
    }

    /// Where volumes without a staging path are staged.
    pub(super) fn private_staging(&self, volume: &str) -> Result<PathBuf, Error> {
        let folder = crate::store::volume_files::file_name(&self.home);
        let directory = self.volume_files.directory()?.join("staging").join(folder);
        Ok(directory.join(crate::store::volume_files::file_name(volume)))
    }
}

/// The stage that we make ourselves for a target.
fn staged_for(record: &Record) -> Record {
    Record {
        path: record.staging().to_owned(),
        role: Role::Staged,
        readonly: false,
        shown: None,
        progress: Progress::Doing,
        ..record.clone()
    }
}
