//! Operations of the array together with the files of volumes and snapshots.
//!
//! Their order makes crashes safe: files of a new object exist before the array has the object, and files of a deleted
//! object are removed after the array has deleted it. Whatever a crash leaves belongs to no object: the next start
//! removes unfinished copies and moves complete files to `orphaned/`.
//!
//! A snapshot exists at once, and is ready to use after the configured delay.

use std::sync::Arc;
use std::time::Duration;

use tokio::time;

use crate::array::{
    self, Array, CreateGroupParams, CreateOutcome, CreateSnapshotParams, CreateVolumeParams, GroupIds,
    Members, SizeRange, Snapshot, SnapshotId, Source, Spec, Timing,
};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Guard, Key, LockMode, Scope};
use crate::driver::reset::Copies;
use crate::node;
use crate::store;
use crate::store::volume_files::{FileId, SweepReport};

// === impl Driver ===

impl Driver {
    /// Creates a volume with its content, or finds the one created by an earlier equal request.
    pub(crate) async fn create_volume(&self, wanted: &CreateVolumeParams) -> Result<Arc<Spec>, Error> {
        let validate = |array: &Array| {
            let outcome = array.validate_create(wanted)?;
            Ok((outcome, array.volume_id(&wanted.name)))
        };
        let (bytes, id) = match self.store.read(validate).await? {
            (CreateOutcome::Existing(spec), _) => return Ok(spec),
            (CreateOutcome::New(bytes), id) => (bytes, id),
        };
        let files = FileId::Volume(id.to_string());
        let copies = self.reset_scope.copying(vec![files.clone()]);
        match &wanted.source {
            Some(Source::Snapshot(id)) => {
                let from = FileId::Snapshot(id.to_string());
                self.volume_files.copy(&from, &files, bytes).await?;
            }
            Some(Source::Volume(id)) => self.copy_volume(id.as_str(), &files, bytes).await?,
            // A new volume is empty, whatever files exist under its id: ids repeat after a reset.
            None => self.volume_files.delete(&files).await?,
        }
        let create = |array: &mut Array| array.create_volume_as(wanted, id);
        self.change_with(copies, create).await
    }

    pub(crate) async fn delete_volume(&self, volume: &str) -> Result<(), Error> {
        let _unused = self.unused(volume).await?;
        self.store.change(|array| array.delete_volume(volume)).await?;
        self.discard(&FileId::Volume(volume.to_owned())).await;
        Ok(())
    }

    pub(crate) async fn expand_volume(
        &self,
        volume: &str,
        range: SizeRange,
        online: bool,
    ) -> Result<u64, Error> {
        let expand = |array: &mut Array| array.expand_volume(volume, range, online);
        let bytes = self.store.change(expand).await?;
        // Repeated with the call, since the earlier one may have been interrupted here.
        self.volume_files
            .grow(&FileId::Volume(volume.to_owned()), bytes)
            .await?;
        Ok(bytes)
    }

    /// Creates a snapshot, or finds the one created by an earlier equal request.
    pub(crate) async fn create_snapshot(
        &self,
        wanted: &CreateSnapshotParams,
    ) -> Result<Arc<Snapshot>, Error> {
        let validate = |array: &Array| {
            let existing = array.find_snapshot(wanted)?;
            let bytes = array
                .volume(&wanted.source)
                .map(|volume| volume.spec.capacity_bytes);
            Ok((existing, array.snapshot_id(&wanted.name), bytes.unwrap_or(0)))
        };
        let (id, bytes) = match self.store.read(validate).await? {
            (Some(existing), ..) => return Ok(existing),
            (None, id, bytes) => (id, bytes),
        };
        let copy = FileId::Snapshot(id.to_string());
        let timing = self.timing();
        let copies = self.reset_scope.copying(vec![copy.clone()]);
        self.copy_volume(&wanted.source, &copy, bytes).await?;
        let create = |array: &mut Array| array.create_snapshot(wanted, id, timing);
        let snapshot = self.change_with(copies, create).await?;
        self.finish_later(timing.delay, [&snapshot]);
        Ok(snapshot)
    }

