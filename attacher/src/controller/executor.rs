//! Executes the commands of the machine ([`plan::next`](crate::plan::next)) until an object needs nothing more.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use futures::future::join_all;
use tokio::time::sleep_until;

use super::keyed_mutex::KeyedGuard;
use super::state::key;
use super::{Controller, SyncError};
use crate::csi::ControllerClient;
use crate::kube_api::{AttachmentRequest, Cluster, Error};
use crate::model::{Attachment, PublishTarget, SecretRef};
use crate::plan::{
    Command, Failure, Next, Operation, Progress, Proof, Published, Record, Subject, SyncContext,
};
use crate::report::chain;

/// The locks of a sync, with their targets.
type Locks = (Vec<PublishTarget>, Vec<KeyedGuard>);

/// More decisions than any sync needs: the objects change all the time.
const MAX_DECISIONS: u32 = 64;

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Attaches, detaches, or unpublishes an orphan.
    ///
    /// # Guarantees
    ///
    /// Each command is decided from the newest objects, under the locks of the targets that it concerns.
    pub(super) async fn execute(&self, subject: &Subject) -> Result<(), SyncError> {
        self.progress(subject, |progress| progress.sync = Default::default());
        let mut locks = Locks::default();
        // Whether the queue knows the call that follows.
        let mut has_begun = false;
        for _ in 0..MAX_DECISIONS {
            let context = SyncContext {
                driver: &self.driver,
                session: self.csi.session(),
                assume_after: self.assume_unpublished_after,
                locked: &locks.0,
            };
            let next = self.state().next(subject, context);
            match next {
                Next::Done => {
                    self.report_detached(subject);
                    return Ok(());
                }
                Next::Stop(stop) => {
                    let last = self.progress(subject, |progress| progress.sync.failed.take());
                    return Err(SyncError::stopped(&stop, &self.driver.finalizer, last.as_ref()));
                }
                Next::Lock(targets) => {
                    drop(locks);
                    locks = self.lock(subject, targets).await?;
                }
                // The objects may have changed while it waited.
                Next::Act(commands)
                    if commands.iter().any(Command::is_call)
                        && !mem::take(&mut has_begun)
                        && self.wait_for_call(subject).await? =>
                {
                    has_begun = true;
                }
                Next::Act(commands) => {
                    let commands = commands.iter().map(|command| self.command(subject, command));
                    // All complete independently of each other's result: each retry would repeat an aborted write.
                    let results = join_all(commands).await.into_iter().rev();
                    results.collect::<Result<(), SyncError>>()?;
                }
            }
        }
        Err(SyncError::outdated())
    }

    /// Waits until the learned limits permit the call, and marks it as sent. Returns whether it waited.
    async fn wait_for_call(&self, subject: &Subject) -> Result<bool, SyncError> {
        let mut waited = false;
        loop {
            let Some(at) = self.state().queue.call_begins(&key(subject)) else {
                return Ok(waited);
            };
            self.unless_draining(sleep_until(at.into())).await?;
            waited = true;
        }
    }

    async fn lock(&self, subject: &Subject, targets: Vec<PublishTarget>) -> Result<Locks, SyncError> {
        let mut guards = Vec::with_capacity(targets.len());
        let lock = async {
            for target in &targets {
                guards.push(self.target_mutexes.lock(target).await);
            }
        };
        // A known result is written even while the process shuts down.
        match self.progress(subject, |progress| progress.published.is_some()) {
            true => lock.await,
            false => self.unless_draining(lock).await?,
        }
        Ok((targets, guards))
    }

    /// Executes one command; during shutdown, only commands that complete a started operation. Cancels a write that was decided
    /// without publish calls, from lists or from repeated answers, when the driver session of that decision ends.
    async fn command(&self, subject: &Subject, command: &Command) -> Result<(), SyncError> {
        if command.begins() {
            self.unless_draining(std::future::ready(())).await?;
        }
        let executed = self.execute_command(subject, command);
        match self.progress(subject, |progress| progress.session_of(command)) {
            None => executed.await,
            Some(session) => tokio::select! {
                biased;
                () = self.csi.session_ended(session) => Err(SyncError::outdated()),
                executed = executed => executed,
            },
        }
    }

    async fn execute_command(&self, subject: &Subject, command: &Command) -> Result<(), SyncError> {
        let attachment = &self.newest(subject.attachment());
        match command {
            Command::Connect => self.connect(subject).await?,
            Command::GetAttachment => {
                let read = self.read(attachment).await?;
                if let (Subject::Orphan(_), Some(_)) = (subject, read) {
                    // The VolumeAttachment exists, so this is no orphan. The watch shows it later if it is deleted again.
                    return Err(SyncError::outdated());
                }
                self.progress(subject, |progress| {
                    progress.is_confirmed = true;
                    progress.sync.is_attachment_read = true;
                });
            }
            Command::GetOther(name) => {
                let other = self.state().index.attachments.get(name).cloned();
                if let Some(other) = other {
                    self.read(&other).await?;
                    self.progress(subject, |progress| {
                        progress.sync.others_read.push(other.uid.clone())
                    });
                }
            }
            Command::GetVolume(name) => {
                let volume = self.unless_draining(self.missing_volume(name)).await??;
                self.progress(subject, |progress| progress.sync.volume = Some(volume));
            }
            Command::GetNode(name) => {
                let exists = self.unless_draining(self.cluster.has_node(name)).await?;
                let exists = exists.map_err(|error| SyncError::api("could not read CSINode", &error))?;
                self.progress(subject, |progress| progress.sync.node_exists = Some(exists));
            }
            Command::GetSecret { secret, is_required } => {
                self.get_secret(subject, secret, *is_required).await?;
            }
            Command::AddPvFinalizer(finalizer) => {
                self.add_pv_finalizer(finalizer).await?;
                let uid = finalizer.uid.clone();
                self.progress(subject, |progress| progress.sync.pv_finalizer = Some(uid));
            }
            Command::Record(record) => self.record(subject, attachment, record).await?,
            Command::SaveUndoError(target) => self.save_undo_error(subject, attachment, target).await?,
            Command::Publish(plan) => self.publish(subject, attachment, plan).await?,
            Command::Unpublish {
                target,
                secret,
                recorded_secret,
                migrated,
            } => {
                let secrets = [secret, recorded_secret].map(Option::as_ref);
                self.unpublish(subject, target, secrets, *migrated).await?;
            }
            Command::KeepOrphan(orphan) => {
                let PublishTarget { volume_id, node_id } = &orphan.target;
                tracing::warn!(volume = %volume_id, %node_id, "the driver does not know the target of an earlier attach; publishing, and retrying its unpublish");
                self.state().add_orphan(orphan.clone());
            }
            Command::EndOrphan => self.progress(subject, |progress| progress.sync.is_done = true),
            Command::KeepProof(proof) => {
                self.progress(subject, |progress| progress.proof = Some(proof.clone()));
            }
            Command::MarkAttached(published) => {
                self.mark_attached(subject, attachment, published.as_ref())
                    .await?;
            }
            Command::MarkDetached => {
                let marked = self.request(attachment, AttachmentRequest::MarkDetached).await;
                let marked = marked.map_err(|error| SyncError::api("could not mark as detached", &error))?;
                if marked.is_some_and(|marked| marked.has_attached_status()) {
                    return Err(SyncError::not_stored("the status without the attachment"));
                }
                self.progress(subject, |progress| progress.sync.wrote = true);
            }
            Command::RemoveFinalizer(proof) => self.remove_finalizer(subject, attachment, proof).await?,
        }
        Ok(())
    }

    pub(super) fn progress<T>(&self, subject: &Subject, access: impl FnOnce(&mut Progress) -> T) -> T {
        access(self.state().progress(subject))
    }

    /// Reads the VolumeAttachment; `None` if it is deleted.
    async fn read(&self, attachment: &Attachment) -> Result<Option<Attachment>, SyncError> {
        let read = self.request(attachment, AttachmentRequest::Get);
        let read = self.unless_draining(read).await?;
        read.map_err(|error| SyncError::api("could not read VolumeAttachment", &error))
    }

    pub(super) fn newest(&self, known: &Arc<Attachment>) -> Arc<Attachment> {
        let newest = self.state().index.newest(known).cloned();
        newest.unwrap_or_else(|| known.clone())
    }

    /// Waits until the driver is connected. Its capabilities may have changed.
    async fn connect(&self, subject: &Subject) -> Result<(), SyncError> {
        let capabilities = self.unless_draining(self.csi.ready()).await?;
        let capabilities = capabilities.map_err(|error| SyncError::call(&error))?;
        let session = self.csi.session();
        self.progress(subject, |progress| {
            progress.sync.driver = Some((session, capabilities))
        });
        Ok(())
    }

    /// Reads a Secret. A deleted one, or one that cannot be sent, must not block a detach permanently, and a driver that needs it
    /// returns an error. A forbidden one may be deleted, too: the deletion of its namespace also deletes the RoleBinding that
    /// allows us to read it.
    async fn get_secret(
        &self,
        subject: &Subject,
        secret: &SecretRef,
        is_required: bool,
    ) -> Result<(), SyncError> {
        let read = async {
            match secret.is_valid() {
                true => self.cluster.secret(secret).await,
                false => Err(Error::NotFound(
                    "no Secret can have this namespace and name".into(),
                )),
            }
        };
        let content = match self.unless_draining(read).await? {
            Ok(content) => Some(content),
            Err(error)
                if !is_required && (error.is_gone() || error.is_forbidden() || error.is_unusable()) =>
            {
                tracing::warn!(%secret, error = chain(&error), "cannot use the Secret for the detach; calling the driver without it");
                None
            }
            Err(error) => {
                let what = format!("failed to load secret {:?}", secret.to_string());
                return Err(SyncError::api(&what, &error));
            }
        };
        self.progress(subject, |progress| {
            progress.sync.secrets.push((secret.clone(), content))
        });
        Ok(())
    }

    /// Stores our finalizer and the record of the call.
    async fn record(
        &self,
        subject: &Subject,
        attachment: &Attachment,
        record: &Record,
    ) -> Result<(), SyncError> {
        let moves = attachment.finalizer && !attachment.recorded.has_same_target(&record.annotations);
        self.progress(subject, |progress| {
            progress.sync.record = Some(record.annotations.clone());
            progress.is_record_uncertain |= moves;
        });
        let newest = self.request(attachment, AttachmentRequest::Record(record)).await;
        let newest = newest.map_err(|error| SyncError::api("could not save VolumeAttachment", &error))?;
        let Some(newest) = newest else { return Ok(()) };
        let is_stored = newest.finalizer && newest.recorded == record.annotations;
        if !newest.deleting && !is_stored {
            // A publish under another record would be unpublished from the wrong target.
            return Err(SyncError::not_recorded());
        }
        self.progress(subject, |progress| {
            progress.is_confirmed = true;
            progress.is_record_uncertain = false;
        });
        Ok(())
    }

    /// Writes the result of a publish, or that the driver needs none. A republish that changes nothing writes nothing.
    async fn mark_attached(
        &self,
        subject: &Subject,
        attachment: &Arc<Attachment>,
        published: Option<&Published>,
    ) -> Result<(), SyncError> {
        let none = BTreeMap::new();
        let context = published.map_or(&none, |published| &published.context);
        let marked = match attachment.is_attached_with(context) {
            true => Ok(Some((**attachment).clone())),
            false => {
                let request = AttachmentRequest::MarkAttached(context);
                self.request(attachment, request).await
            }
        };
        let error = match marked {
            Ok(None) => return Ok(()),
            Ok(Some(_)) => {
                self.progress(subject, |progress| progress.sync.is_done = true);
                match published.map(|published| &published.target) {
                    Some(PublishTarget { volume_id, node_id }) => {
                        tracing::info!(volume = %volume_id, %node_id, "attached");
                        self.report_attached(subject, attachment);
                    }
                    None => tracing::info!("attached without a call"),
                }
                return Ok(());
            }
            Err(error) => error,
        };
        let failed = SyncError::api("failed to mark as attached", &error);
        if published.is_none() {
            return Err(failed);
        }
        if error.is_final() {
            // The API server will never store this result (for example, the context is too large): the error is reported,
            // and the next sync publishes again.
            self.progress(subject, |progress| progress.published = None);
            return Err(failed);
        }
        // The volume is attached, and the next sync writes the status. Missing RBAC permissions are not specific to this
        // VolumeAttachment; the log reports them.
        let is_rejected = matches!(
            error,
            Error::Rejected {
                status: 400..=499,
                retry_after: None,
                ..
            }
        );
        Err(SyncError {
            reported: is_rejected && !error.is_unauthorized(),
            ..failed
        })
    }

    /// Removes our finalizer, which ends the detach latency.
    async fn remove_finalizer(
        &self,
        subject: &Subject,
        attachment: &Attachment,
        proof: &Proof,
    ) -> Result<(), SyncError> {
        let failed = self.progress(subject, |progress| {
            progress.uncertain = None;
            progress.sync.failed.clone()
        });
        if let Some(Failure { message, .. }) = failed {
            tracing::warn!(
                error = message,
                "the volume counts as unpublished, by lists, repeated answers or --assume-unpublished-after"
            );
        }
        let removed = self
            .request(attachment, AttachmentRequest::RemoveFinalizer(proof))
            .await;
        let removed = removed.map_err(|error| SyncError::api("could not mark as detached", &error))?;
        if removed.is_some_and(|removed| removed.finalizer) {
            return Err(SyncError::not_stored("the removal of our finalizer"));
        }
        self.progress(subject, |progress| {
            progress.sync.wrote = true;
            // The response is as good as a read.
            progress.sync.is_attachment_read = true;
        });
        self.observe_latency(Operation::Detach, attachment);
        Ok(())
    }

    fn report_detached(&self, subject: &Subject) {
        if self.progress(subject, |progress| progress.sync.wrote) {
            tracing::info!("detached");
            self.report_recovery(Operation::Detach, subject.attachment());
        }
    }
}
