//! NodeUnpublishVolume and NodeUnstageVolume, and clean-up after a crash and at the end of the driver.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::Node;
use super::error::Error;
use super::leftovers;
use super::path_state::foreign;
use super::record::{Progress, Record, Role};
use super::stage_publish::NodeFeatures;
use crate::error_chain;
use crate::node::mount;

// === impl Node ===

impl Node {
    pub(crate) fn knows(&self, volume: &str) -> bool {
        !self.records.of(volume).is_empty()
    }

    pub(crate) fn volumes(&self) -> BTreeSet<String> {
        let records = self.records.all().into_iter();
        records.map(|record| record.volume).collect()
    }

    pub(crate) fn path_of(&self, volume: &str) -> Option<String> {
        self.records.of(volume).pop().map(|record| record.path)
    }

    pub(crate) fn is_inline(&self, volume: &str) -> bool {
        self.records
            .of(volume)
            .iter()
            .any(|record| record.inline.is_some())
    }

    /// Unpublishes a volume from a target, which is removed. Succeeds if the volume is not published there.
    ///
    /// # Guarantees
    /// After an error or a crash, a repeated call continues.
    pub(crate) async fn unpublish(self: &Arc<Self>, volume: &str, target: &str) -> Result<(), Error> {
        match self.records.at(target) {
            Some(record) if record.volume == volume && !record.is_staged() => self.undo(record).await,
            // OK would mean that nothing is mounted there.
            Some(there) => Err(foreign(&there.path)),
            None => {
                self.clear(volume, target).await?;
                self.clear_private(volume).await?;
                self.undo_idle_stage(volume).await
            }
        }
    }

    /// Unstages a volume from a staging path, which remains. Succeeds if the volume is not staged there.
    ///
    /// # Guarantees
    /// Those of [`Node::unpublish`].
    pub(crate) async fn unstage(self: &Arc<Self>, volume: &str, path: &str) -> Result<(), Error> {
        let published = self
            .records
            .of(volume)
            .into_iter()
            .find(|record| !record.is_staged() && record.staging() == path);
        if let Some(record) = published {
            let Record { volume, path, .. } = record;
            let reason = format!("volume \"{volume}\" is still published at {path}: unpublish it first");
            return Err(Error::failed_precondition(reason));
        }
        match self.records.at(path) {
            Some(record) if record.volume == volume && record.is_staged() => self.undo(record).await,
            Some(there) => Err(foreign(&there.path)),
            None => self.unmount_lost(volume, path).await,
        }
    }

    /// Unmounts a volume without record, as after a kill of a process without state directory.
    ///
    /// # Errors
    /// Something else is mounted there.
    async fn unmount_lost(self: &Arc<Self>, volume: &str, path: &str) -> Result<(), Error> {
        if self.is_simulated() {
            return Ok(());
        }
        let (volume, path) = (volume.to_owned(), path.to_owned());
        self.blocking(move |node| {
            let path = Path::new(&path);
            // A link to a staging path is the caller's.
            if mount::is_mount(path)? {
                node.unmount_without_record(&volume, path)?;
            }
            Ok(())
        })
        .await
    }

    /// Unmounts a volume without record, and frees the device that was mounted at the path if a process that has ended had it.
    /// Other devices of a volume with this id may be those of a running driver in another container. Blocks.
    fn unmount_without_record(&self, volume: &str, path: &Path) -> Result<(), Error> {
        let Some(mounted) = mount::source_at(path)? else {
            return Ok(());
        };
        let abandoned = self.abandoned_device(volume, &mounted);
        mount::unmount(path, |mounted| self.is_of_lost(volume, mounted))?;
        match abandoned {
            Some(device) if !leftovers::is_mounted(&device)? => Ok(self.devices.free(&device)?),
            Some(_) | None => Ok(()),
        }
    }

    /// Undoes a record's staging or publishing, and deletes the record last.
    pub(super) async fn undo(self: &Arc<Self>, record: Record) -> Result<(), Error> {
        self.undo_by(record, false).await
    }

    /// Undoes a call that never succeeded; a target with other contents remains.
    pub(super) async fn back_out(self: &Arc<Self>, record: Record) -> Result<(), Error> {
        self.undo_by(record, true).await
    }

    async fn undo_by(self: &Arc<Self>, record: Record, keeps_others: bool) -> Result<(), Error> {
        let down = record.when(Progress::Undoing);
        self.blocking(move |node| {
            node.records.put(&down)?;
            node.leave_path(&down, keeps_others)
        })
        .await?;
        if let Role::Published { staging, ours: true } = &record.role {
            let shared = self.records.of(&record.volume).iter().any(|other| {
                other.path != record.path && other.path != *staging && other.staging() == staging
            });
            if !shared {
                self.undo_private_stage(&record, staging).await?;
            }
        }
        self.blocking(move |node| node.records.remove(&record.path)).await
    }

    /// Unmounts the path of a record. Blocks.
    pub(super) fn unmount(&self, record: &Record) -> Result<(), Error> {
        if self.is_simulated() {
            return Ok(());
        }
        if self.mount_at(record)?.is_some() {
            mount::unmount(Path::new(&record.path), |mounted| self.is_of(record, mounted))?;
        }
        self.end_idle_passthrough(record)
    }

    /// As [`Self::unmount`], and removes the target. One that has other contents is an error, or remains. Blocks.
    fn leave_path(&self, record: &Record, keeps_others: bool) -> Result<(), Error> {
        self.unmount(record)?;
        if record.is_staged() || self.is_simulated() {
            return Ok(());
        }
        match mount::remove_empty(Path::new(&record.path)) {
            // Another user created it meanwhile.
            Err(error) if keeps_others => {
                let (path, error) = (&record.path, error_chain(&error));
                tracing::warn!(path, error, "failed to remove the target path");
                Ok(())
            }
            removed => Ok(removed?),
        }
    }