    pub(crate) async fn delete_snapshot(&self, snapshot: &str) -> Result<(), Error> {
        let delete = |array: &mut Array| array.delete_snapshot(snapshot);
        self.store.change(delete).await?;
        self.discard(&FileId::Snapshot(snapshot.to_owned())).await;
        Ok(())
    }

    /// Creates a group of snapshots, or finds the one created by an earlier equal request.
    ///
    /// # Errors
    /// The array refuses, or a copy fails; then no snapshot of the group exists.
    pub async fn create_group(&self, wanted: &CreateGroupParams) -> Result<Members, Error> {
        let validate = |array: &Array| {
            let existing = array.find_group(wanted)?;
            Ok((existing, array.group_ids(wanted)))
        };
        let ids = match self.store.read(validate).await? {
            (Some(existing), _) => return Ok(existing),
            (None, ids) => ids,
        };
        let timing = self.timing();
        let mut copies = self.reset_scope.copying(Vec::with_capacity(ids.members.len()));
        if let Err(error) = self.copy_members(&ids, &mut copies.files).await {
            for copy in &copies.files {
                self.discard(copy).await;
            }
            copies.settle();
            return Err(error);
        }
        let create = |array: &mut Array| array.create_group(wanted, ids, timing);
        let members = self.change_with(copies, create).await?;
        self.finish_later(timing.delay, &members.snapshots);
        Ok(members)
    }

    /// Deletes a group with its snapshots, which the caller must list.
    pub(crate) async fn delete_group(&self, group: &str, snapshots: &[String]) -> Result<(), Error> {
        let delete = |array: &mut Array| array.delete_group(group, snapshots);
        for snapshot in self.store.change(delete).await? {
            self.discard(&FileId::Snapshot(snapshot.to_string())).await;
        }
        Ok(())
    }

    /// Waits for the additional duration of attach and detach, from the volume's mutable parameters.
    pub(crate) async fn apply_qos_latency(&self, volume: &str) {
        let latency = self.store.peek(|array| array.latency(volume));
        if !latency.is_zero() {
            time::sleep(latency).await;
        }
    }

    /// Removes leftovers of interrupted copies, and moves aside volume files that the array does not know: those of a crash
    /// and, for an array in memory, all but those of initial volumes. Only for the process with the array, before any
    /// operation.
    pub(crate) async fn sweep(&self) {
        if !self.has_array() {
            return;
        }
        match self.volume_files.sweep(self.store.peek(FileId::all_of)).await {
            Ok(SweepReport {
                unfinished: 0,
                orphaned: 0,
            }) => {}
            Ok(SweepReport { unfinished, orphaned }) => {
                tracing::info!(
                    unfinished,
                    orphaned,
                    "removed unfinished volume files and moved orphaned ones aside"
                );
            }
            Err(error) => {
                tracing::warn!(error = %crate::error_chain(&error), "orphaned volume files stay where they are");
            }
        }
    }

    /// Checks that a volume without attachments is not in use on this process's node, and keeps it unused while the returned
    /// guard lives. Nodes in other processes attach the volumes that they use.
    async fn unused(&self, volume: &str) -> Result<Option<Vec<Guard>>, Error> {
        let is_published_explicitly =
            self.node_features().attaches || self.store.peek(|array| array.deletes_in_use(volume));
        let Some(node) = self.node.as_ref().filter(|_| !is_published_explicitly) else {
            return Ok(None);
        };
        let held = self
            .lock_on_node(Scope::Operation, LockMode::Shared, volume)
            .await?;
        match node.path_of(volume) {
            Some(path) => Err(node::Error::in_use(volume, &path).into()),
            None => Ok(Some(held)),
        }
    }

    /// Locks a volume against node calls while the returned guard lives.
    pub(crate) async fn lock_on_node(
        &self,
        scope: Scope,
        mode: LockMode,
        volume: &str,
    ) -> Result<Vec<Guard>, Error> {
        let keys = vec![(Key::OnNode(volume.to_owned()), mode)];
        Ok(self.locks.lock(scope, keys).await?)
    }

