//! The data of volumes and snapshots: one directory for each, with a sparse file as the disk and, if disks cannot be
//! mounted, a directory tree that emulates its filesystem.
//!
//! The array only counts bytes; it does not know these files. Invariants:
//! - A volume that was never written has no file, and neither do its copies.
//! - Files are created atomically: a copy is written under a temporary name next to the target and renamed to it.
//! - A kept directory has a marker that names its array, and a lock while that array's process runs.
//! - Files of an array in memory are in a private directory that is removed with the driver; those of a persistent array
//!   are in its state directory, or in a directory that several processes share.
//!
//! All work runs on blocking threads. It holds the directory's lock, and completes even if its caller is dropped, except for copies
//! and scans, which are stopped then.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::store::{PathError, durable};

pub(crate) use self::copy::{SweepReport, paths_in};
pub(crate) use self::extent::{BLOCK, Extent, is_blank};
pub use self::file_id::FileId;
pub(crate) use self::file_id::{FILESYSTEM, file_name};
pub use self::ownership::ClaimError;
pub(crate) use self::ownership::Owner;

use self::file_id::{DISK, EPHEMERAL, TARGET, TREE, UNFINISHED};
use self::location::{FilesLocation, PrivateFiles};
pub(crate) use self::private::{AbandonedDir, DEVICES, Process, SOCKETS, has_owner, private_part};

mod copy;
mod extent;
mod file_id;
mod location;
mod ownership;
mod private;
mod tree_copy;

/// Mark of a disk that is being formatted: its content was written by the driver and may be overwritten.
const FORMATTING: &str = "formatting";

/// The volume files of a driver. Clones share them.
#[derive(Clone, Debug)]
pub struct VolumeFiles {
    location: Arc<FilesLocation>,
    work: TaskTracker,
    /// Stops copies and scans.
    stop: CancellationToken,
}

// === impl VolumeFiles ===

impl VolumeFiles {
    /// Files in a permanent directory, created on first use.
    pub fn kept(directory: PathBuf) -> Self {
        Self::at(FilesLocation::Persistent {
            directory,
            lock: Mutex::default(),
        })
    }

    /// Files in a private temporary directory, which [`VolumeFiles::close`] removes.
    pub(crate) fn private() -> Self {
        Self::at(FilesLocation::Private(Mutex::new(PrivateFiles::Unused)))
    }