    /// Restores the path of a failed call and deletes the record. Blocks.
    ///
    /// # Errors
    /// The volume cannot be unmounted; the record remains unfinished.
    pub(super) fn discard(&self, record: &Record) -> Result<(), Error> {
        self.leave_path(record, true)?;
        self.records.remove(&record.path)
    }

    /// Removes a target without record: an empty directory or file that the caller created, or a mount of this volume whose
    /// record is lost.
    ///
    /// # Errors
    /// Something else is mounted or linked there.
    async fn clear(self: &Arc<Self>, volume: &str, target: &str) -> Result<(), Error> {
        if self.is_simulated() {
            return Ok(());
        }
        let (volume, target) = (volume.to_owned(), target.to_owned());
        self.blocking(move |node| {
            let path = Path::new(&target);
            node.unmount_without_record(&volume, path)?;
            Ok(mount::remove_empty(path)?)
        })
        .await
    }

    /// Undoes interrupted calls and deletes records that are obsolete after a reboot. Must run before calls are served. A
    /// failure is logged, and the caller's retry repeats the work.
    pub(crate) async fn recover(self: &Arc<Self>) {
        self.undo_leftovers().await;
        for record in self.records.all() {
            let (path, volume) = (record.path.clone(), record.volume.clone());
            let done = if record.is_done() {
                self.forget_if_gone(record).await
            } else {
                tracing::info!(volume, path, "rolling back an incomplete operation");
                self.back_out(record).await
            };
            if let Err(error) = done {
                tracing::warn!(volume, path, error = error_chain(&error), "cannot be undone yet");
            }
        }
        // Now that all targets are known.
        for record in self.records.all().iter().filter(|record| record.is_staged()) {
            let (path, volume) = (&record.path, &record.volume);
            if let Err(error) = self.undo_idle_stage(volume).await {
                tracing::warn!(volume, path, error = error_chain(&error), "cannot be undone yet");
            }
        }
    }

    /// Undoes what a killed process left in the node's directory of devices, which this process has locked: with a state directory,
    /// passthrough filesystems only.
    async fn undo_leftovers(self: &Arc<Self>) {
        if !self.devices.is_locked() {
            return;
        }
        let undone = self.blocking(|node| {
            let directory = node.devices.directory()?;
            match node.records.are_kept() {
                true => leftovers::undo_passthroughs(&directory),
                false => leftovers::undo(&directory),
            }
        });
        let undone = undone.await;
        match undone {
            Ok(undone) if undone == leftovers::Undone::default() => {}
            Ok(undone) => tracing::info!("undid what an earlier process of this node left: {undone}"),
            Err(error) => tracing::warn!(
                error = error_chain(&error),
                "cannot undo what an earlier process of this node left"
            ),
        }
    }

    async fn forget_if_gone(self: &Arc<Self>, record: Record) -> Result<(), Error> {
        self.blocking(move |node| {
            let path = Path::new(&record.path);
            let is_there = match record.role {
                Role::Staged => node.shows_nothing(&record) || mount::is_mount(path)?,
                // An inline volume exists as long as its target's record.
                Role::Published { .. } => record.inline.is_some() || mount::source_at(path)?.is_some(),
            };
            if !is_there {
                tracing::info!(
                    volume = record.volume,
                    path = record.path,
                    "volume is no longer mounted (node rebooted?); removing its record"
                );
                node.unmount(&record)?;
                node.records.remove(&record.path)?;
            }
            Ok(())
        })
        .await
    }

    /// Detaches the devices of volumes that are not attached any more. Without ControllerPublishVolume, devices of recorded
    /// volumes remain.
    pub(crate) async fn retain_devices(
        self: &Arc<Self>,
        attached: Vec<String>,
        features: NodeFeatures,
    ) -> Result<(), Error> {
        let mut serials: Vec<String> = attached
            .iter()
            .map(|volume| crate::array::serial(volume))
            .collect();
        let records = self.records.all();
        serials.extend(
            records
                .iter()
                .filter(|record| record.inline.is_some() || !features.attaches)
                .map(|record| self.volume_disk_of(record, None).serial),
        );
        self.blocking(move |node| {
            Ok(node
                .devices
                .retain(|serial| serials.iter().any(|wanted| wanted == serial))?)
        })
        .await
    }

    /// Unpublishes and unstages everything.
    ///
    /// # Errors
    /// The last failure; all are logged.
    pub(crate) async fn undo_all(self: &Arc<Self>) -> Result<(), Error> {
        let (staged, published): (Vec<_>, Vec<_>) =
            self.records.all().into_iter().partition(Record::is_staged);
        let mut result = Ok(());
        for record in published.into_iter().chain(staged) {
            let (path, volume) = (record.path.clone(), record.volume.clone());
            if let Err(error) = self.undo(record).await {
                tracing::warn!(
                    volume,
                    path,
                    error = error_chain(&error),
                    "something is left behind"
                );
                result = Err(error);
            }
        }
        result
    }

    /// Unpublishes and unstages everything and detaches the devices, at the end of a process without state directory. With
    /// one, pods continue to use their volumes.
    pub(crate) async fn leave(self: &Arc<Self>, features: NodeFeatures) {
        // Those of calls that were running.
        self.abort_passthroughs().await;
        if self.records.are_kept() {
            return;
        }
        self.undo_all().await.ok();
        if let Err(error) = self.retain_devices(Vec::new(), features).await {
            tracing::warn!(error = error_chain(&error), "devices are left behind");
        }
    }
}
