//! Carries out one job: the writes and calls that a plan asks for, in an order that a crash at any
//! await leaves repairable.
//!
//! Attach: our finalizers and the record of the call are stored before ControllerPublishVolume is
//! sent, the status is written after its answer. Detach: our finalizer goes only after
//! ControllerUnpublishVolume succeeded. So whenever something may be published, a finalizer says so.
//!
//! One job at a time calls for a volume and a node id, whichever attachments they are of: a publish has
//! the turn until its status is written, an unpublish from its look at who else needs the volume there. So
//! nobody's volume is taken away by a call that was decided before he had it.
//!
//! What the API server answers to our writes goes straight into the [`ControllerState`].

mod attach;
mod detach;
pub mod event_loop;
mod keyed_mutex;
mod pv_finalizer;
pub mod reconcile;
mod report;
mod republish;
pub mod state;
mod sync_error;
mod undo;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use self::state::{ControllerState, Event, Job, Outcome, PendingStatusWrite, Report, Subject};
use crate::csi::{CallError, ControllerClient, Reach};
use crate::informer::Change;
use crate::kube_api::events::Recorder;
use crate::kube_api::{Cluster, Error, Secrets};
use crate::model::{Attachment, Driver, PublishTarget, SecretRef, Uid, Volume};
use crate::plan::{AttachInputs, Operation};
use crate::trace;
use keyed_mutex::{KeyedGuard, KeyedMutex};
use sync_error::{Failure, cut};

/// How much of its last failure each waiting job remembers. All of it stands in the object's status.
const REMEMBERED_BYTES: usize = 256;

/// What time it is, for the `time` of errors in a status.
pub type Clock = fn() -> Timestamp;

/// See the module.
pub struct Controller<K, D> {
    cluster: K,
    csi: D,
    driver: Driver,
    state: Arc<Mutex<ControllerState>>,
    clock: Clock,
    /// Who writes our finalizer on a PersistentVolume.
    pv_mutexes: KeyedMutex<Uid>,
    /// Who calls for a volume and a node id.
    target_mutexes: KeyedMutex<PublishTarget>,
    error_codes: bool,
    draining: CancellationToken,
    recorder: Recorder,
}

