//! Executes the commands of the machine ([`plan::next`]) until an object needs nothing more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use csi_proto::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use futures::future::join_all;

use super::keyed_mutex::KeyedGuard;
use super::state::SyncContext;
use super::{Controller, SyncError};
use crate::csi::{CallError, ControllerClient, Reach};
use crate::kube_api::{AttachmentRequest, Cluster, Error};
use crate::model::{Attachment, PublishTarget, SecretRef, Secrets};
use crate::plan::{
    AttachPlan, Command, Next, Operation, Orphan, Progress, Proof, Published, Record, Stop, Subject,
    UnpublishResult,
};
use crate::report::chain;
use crate::workqueue::Key;

/// What one sync holds.
#[derive(Default)]
struct Sync {
    guards: Vec<KeyedGuard>,
    /// The targets of `guards`.
    locked: Vec<PublishTarget>,
    /// The content of the Secrets that could be read.
    secrets: HashMap<SecretRef, Secrets>,
    /// The last unpublish that failed, although others may prove the detach.
    failed: Option<SyncError>,
    wrote: bool,
}

/// What a command leaves to its sync.
enum Effect {
    None,
    Secret(SecretRef, Secrets),
    Failed(SyncError),
    Wrote,
}

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
        let mut sync = Sync::default();
        for _ in 0..MAX_DECISIONS {
            let context = SyncContext {
                driver: &self.driver,
                session: self.csi.session(),
                assume_after: self.assume_unpublished_after,
                locked: &sync.locked,
            };
            let next = self.state().next(subject, context);
            match next {
                Next::Done => {
                    self.report_detached(subject, &sync);
                    return Ok(());
                }
                Next::Stop(stop) => return Err(self.stopped(stop, sync.failed)),
                Next::Lock(targets) => self.lock(subject, &mut sync, targets).await?,
                Next::Act(commands) => {
                    let commands = commands
                        .iter()
                        .map(|command| self.command(subject, command, &sync));
                    // All complete independently of each other's result: each retry would repeat an aborted write.
                    for effect in join_all(commands).await.into_iter().rev() {
                        match effect? {
                            Effect::None => {}
                            Effect::Secret(secret, content) => drop(sync.secrets.insert(secret, content)),
                            Effect::Failed(error) => sync.failed = Some(error),
                            Effect::Wrote => sync.wrote = true,
                        }
                    }
                }
            }
        }
        Err(SyncError::outdated())
    }

    async fn lock(
        &self,
        subject: &Subject,
        sync: &mut Sync,
        targets: Vec<PublishTarget>,
    ) -> Result<(), SyncError> {
        sync.guards.clear();
        sync.locked.clear();
        let lock = async {
            for target in &targets {
                sync.guards.push(self.target_mutexes.lock(target).await);
            }
        };
        // A known result is written even while the process shuts down.
        let mut has_result = false;
        self.progress(subject, |progress| has_result = progress.published.is_some());
        match has_result {
            true => lock.await,
            false => self.unless_draining(lock).await?,
        }
        sync.locked = targets;
        Ok(())
    }

    /// Executes one command. From the shutdown on, only those that complete what was begun.
    async fn command(&self, subject: &Subject, command: &Command, sync: &Sync) -> Result<Effect, SyncError> {
        if !command.completes() {
            self.unless_draining(std::future::ready(())).await?;
        }
        let attachment = &self.newest(subject);
        match command {
            Command::Connect => self.connect(subject).await?,
            Command::GetAttachment => {
                let read = self
                    .unless_draining(self.request(attachment, AttachmentRequest::Get))
                    .await?;
                read.map_err(|error| SyncError::api("could not read VolumeAttachment", &error))?;
                self.progress(subject, |progress| progress.sync.is_attachment_read = true);
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
                return self.get_secret(subject, secret, *is_required).await;
            }
            Command::AddPvFinalizer(finalizer) => {
                self.add_pv_finalizer(finalizer).await?;
                let uid = finalizer.uid.clone();
                self.progress(subject, |progress| progress.sync.pv_finalizer = Some(uid));
            }
            Command::Record(record) => self.record(subject, attachment, record).await?,
            Command::Publish(plan) => self.publish(subject, attachment, plan, sync).await?,
            Command::Unpublish {
                target,
                secret,
                migrated,
            } => {
                return self
                    .unpublish(subject, target, secret.as_ref(), *migrated, sync)
                    .await;
            }
            Command::KeepOrphan(orphan) => {
                tracing::warn!(volume = %orphan.target.volume_id, node_id = %orphan.target.node_id, "the driver does not know the target of an earlier attach; publishing, and retrying its unpublish");
                self.state().add_orphan(orphan.clone());
            }
            Command::EndOrphan => self.progress(subject, |progress| progress.sync.is_done = true),
            Command::KeepProof(proof) => {
                self.progress(subject, |progress| progress.proof = Some(proof.clone()))
            }
            Command::MarkAttached(published) => {
                self.mark_attached(subject, attachment, published.as_ref())
                    .await?
            }
            Command::MarkDetached => {
                let marked = self.request(attachment, AttachmentRequest::MarkDetached).await;
                marked.map_err(|error| SyncError::api("could not mark as detached", &error))?;
                return Ok(Effect::Wrote);
            }
            Command::RemoveFinalizer(proof) => {
                return self.remove_finalizer(subject, attachment, proof, sync).await;
            }
        }
        Ok(Effect::None)
    }

    fn progress(&self, subject: &Subject, change: impl FnOnce(&mut Progress)) {
        change(self.state().progress(subject));
    }

    /// The newest version of the subject's VolumeAttachment.
    fn newest(&self, subject: &Subject) -> Arc<Attachment> {
        let known = subject.attachment();
        let newest = self.state().index.attachments.get(&known.name).cloned();
        newest
            .filter(|newest| newest.uid == known.uid)
            .unwrap_or_else(|| known.clone())
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

    /// Reads a Secret. A deleted one must not block a detach permanently, and a driver that needs it returns an error. A forbidden
    /// one may be deleted, too: the deletion of its namespace also deletes the RoleBinding that allows us to read it.
    async fn get_secret(
        &self,
        subject: &Subject,
        secret: &SecretRef,
        is_required: bool,
    ) -> Result<Effect, SyncError> {
        let content = match self.unless_draining(self.cluster.secret(secret)).await? {
            Ok(content) => Some(content),
            Err(error) if !is_required && (error.is_gone() || error.is_forbidden()) => {
                tracing::warn!(%secret, error = chain(&error), "cannot read the Secret for the detach; calling the driver without it");
                None
            }
            Err(error) => return Err(SyncError::secret(secret, &error)),
        };
        self.progress(subject, |progress| {
            let secrets = &mut progress.sync.secrets;
            secrets.retain(|(known, _)| known != secret);
            secrets.push((secret.clone(), content.is_some()));
        });
        Ok(content.map_or(Effect::None, |content| Effect::Secret(secret.clone(), content)))
    }

    /// Stores our finalizer and the record of the call.
    async fn record(
        &self,
        subject: &Subject,
        attachment: &Attachment,
        record: &Record,
    ) -> Result<(), SyncError> {
        if attachment.finalizer && !attachment.recorded.has_same_target(&record.annotations) {
            self.progress(subject, |progress| progress.is_record_uncertain = true);
        }
        let newest = self.request(attachment, AttachmentRequest::Record(record)).await;
        let newest = newest.map_err(|error| SyncError::api("could not save VolumeAttachment", &error))?;
        let Some(newest) = newest else { return Ok(()) };
        let is_stored = newest.finalizer && newest.recorded.has_same_target(&record.annotations);
        if !newest.deleting && !is_stored {
            // A publish under another record would be unpublished from the wrong target.
            return Err(SyncError::not_recorded());
        }
        self.progress(subject, |progress| progress.is_record_uncertain = false);
        Ok(())
    }

    /// Calls ControllerPublishVolume. The state keeps a target that may be published until the status says so.
    async fn publish(
        &self,
        subject: &Subject,
        attachment: &Arc<Attachment>,
        plan: &AttachPlan,
        sync: &Sync,
    ) -> Result<(), SyncError> {
        let secrets = plan.secret.as_ref().and_then(|secret| sync.secrets.get(secret));
        let request = ControllerPublishVolumeRequest {
            volume_id: plan.target.volume_id.to_string(),
            node_id: plan.target.node_id.to_string(),
            volume_capability: Some(plan.capability.clone()),
            readonly: plan.read_only,
            secrets: secrets.cloned().unwrap_or_default().0,
            volume_context: plan.volume_context.clone().into_iter().collect(),
        };
        let connection = self.state().publish_begins(&plan.target);
        let result = self
            .call(&key(subject), self.csi.publish(request, plan.migrated))
            .await;
        let mut state = self.state();
        state.publish_ended(&plan.target);
        if result.as_ref().err().is_none_or(CallError::may_have_taken_effect) {
            state.may_be_published(Orphan {
                target: plan.target.clone(),
                secret: plan.secret.clone(),
                migrated: plan.migrated,
                attachment: attachment.clone(),
            });
        }
        let context = result.map_err(|error| {
            // A pod uses an attached volume under the recorded node id, so it stays there although the node registers another one.
            let present = state.present_node_id(attachment);
            match present.filter(|present| attachment.attached && *present != plan.target.node_id) {
                Some(present) => SyncError::other_node_id(&plan.target, &present, &error),
                None => SyncError::call(&error),
            }
        })?;
        let published = Published {
            target: plan.target.clone(),
            context,
            connection,
        };
        state.progress(subject).published = Some(published);
        Ok(())
    }

    /// Calls ControllerUnpublishVolume. An answer that another proof may outweigh is no error yet.
    async fn unpublish(
        &self,
        subject: &Subject,
        target: &PublishTarget,
        secret: Option<&SecretRef>,
        migrated: bool,
        sync: &Sync,
    ) -> Result<Effect, SyncError> {
        let PublishTarget { volume_id, node_id } = target;
        if subject.operation() != Some(Operation::Detach) {
            tracing::warn!(volume = %volume_id, %node_id, "unpublishing the target of an earlier attach");
        }
        let not_connected = || SyncError::call(&CallError::not_connected("the CSI driver is not connected"));
        let session = self.csi.session().ok_or_else(not_connected)?;
        let secrets = secret.and_then(|secret| sync.secrets.get(secret));
        let missing = secret.filter(|_| secrets.is_none());
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume_id.to_string(),
            node_id: node_id.to_string(),
            secrets: secrets.cloned().unwrap_or_default().0,
        };
        let error = self
            .call(&key(subject), self.csi.unpublish(request, migrated))
            .await
            .err();
        let result = match &error {
            None => UnpublishResult::Unpublished,
            // An answer of another session may be about another process, whose caches are cold.
            Some(error) if error.reach == Reach::Answered && self.csi.session() == Some(session) => {
                UnpublishResult::from_code(error.code.number(), missing.is_none())
            }
            Some(_) => UnpublishResult::Failed,
        };
        self.state().unpublish_ended(subject, target, session, result);
        let Some(error) = error else {
            tracing::debug!(volume = %volume_id, %node_id, "unpublished");
            return Ok(Effect::None);
        };
        let failed = SyncError::call_without(missing, &error);
        match result {
            UnpublishResult::Failed => Err(failed),
            _ => Ok(Effect::Failed(failed)),
        }
    }

    /// Writes the result of a publish, or that the driver needs none.
    async fn mark_attached(
        &self,
        subject: &Subject,
        attachment: &Arc<Attachment>,
        published: Option<&Published>,
    ) -> Result<(), SyncError> {
        let none = BTreeMap::new();
        let context = published.map_or(&none, |published| &published.context);
        let error = match self
            .request(attachment, AttachmentRequest::MarkAttached(context))
            .await
        {
            Ok(None) => return Ok(()),
            Ok(Some(_)) => {
                self.progress(subject, |progress| progress.sync.is_done = true);
                match published.map(|published| &published.target) {
                    Some(PublishTarget { volume_id, node_id }) => {
                        tracing::info!(volume = %volume_id, %node_id, "attached");
                        self.report_attached(attachment);
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
        let is_refused = matches!(
            error,
            Error::Refused {
                status: 400..=499,
                retry_after: None,
                ..
            }
        );
        Err(SyncError {
            reported: is_refused && !error.is_unauthorized(),
            ..failed
        })
    }

    /// Removes our finalizer, which ends the detach latency.
    async fn remove_finalizer(
        &self,
        subject: &Subject,
        attachment: &Attachment,
        proof: &Proof,
        sync: &Sync,
    ) -> Result<Effect, SyncError> {
        if let Some(error) = &sync.failed {
            let error = &error.message;
            tracing::warn!(
                error,
                "the volume counts as unpublished, by lists, repeated answers or --assume-unpublished-after"
            );
        }
        self.progress(subject, |progress| progress.uncertain = None);
        let removed = self
            .request(attachment, AttachmentRequest::RemoveFinalizer(proof))
            .await;
        removed.map_err(|error| SyncError::api("could not mark as detached", &error))?;
        // The response is as good as a read.
        self.progress(subject, |progress| progress.sync.is_attachment_read = true);
        self.observe_latency(Operation::Detach, attachment);
        Ok(Effect::Wrote)
    }

    fn report_detached(&self, subject: &Subject, sync: &Sync) {
        if sync.wrote {
            tracing::info!("detached");
            self.report_recovery(Operation::Detach, subject.attachment());
        }
    }

    fn stopped(&self, stop: Stop, failed: Option<SyncError>) -> SyncError {
        match stop {
            Stop::Refused(refusal) => SyncError::refused(&refusal),
            Stop::NoPublishCalls => SyncError::no_publish_calls(&self.driver.finalizer),
            Stop::Unproven(plan) => SyncError::unproven(&plan, &self.driver.finalizer, failed.as_ref()),
            Stop::Failed => failed.unwrap_or_else(SyncError::outdated),
            Stop::MissingFinalizer(target) => SyncError::missing_finalizer(&target),
            Stop::AmbiguousNodeId(target) => SyncError::ambiguous_node_id(&target),
        }
    }
}

/// The key whose sync sends the calls.
pub(super) fn key(subject: &Subject) -> Key {
    match subject {
        Subject::Attachment(_, attachment) => Key::Attachment(attachment.name.clone()),
        Subject::Orphan(orphan) => Key::Target(orphan.target.clone()),
    }
}
