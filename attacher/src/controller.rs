//! Syncs one work item at a time. The machine (`plan`) decides, in an order from which the next process can recover after a crash at
//! any await, and the `executor` acts.
//!
//! Attach: our finalizers and the record of the call are stored before ControllerPublishVolume is sent; the status is
//! written after its response. Detach: our finalizer is removed only after ControllerUnpublishVolume succeeded. So whenever
//! a volume may be published, its VolumeAttachment has our finalizer.
//!
//! At most one sync at a time calls the driver for a publish target, even if several VolumeAttachments use it: a publish
//! holds the target's mutex until its status is written, an unpublish from its check for other users to the response.
//!
//! The API server's responses to our writes are stored in the [`ControllerState`] directly.

mod calls;
mod executor;
mod heartbeat;
mod keyed_mutex;
mod pv_finalizer;
pub mod reconcile;
mod reporting;
mod run;
pub mod state;
mod sync_error;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use self::state::{ControllerState, Event, Item};
use crate::csi::{CallError, ControllerClient};
use crate::informer::Change;
use crate::kube_api::events::Recorder;
use crate::kube_api::{self, AttachmentRequest, Cluster, Error, Newest, VolumeRequest};
use crate::model::{Attachment, Driver, PublishTarget, Uid, Volume};
pub(crate) use crate::workqueue::SyncError;
use crate::workqueue::{Key, Outcome};
pub use heartbeat::Heartbeat;
use keyed_mutex::KeyedMutex;
pub use run::RunOptions;

/// Returns the time of errors in a status.
pub type Clock = fn() -> Timestamp;

/// See the module.
pub struct Controller<K, D> {
    cluster: K,
    csi: D,
    driver: Driver,
    state: Arc<Mutex<ControllerState>>,
    clock: Clock,
    /// Held while our finalizer on a PersistentVolume is written.
    pv_mutexes: KeyedMutex<Uid>,
    /// Held while the driver is called for a volume and a node id.
    target_mutexes: KeyedMutex<PublishTarget>,
    /// Whether errors in a status carry their gRPC code (`--feature-gates=MutableCSINodeAllocatableCount`), which API servers
    /// before Kubernetes 1.34 do not know.
    pub(crate) error_codes: bool,
    /// `--assume-unpublished-after`: the operator's word for targets that no driver answers for; zero: never.
    pub(crate) assume_unpublished_after: Duration,
    draining: CancellationToken,
    pub(crate) recorder: Recorder,
}