    async fn copy_members(&self, ids: &GroupIds, copies: &mut Vec<FileId>) -> Result<(), Error> {
        for (volume, snapshot) in &ids.members {
            let size = |array: &Array| Ok(array.volume(volume.as_str())?.spec.capacity_bytes);
            let bytes = self.store.read(size).await?;
            let copy = FileId::Snapshot(snapshot.to_string());
            copies.push(copy.clone());
            self.copy_volume(volume.as_str(), &copy, bytes).await?;
        }
        Ok(())
    }

    /// Makes snapshots ready after their delay. The wall clock, which may step, has no part in it; the next start calls this
    /// again for the rest of the time.
    fn finish_later<'a>(&self, time: Duration, snapshots: impl IntoIterator<Item = &'a Arc<Snapshot>>) {
        let copying = snapshots.into_iter().filter(|snapshot| !snapshot.is_ready());
        let ids: Vec<SnapshotId> = copying.map(|snapshot| snapshot.id.clone()).collect();
        if ids.is_empty() {
            return;
        }
        let (store, replaced) = (self.store.clone(), self.reset_scope.copies());
        let finish = async move {
            time::sleep(time).await;
            if let Err(error) = store.change(|array| Ok(array.finish_snapshots(&ids))).await {
                tracing::warn!(error = %crate::error_chain(&error), "snapshots are not made ready");
            }
        };
        self.copies
            .spawn(async move { replaced.run_until_cancelled(finish).await });
    }

    /// Continues the copies of an earlier process.
    pub(crate) fn resume_copies(&self) {
        let now = self.settings.clock.now();
        let snapshots: Vec<Arc<Snapshot>> = self.store.peek(|array| array.snapshots().cloned().collect());
        for snapshot in snapshots {
            self.finish_later(snapshot.time_left(now).unwrap_or_default(), [&snapshot]);
        }
    }

    /// Copies a volume. Warns of a copy that may be inconsistent because a node may have written to the volume meanwhile.
    async fn copy_volume(&self, volume: &str, copy: &FileId, bytes: u64) -> Result<(), Error> {
        let from = FileId::Volume(volume.to_owned());
        let copied = self.volume_files.copy(&from, copy, bytes).await?;
        let is_attached = |array: &Array| {
            array
                .volume(volume)
                .is_ok_and(|found| !found.attachments.is_empty())
        };
        if copied > 0 && self.store.peek(is_attached) {
            tracing::warn!(
                volume,
                "copied an attached volume: the copy has no write that was not flushed, and has writes during the copy out \
                 of order unless copies share blocks here; stop the writers first"
            );
        }
        Ok(())
    }

    fn timing(&self) -> Timing {
        Timing {
            now: self.settings.clock.now(),
            delay: self.settings.config.snapshot_delay,
        }
    }

    /// Changes the array to include these copies, or removes the copies that it refuses. If the result is unknown, the array may
    /// have stored the change, so the files remain; the next start moves those without an object to `orphaned/`.
    async fn change_with<T>(
        &self,
        copies: Copies<'_>,
        act: impl FnOnce(&mut Array) -> Result<array::Done<T>, array::Error>,
    ) -> Result<T, Error> {
        let changed = self.store.change(act).await;
        if let Err(store::Error::Refused(_)) = &changed {
            for copy in &copies.files {
                self.discard(copy).await;
            }
        }
        copies.settle();
        Ok(changed?)
    }

    /// Removes files without an object; after a failure the next start removes them, or moves them to `orphaned/` if their
    /// removal has not begun.
    pub(super) async fn discard(&self, file_id: &FileId) {
        if let Err(error) = self.volume_files.delete(file_id).await {
            tracing::warn!(id = file_id.id(), error = %crate::error_chain(&error), "failed to remove volume files");
        }
    }
}

#[cfg(test)]
mod tests;
