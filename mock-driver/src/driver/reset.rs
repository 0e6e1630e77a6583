//! The state between tests: import of a fixture, and the return to the state after the start.
//!
//! Both cancel the calls and operations that run, as a crash does, and wait for them: none acts on the array afterwards. They do not
//! wait for streams, which depend on their client; those end with the next message.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Driver;
use super::error::Error;
use super::locks::{Guard, Key, LockMode, Scope};
use crate::array::{Array, Image};
use crate::error_chain;
use crate::fault::scenario;
use crate::node;
use crate::rpc::validate::Invalid;
use crate::store::volume_files::FileId;

/// What runs until the next reset or import.
#[derive(Debug)]
pub(crate) struct ResetScope {
    current: Mutex<(CancellationToken, TaskTracker)>,
    /// Cancelled when the array is replaced.
    copies: Mutex<CancellationToken>,
    /// Copies of which a reset interrupted the operation, before the array had an object for them.
    interrupted: Mutex<BTreeSet<FileId>>,
    resetting: tokio::sync::Mutex<()>,
    halt: CancellationToken,
}

/// A running call or operation, for which a reset waits until this is dropped.
#[derive(Debug)]
pub(crate) struct Entered {
    pub(crate) cancelled: CancellationToken,
    _running: TaskTrackerToken,
}

/// Copies for an object that the array does not have yet.
#[derive(Debug)]
pub(super) struct Copies<'a> {
    scope: &'a ResetScope,
    pub(super) files: Vec<FileId>,
}

/// A reset in progress. Calls that begin meanwhile are refused until it is dropped.
struct Reset<'a> {
    scope: &'a ResetScope,
    _resetting: tokio::sync::MutexGuard<'a, ()>,
}

/// The files of the volumes and snapshots before a reset or import.
#[derive(Clone, Copy, Debug)]
enum OldFiles {
    /// Those of volumes and snapshots that still exist remain.
    KeepUsed,
    Discard,
}

// === impl ResetScope ===

impl ResetScope {
    pub(super) fn within(halt: &CancellationToken) -> Self {
        Self {
            current: Mutex::new((halt.child_token(), TaskTracker::new())),
            copies: Mutex::new(halt.child_token()),
            interrupted: Mutex::default(),
            resetting: tokio::sync::Mutex::default(),
            halt: halt.clone(),
        }
    }

    pub(crate) fn enter(&self) -> Entered {
        let (cancelled, running) = &*crate::lock(&self.current);
        Entered {
            cancelled: cancelled.clone(),
            _running: running.token(),
        }
    }

    /// Cancelled when the array is replaced.
    pub(super) fn copies(&self) -> CancellationToken {
        crate::lock(&self.copies).clone()
    }

    /// Copies that the next reset removes if their operation is interrupted.
    pub(super) fn copying(&self, files: Vec<FileId>) -> Copies<'_> {
        Copies { scope: self, files }
    }

    fn cancel_copies(&self) {
        let next = self.halt.child_token();
        std::mem::replace(&mut *crate::lock(&self.copies), next).cancel();
    }

    /// Cancels what runs, and waits for its end.
    async fn reset(&self) -> Reset<'_> {
        let reset = Reset {
            _resetting: self.resetting.lock().await,
            scope: self,
        };
        let (cancelled, running) = crate::lock(&self.current).clone();
        cancelled.cancel();
        running.close();
        running.wait().await;
        reset
    }
}

impl Copies<'_> {
    /// The array has the object, or the files were removed.
    pub(super) fn settle(mut self) {
        self.files.clear();
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        crate::lock(&self.scope.interrupted).extend(self.files.drain(..));
    }
}

impl Drop for Reset<'_> {
    fn drop(&mut self) {
        *crate::lock(&self.scope.current) = (self.scope.halt.child_token(), TaskTracker::new());
    }
}

// === impl Entered ===

impl Entered {
    /// Runs until the next reset or the end of the driver; then it returns `None`.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => None,
            result = work => Some(result),
        }
    }

    pub(crate) async fn call<T, E: From<Error>>(
        &self,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let result = self.run(call).await;
        result.unwrap_or_else(|| Err(Error::Interrupted.into()))
    }
}

// === impl Driver ===