    fn at(location: FilesLocation) -> Self {
        Self {
            location: Arc::new(location),
            work: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Stops copies and scans, and waits until all blocking tasks have ended, also those whose callers were dropped. No task may
    /// be started meanwhile.
    pub(crate) async fn finish(&self) {
        self.stop.cancel();
        self.work.close();
        self.work.wait().await;
    }

    /// Waits until no task runs.
    pub(crate) async fn settle(&self) {
        self.work.close();
        self.work.wait().await;
        self.work.reopen();
    }

    /// No files, for an array within a simulation.
    pub(crate) fn nowhere() -> Self {
        Self::at(FilesLocation::Nowhere)
    }

    /// Whether the files outlive the driver.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept_directory().is_some()
    }

    /// The directory of files that outlive the driver; it may not exist.
    pub(crate) fn kept_directory(&self) -> Option<&Path> {
        match &*self.location {
            FilesLocation::Persistent { directory, .. } => Some(directory),
            FilesLocation::Private(_) | FilesLocation::Nowhere => None,
        }
    }

    pub(crate) fn is_nowhere(&self) -> bool {
        matches!(*self.location, FilesLocation::Nowhere)
    }

    /// Creates the disk if it does not exist, and extends it to at least `bytes`. Returns its path.
    pub async fn ensure(&self, file_id: &FileId, bytes: u64) -> Result<PathBuf, PathError> {
        self.work(file_id, move |directory, _| {
            // Not flushed: an empty volume is created again.
            fs::create_dir_all(directory).map_err(PathError::of("create", directory))?;
            let disk = directory.join(DISK);
            extend(&disk, bytes, true)?;
            Ok(disk)
        })
        .await
    }

    /// Extends the disk to `bytes` if it exists and is shorter.
    pub(crate) async fn grow(&self, file_id: &FileId, bytes: u64) -> Result<(), PathError> {
        if self.is_nowhere() {
            return Ok(());
        }
        self.work(file_id, move |directory, _| {
            extend(&directory.join(DISK), bytes, false)
        })
        .await
    }

    /// Replaces `to` by a copy of `from`, extended to at least `bytes`, and returns the number of copied bytes without holes.
    /// Copies are reflinks where the filesystem supports them, and keep holes otherwise. A volume without file is copied as one
    /// without file.
    ///
    /// # Guarantees
    /// After a crash `to` is unchanged, complete or absent, never partial.
    pub async fn copy(&self, from: &FileId, to: &FileId, bytes: u64) -> Result<u64, PathError> {
        if self.is_nowhere() {
            return Ok(0);
        }
        let from = self.path(from)?;
        let sync = self.is_kept();
        self.work(to, move |to, stop| copy::replace(&from, to, bytes, sync, stop))
            .await
    }

    /// Removes the files; succeeds if they do not exist.
    pub async fn delete(&self, file_id: &FileId) -> Result<(), PathError> {
        if self.is_nowhere() {
            return Ok(());
        }
        self.work(file_id, |directory, _| copy::remove(directory)).await
    }

    /// Removes leftovers of interrupted copies and deletions, and moves files that are not in `known` into `orphaned`. Only in a claimed
    /// directory, before any operation.
    pub(crate) async fn sweep(&self, known: Vec<FileId>) -> Result<SweepReport, PathError> {
        let FilesLocation::Persistent { directory, lock } = &*self.location else {
            return Ok(SweepReport::default());
        };
        if crate::lock(lock).is_none() {
            return Ok(SweepReport::default());
        }
        let directory = directory.clone();
        self.blocking(move |_| copy::sweep(&directory, &known)).await
    }

    /// Removes leftovers of interrupted deletions of a node's ephemeral volumes, and returns the names of the others' files. Only for
    /// the process that has locked the node's devices.
    pub(crate) async fn sweep_ephemeral(&self, node: &str) -> Result<Vec<String>, PathError> {
        if !self.is_kept() {
            return Ok(Vec::new());
        }
        let folder = self.directory()?.join(EPHEMERAL).join(file_name(node));
        self.blocking(move |_| {
            let mut names = Vec::new();
            for path in paths_in(&folder)? {
                if copy::is_unfinished(&path) {
                    copy::remove_all(&path)?;
                    continue;
                }
                let name = path.file_name().and_then(|name| name.to_str());
                let name = name.filter(|name| !name.starts_with(UNFINISHED));
                names.extend(name.map(str::to_owned));
            }
            Ok(names)
        })
        .await
    }

    /// The first `limit` extents of the disk that are allocated, or that differ from those of `base`: sorted, in whole [`BLOCK`]s, from the
    /// first one that ends after the start of the block `from`. A volume without file has none.
    pub(crate) async fn extents(
        &self,
        base: Option<&FileId>,
        target: &FileId,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Extent>, PathError> {
        if self.is_nowhere() {
            return Ok(Vec::new());
        }
        let base = base.map(|base| self.disk(base)).transpose()?;
        self.work(target, move |directory, stop| {
            let (disk, from) = (directory.join(DISK), from - from % BLOCK);
            let found = match base {
                None => extent::allocated(&disk, from, limit, stop),
                Some(base) => extent::changed(&base, &disk, from, limit, stop),
            };
            found.map_err(PathError::of("read", &disk))
        })
        .await
    }

    /// Notes the target of an ephemeral volume, before it is created.
    pub(crate) async fn note_target(&self, file_id: &FileId, target: &str) -> Result<(), PathError> {
        if !self.is_kept() {
            return Ok(());
        }
        let target = PathBuf::from(target);
        self.work(file_id, move |directory, _| {
            let note = directory.join(TARGET);
            let noted = || {
                durable::create_dir_all(directory)?;
                if let Err(error) = fs::remove_file(&note)
                    && error.kind() != ErrorKind::NotFound
                {
                    return Err(error);
                }
                std::os::unix::fs::symlink(&target, &note)?;
                durable::sync_directory(directory)
            };
            noted().map_err(PathError::of("note the target in", &note))
        })
        .await
    }

    /// The noted target of an ephemeral volume, if any.
    pub(crate) fn target(&self, file_id: &FileId) -> Result<Option<PathBuf>, PathError> {
        Ok(fs::read_link(self.path(file_id)?.join(TARGET)).ok())
    }

    /// Whether the disk has a file.
    pub fn exists(&self, file_id: &FileId) -> Result<bool, PathError> {
        Ok(self.path(file_id)?.join(DISK).exists())
    }

    /// The path of the disk, which may not exist.
    pub fn disk(&self, file_id: &FileId) -> Result<PathBuf, PathError> {
        Ok(self.path(file_id)?.join(DISK))
    }

    /// The path of the directory that emulates the filesystem; it may not exist.
    pub fn tree(&self, file_id: &FileId) -> Result<PathBuf, PathError> {
        Ok(self.path(file_id)?.join(TREE))
    }

    /// Path of the mark that the disk is being formatted.
    pub(crate) fn formatting_mark(&self, file_id: &FileId) -> Result<PathBuf, PathError> {
        Ok(self.path(file_id)?.join(FORMATTING))
    }

    fn path(&self, file_id: &FileId) -> Result<PathBuf, PathError> {
        Ok(self.directory()?.join(file_id.relative_path()))
    }

    async fn work<T: Send + 'static>(
        &self,
        file_id: &FileId,
        act: impl FnOnce(&Path, &CancellationToken) -> Result<T, PathError> + Send + 'static,
    ) -> Result<T, PathError> {
        let directory = self.path(file_id)?;
        self.blocking(move |stop| act(&directory, stop)).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&CancellationToken) -> Result<T, PathError> + Send + 'static,
    ) -> Result<T, PathError> {
        let stop = self.stop.child_token();
        let _stopped_with_caller = stop.clone().drop_guard();
        // While the work goes on, no other process gets the directory.
        let location = self.location.clone();
        let work = move || {
            let _location = location;
            act(&stop)
        };
        crate::blocking(&self.work, work).await.unwrap_or_else(|| {
            Err(PathError {
                act: "complete the operation on",
                path: PathBuf::from("volume files"),
                source: ErrorKind::Interrupted.into(),
            })
        })
    }
}

fn extend(disk: &Path, bytes: u64, create: bool) -> Result<(), PathError> {
    let opened = fs::OpenOptions::new()
        .write(true)
        .create(create)
        .truncate(false)
        .open(disk);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound && !create => return Ok(()),
        Err(error) => return Err(PathError::of("open", disk)(error)),
    };
    let length = file.metadata().map_err(PathError::of("stat", disk))?.len();
    if length < bytes {
        file.set_len(bytes).map_err(PathError::of("extend", disk))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