// === impl Controller ===

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// A worker for `driver`, whose capabilities are read from `csi` at each job.
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
            draining: CancellationToken::new(),
            recorder: Recorder::silent(),
        }
    }

    /// Tells `recorder` what people should know.
    #[must_use]
    pub fn with_recorder(self, recorder: Recorder) -> Self {
        Self { recorder, ..self }
    }

    /// Whether errors in a status carry their gRPC code, which API servers before Kubernetes 1.34 do not
    /// know (`--feature-gates=MutableCSINodeAllocatableCount`). They do unless told otherwise.
    #[must_use]
    pub fn with_error_codes(self, error_codes: bool) -> Self {
        Self { error_codes, ..self }
    }

    /// From now on jobs finish the call that they are in and what follows from it, begin no other, and drop
    /// what would lead to one: the process is about to end, and whoever comes next begins it.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// To be asked before the call that a job is about.
    fn check_draining(&self) -> Result<(), Failure> {
        if self.draining.is_cancelled() {
            return Err(not_sent());
        }
        Ok(())
    }

    /// Takes a step on the way to a call, and stops in the middle of it when no call is to begin any more.
    /// So it may only be of what can be repeated, be it done or not.
    async fn unless_draining<T>(&self, step: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let step = self.draining.run_until_cancelled(step);
        step.await.unwrap_or_else(|| Err(not_sent()))
    }

    /// Waits until no other job calls for `target`.
    async fn lock_target(&self, target: &PublishTarget) -> Result<KeyedGuard<'_, PublishTarget>, Failure> {
        self.unless_draining(async { Ok(self.target_mutexes.lock(target).await) })
            .await
    }

    /// Carries out `job`. Never fails: what goes wrong is told in the object's status, in the log and
    /// in the report.
    ///
    /// # Guarantees
    ///
    /// A panic is a failure of this job alone, told like any other: one strange object must not stop all
    /// others, nor be a riddle to those who wait for it.
    ///
    /// # Cancellation
    ///
    /// Like a crash: what was begun is taken up again by the next process.
    pub async fn run(&self, job: Job) -> Report {
        let subject = job.subject();
        let span = report::span(&subject, &self.driver);
        let work = async {
            let work = AssertUnwindSafe(self.carry_out(job)).catch_unwind();
            let failure = match work.await {
                Ok(Ok(())) => return Outcome::Done,
                Ok(Err(failure)) => failure,
                Err(_) => Failure::panicked(),
            };
            if let Subject::Attachment(wanted, attachment) = &subject {
                let told = Box::pin(self.tell_all(*wanted, attachment, &failure));
                let told = AssertUnwindSafe(told).catch_unwind();
                if told.await.is_err() {
                    tracing::error!("panicked while the failure was told");
                }
            }
            tracing::Span::current().record(trace::FAILED, failure.message.as_str());
            tracing::warn!(error = failure.message, class = %failure.class, "failed; will be tried again");
            Outcome::Failed {
                message: cut(&failure.message, REMEMBERED_BYTES).into(),
                class: failure.class,
                code: failure.code,
                answer: failure.answer,
                retry_after: failure.retry_after,
            }
        };
        let outcome = work.instrument(span).await;
        Report { subject, outcome }
    }

    async fn carry_out(&self, job: Job) -> Result<(), Failure> {
        // In boxes, so that a detach does not take the room of an attach: thousands may wait for the driver.
        match job {
            Job::Attachment {
                wanted: Operation::Attach,
                facts,
                answer,
                ..
            } => Box::pin(self.attach(facts, answer)).await,
            Job::Attachment {
                wanted: Operation::Detach,
                facts,
                answer,
                repair,
            } => Box::pin(self.detach(facts, answer, repair)).await,
            Job::Unpublish(abandoned) => Box::pin(self.unpublish_abandoned(&abandoned)).await,
            Job::Release { volume } => Box::pin(self.unless_draining(self.release_volume(&volume))).await,
            Job::RecordVolumeId { volume, attachments } => {
                Box::pin(self.unless_draining(self.record_volume_id(&volume, &attachments))).await
            }
        }
    }

    /// Tells of a failed attempt, in Events and in the status.
    async fn tell_all(&self, wanted: Operation, attachment: &Attachment, failure: &Failure) {
        self.announce_failure(wanted, attachment, failure);
        self.tell(attachment, failure).await;
    }

    /// Waits for the driver, which may come back with other capabilities.
    async fn driver(&self) -> Result<Driver, Failure> {
        let capabilities = self.csi.ready().await.map_err(|error| called(&error))?;
        Ok(Driver {
            capabilities,
            ..self.driver.clone()
        })
    }

    /// Looks up a PersistentVolume that the index does not have: it may be another driver's, which
    /// the index does not keep, or so new that the watch has not told of it.
    async fn with_volume(&self, facts: AttachInputs) -> Result<AttachInputs, Failure> {
        let Some(name) = facts.attachment.volume_name().filter(|_| facts.volume.is_none()) else {
            return Ok(facts);
        };
        match self.cluster.volume(name).await {
            Ok(volume) => Ok(AttachInputs {
                volume: Some(volume.into()),
                ..facts
            }),
            Err(error) if error.is_gone() => Ok(facts),
            Err(error) => Err(Failure::api("could not read PersistentVolume", &error)),
        }
    }

    /// Reads the Secret that goes with a call.
    async fn secrets(&self, reference: Option<&SecretRef>) -> Result<Secrets, (SecretRef, Error)> {
        match reference {
            None => Ok(Secrets::default()),
            Some(reference) => self
                .cluster
                .secret(reference)
                .await
                .map_err(|error| (reference.clone(), error)),
        }
    }

    fn state(&self) -> MutexGuard<'_, ControllerState> {
        state::lock(&self.state)
    }

    /// Counts how long it took from the wish for it to what was just reached.
    fn reached(&self, what: Operation, attachment: &Attachment) {
        let Some(since) = attachment.wanted_since else {
            return;
        };
        // The API server's clock made one of the times and ours the other: they may disagree.
        let after = (self.clock)().duration_since(since);
        let after = after.try_into().unwrap_or_default();
        self.state().reached(what, after);
    }

    fn written(&self, attachment: Attachment) {
        self.state()
            .handle(Event::Attachments(Change::LocallyUpdated(attachment)));
    }

    /// Takes in what the API server has of an attachment. Returns what `look` makes of it; nothing, if it is gone.
    fn taken_in<T>(
        &self,
        attachment: &Attachment,
        answer: Result<Attachment, Error>,
        failed_to: &str,
        look: impl FnOnce(&Attachment) -> T,
    ) -> Result<Option<T>, Failure> {
        match answer {
            Ok(newest) => {
                let seen = look(&newest);
                self.written(newest);
                Ok(Some(seen))
            }
            Err(error) if error.is_gone() => {
                self.departed(attachment);
                Ok(None)
            }
            Err(error) => Err(Failure::api(failed_to, &error)),
        }
    }

    fn departed(&self, attachment: &Attachment) {
        let Attachment { name, uid, .. } = attachment;
        self.state().handle(Event::Attachments(Change::LocallyDeleted {
            name: name.clone(),
            uid: uid.clone(),
        }));
    }

    fn volume_departed(&self, volume: &Volume) {
        let Volume { name, uid, .. } = volume;
        self.state().handle(Event::Volumes(Change::LocallyDeleted {
            name: name.clone(),
            uid: uid.clone(),
        }));
    }
}

/// The driver's answer to a call that failed, as a failure of the job.
fn called(error: &CallError) -> Failure {
    Failure {
        message: error.to_string(),
        code: Some(error.code.number()),
        class: error.class(),
        answer: None,
        retry_after: None,
        told: error.reach != Reach::NotSent,
    }
}

/// What is not begun because the process is about to end.
fn not_sent() -> Failure {
    called(&CallError::not_sent("the attacher is shutting down"))
}

/// The failure to read a Secret.
fn unread(reference: &SecretRef, error: &Error) -> Failure {
    Failure::api(
        &format!("failed to load secret {:?}", reference.to_string()),
        error,
    )
}

/// A write failed after the driver's answer, which is kept for when the write is tried again.
fn unwritten(what: &str, error: &Error, answer: PendingStatusWrite) -> Failure {
    Failure {
        answer: Some(answer),
        ..Failure::api(what, error)
    }
}

#[cfg(test)]
mod tests;