impl Driver {
    /// Replaces the state of the array. Volumes and snapshots that the new state has, too, keep their bytes. Cancels running calls.
    ///
    /// # Errors
    /// The image contradicts itself; nothing has changed then. The node of this process uses a volume; then the array has not changed,
    /// and running calls were cancelled.
    pub(crate) async fn import(&self, image: Image) -> Result<(), Error> {
        self.store.peek(|array| image.check(array.settings()))?;
        let _reset = self.interrupt().await;
        let _locked = self.replace_array(image, OldFiles::KeepUsed).await?;
        if let Some(node) = self.node.as_ref().filter(|_| self.has_array()) {
            self.announce(node).await;
        }
        Ok(())
    }

    /// Returns to the state after the start: the array to that of `--fixture` or of a first start, with blank volumes; rules, backend
    /// faults, scenarios, capabilities and the node to those of the flags; and the journal in memory, with all counters, to an empty
    /// one. Cancels running calls.
    ///
    /// # Errors
    /// The node of this process uses a volume, unless `force` unpublishes and unstages it; then at most the rules have changed.
    pub(crate) async fn reset(&self, force: bool) -> Result<(), Error> {
        let _reset = self.interrupt().await;
        if let Some(node) = self.node.as_ref().filter(|_| force) {
            node.undo_all().await?;
        }
        let restarted = self.faults.restart();
        restarted.map_err(|conflict| Invalid::new("rules", conflict.to_string()))?;
        let played = scenario::play(&self.settings.scenarios, &self.settings.stubs, &self.faults);
        played.map_err(|conflict| Invalid::new("scenario", conflict.to_string()))?;
        if self.has_array() {
            let _locked = self
                .replace_array(self.store.initial_image(), OldFiles::Discard)
                .await?;
        }
        self.capabilities.write().clone_from(&self.settings.capabilities);
        if let (Some(node), Some(info)) = (&self.node, &self.initial_node) {
            node.set_info(|current| current.clone_from(info));
            if self.has_array() {
                self.announce(node).await;
            }
        }
        self.socket_control.open();
        self.random_limits.store(0, Ordering::Relaxed);
        if let Some(journal) = &self.journal {
            journal.reset();
        }
        Ok(())
    }

    /// Cancels running calls and operations, and waits for their steps on files and devices.
    async fn interrupt(&self) -> Reset<'_> {
        let reset = self.reset_scope.reset().await;
        self.volume_files.settle().await;
        if let Some(node) = &self.node {
            node.settle().await;
        }
        reset
    }

    /// Returns the locks of the volumes and snapshots before: no operation uses them meanwhile.
    async fn replace_array(&self, image: Image, old_files: OldFiles) -> Result<Vec<Guard>, Error> {
        let files = self.store.peek(FileId::all_of);
        let keys = files.iter().flat_map(|file| {
            let id = || file.id().to_owned();
            match file {
                FileId::Snapshot(_) => vec![Key::Snapshot(id())],
                FileId::Volume(_) | FileId::Ephemeral { .. } => vec![Key::Volume(id()), Key::OnNode(id())],
            }
        });
        let keys = keys.map(|key| (key, LockMode::Exclusive)).collect();
        let locked = self.locks.lock(Scope::Operation, keys).await?;
        if let Some(node) = &self.node
            && let Some(volume) = node.volumes().pop_first()
        {
            let path = node.path_of(&volume).unwrap_or_default();
            return Err(node::Error::in_use(&volume, &path).into());
        }
        let volumes = |array: &Array| -> BTreeSet<String> {
            array.volumes().map(|volume| volume.spec.id.to_string()).collect()
        };
        let mut changed = self.store.peek(volumes);
        self.store.replace(image).await?;
        self.reset_scope.cancel_copies();
        let kept: BTreeSet<FileId> = match old_files {
            OldFiles::KeepUsed => self.store.peek(FileId::all_of).into_iter().collect(),
            OldFiles::Discard => BTreeSet::new(),
        };
        // Before the devices of the new state are attached: they would be attached to the old files.
        let interrupted = std::mem::take(&mut *crate::lock(&self.reset_scope.interrupted));
        for file in files
            .iter()
            .chain(&interrupted)
            .filter(|file| !kept.contains(*file))
        {
            if let (Some(node), FileId::Volume(volume)) = (&self.node, file)
                && let Err(error) = node.reconcile_device(volume, None).await
            {
                tracing::warn!(
                    volume,
                    error = error_chain(&error),
                    "the device cannot be detached"
                );
            }
            self.discard(file).await;
        }
        changed.append(&mut self.store.peek(volumes));
        self.reconcile_devices(changed).await;
        self.resume_copies();
        Ok(locked)
    }
}

#[cfg(test)]
mod tests;