// === impl Controller ===

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// A controller of `driver`'s VolumeAttachments. The driver's capabilities are read from `csi` by each sync.
    pub fn new(cluster: K, csi: D, driver: Driver, state: Arc<Mutex<ControllerState>>, clock: Clock) -> Self {
        Self {
            cluster,
            csi,
            driver,
            state,
            clock,
            pv_mutexes: KeyedMutex::default(),
            target_mutexes: KeyedMutex::default(),
            error_codes: true,
            assume_unpublished_after: Duration::ZERO,
            draining: CancellationToken::new(),
            recorder: Recorder::silent(),
        }
    }

    /// Syncs `item`, and reports a failure in the object's status, in an Event and in the log.
    ///
    /// # Errors
    ///
    /// A [`SyncError`], after which the item must be synced again. A panic only fails this sync and is reported like any
    /// other error: one object must not stop the syncs of all others.
    ///
    /// # Cancellation
    ///
    /// Like a crash: the next process recovers.
    pub(crate) async fn sync(&self, item: &Item) -> Result<(), SyncError> {
        // Boxed: it has tens of kilobytes, and each combinator below would copy it.
        let work = Box::pin(async {
            match item {
                Item::Subject(subject) => self.execute(subject).await,
                Item::Volume(volume) => self.remove_pv_finalizer(volume).await,
                Item::Backfill { volume, attachments } => self.record_volume_id(volume, attachments).await,
            }
        });
        let sync = async {
            let result = AssertUnwindSafe(work).catch_unwind().await;
            let mut result = result.unwrap_or_else(|_| Err(SyncError::panicked()));
            if let Err(error) = &mut result {
                error.reported &= !self.state().defers_report(item, error);
                let reported = AssertUnwindSafe(self.report_failure(item, error)).catch_unwind();
                if reported.await.is_err() {
                    tracing::error!("panicked while reporting the failure");
                }
            }
            result
        };
        sync.instrument(reporting::span(item, &self.driver)).await
    }

    /// Executes a step before a call, unless the process is shutting down: from then on syncs finish their running call and
    /// its status write, and start no other call. The step can be dropped midway, so it must not write; see
    /// [`Self::write_unless_draining`].
    async fn unless_draining<T>(&self, step: impl Future<Output = T>) -> Result<T, SyncError> {
        match self.draining.run_until_cancelled(step).await {
            Some(result) if !self.draining.is_cancelled() => Ok(result),
            Some(_) | None => Err(SyncError::draining()),
        }
    }

    /// Writes before a call, unless the process is shutting down. A write that was sent is awaited: the lease is released when
    /// no sync runs, and the API server could still execute a dropped write when another replica leads.
    async fn write_unless_draining<T>(
        &self,
        write: impl Future<Output = Result<T, SyncError>>,
    ) -> Result<T, SyncError> {
        if self.draining.is_cancelled() {
            return Err(SyncError::draining());
        }
        let result = write.await;
        if self.draining.is_cancelled() {
            return Err(SyncError::draining());
        }
        result
    }

    /// Reads a PersistentVolume that the store does not have: it may be another driver's, which the store does not keep, or
    /// newer than the watch.
    async fn missing_volume(&self, name: &str) -> Result<Option<Arc<Volume>>, SyncError> {
        match self.cluster.volume(name, VolumeRequest::Get).await {
            Ok(volume) => Ok(Some(volume.into())),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(SyncError::api("could not read PersistentVolume", &error)),
        }
    }

    /// Sends a call of the sync of `key`. The queue learns the driver's limits from its result.
    async fn call<T>(
        &self,
        key: &Key,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let result = call.await;
        let outcome = result
            .as_ref()
            .map_or_else(CallError::outcome, |_| Outcome::Success);
        self.state().call_ended(key, outcome);
        result
    }

    /// The state, with its clock set.
    fn state(&self) -> MutexGuard<'_, ControllerState> {
        let mut state = state::lock(&self.state);
        state.queue.now = Instant::now().into_std();
        state
    }

    /// Sends a request about `attachment`, stores the API server's response, and returns the object; `None` if it is deleted, or if the
    /// request is for one version and another one was stored meanwhile, which then decides what follows.
    async fn request(
        &self,
        attachment: &Attachment,
        request: AttachmentRequest<'_>,
    ) -> Result<Option<Attachment>, Error> {
        let sent = kube_api::send(&self.cluster, attachment, request).await;
        let (newest, conflict) = match sent {
            Err(conflict) if request.is_of_one_version() && conflict.is_conflict() => {
                let newest = kube_api::send(&self.cluster, attachment, AttachmentRequest::Get).await?;
                // The same decision would follow from an unchanged version: back off.
                if matches!(&newest, Newest::Exists(newest) if newest.version == attachment.version) {
                    return Err(conflict);
                }
                (newest, Some(conflict))
            }
            sent => (sent?, None),
        };
        let (newest, change) = match newest {
            Newest::Exists(newest) => (Some((*newest).clone()), Change::LocallyUpdated(*newest)),
            Newest::Deleted(version) => {
                let (name, uid) = (attachment.name.clone(), attachment.uid.clone());
                (None, Change::LocallyDeleted { name, uid, version })
            }
        };
        let is_read = conflict.is_some() || matches!(request, AttachmentRequest::Get);
        let is_newer = newest
            .as_ref()
            .is_some_and(|newest| newest.version != attachment.version);
        let mut state = self.state();
        let before = state.index.newest(attachment).cloned();
        state.handle(Event::Attachments(change));
        if is_read && is_newer {
            // Another client wrote it, and the watch will show nothing newer.
            state.read_edit(before.as_deref(), attachment);
        }
        Ok(newest.filter(|_| conflict.is_none()))
    }
}

#[cfg(test)]
mod tests;
