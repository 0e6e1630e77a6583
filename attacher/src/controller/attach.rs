//! Attach: record, publish, write the status.

use std::collections::BTreeMap;
use std::sync::Arc;

use csi_proto::v1::ControllerPublishVolumeRequest;

use super::keyed_mutex::KeyedGuard;
use super::state::{AbandonedTarget, PendingStatusWrite};
use super::{Controller, SyncError};
use crate::csi::{CallError, ControllerClient};
use crate::kube_api::{AttachmentRequest, Cluster, Error};
use crate::model::{Attachment, Driver, PublishTarget, Recorded, Secrets, Volume};
use crate::plan::{self, AttachPlan, Record, Refusal};
use crate::workqueue::Key;

/// The plan of an attach, made before its first write.
struct PlannedAttach {
    attachment: Arc<Attachment>,
    plan: AttachPlan,
    driver: Driver,
    /// The PersistentVolume, if the store does not have it.
    missing_volume: Option<Arc<Volume>>,
}

/// The result of ControllerPublishVolume, with the lock under which the status is written.
type Published = (BTreeMap<String, String>, KeyedGuard);

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Attaches the volume, or completes what an earlier sync began; also republishes an attached volume.
    ///
    /// The plan is made three times, each time from the newest objects: before the first write, under the target's lock
    /// before the call, and before the status write.
    pub(super) async fn attach(&self, attachment: &Arc<Attachment>) -> Result<(), SyncError> {
        let pending = self.state().state_of(&attachment.uid).pending.clone();
        match pending {
            // If the status says detached, the list result is not sufficient: the volume must be published to get its
            // publish context.
            Some(PendingStatusWrite::Listed) if attachment.attached => {
                return self.clear_error(attachment).await;
            }
            // Writing a known result needs neither the driver nor a plan, and continues during a shutdown.
            Some(PendingStatusWrite::Published { target, context }) => {
                let _guard = self.target_mutexes.lock(&target).await;
                let Some((newest, is_valid)) = self.is_result_valid(attachment, &target) else {
                    return Ok(());
                };
                if is_valid {
                    return self.mark_attached(&newest, &target, context).await;
                }
            }
            Some(PendingStatusWrite::Listed | PendingStatusWrite::Unpublished(_)) | None => {}
        }
        self.state().state_of(&attachment.uid).pending = None;
        let driver = self.unless_draining(self.ready_driver()).await??;
        let Some(planned) = self.plan_attach(attachment, driver).await? else {
            return Ok(());
        };
        let Some((context, _guard)) = self.publish_planned(&planned).await? else {
            return Ok(());
        };
        // No pod uses the volume until the status says attached. So if its target changed, the next sync unpublishes it
        // before it publishes again. A VolumeAttachment that is no longer wanted still gets the result of its publish.
        let PlannedAttach { attachment, plan, .. } = &planned;
        match self.plan_now(attachment, &planned.driver, planned.missing_volume.as_ref()) {
            Some((_, Ok(now))) if now.target != plan.target => Err(SyncError::outdated()),
            Some(_) | None => self.mark_attached(attachment, &plan.target, context).await,
        }
    }

    /// Plans from the current objects in the informer's store. `None` if the VolumeAttachment is gone or being deleted.
    fn plan_now(
        &self,
        attachment: &Attachment,
        driver: &Driver,
        missing_volume: Option<&Arc<Volume>>,
    ) -> Option<(Arc<Attachment>, Result<AttachPlan, Refusal>)> {
        let newest = self.state().newest_inputs(attachment);
        let mut inputs = newest.filter(|inputs| !inputs.attachment.deleting)?;
        inputs.volume = inputs.volume.or_else(|| missing_volume.cloned());
        let plan = plan::attach(&inputs, driver);
        Some((inputs.attachment, plan))
    }

    /// The first plan of an attach. `None` if there is nothing to publish.
    async fn plan_attach(
        &self,
        attachment: &Arc<Attachment>,
        driver: Driver,
    ) -> Result<Option<PlannedAttach>, SyncError> {
        if !driver.capabilities.publish {
            self.attach_without_call(attachment).await?;
            return Ok(None);
        }
        let mut missing_volume = None;
        let mut planned = self.plan_now(attachment, &driver, None);
        if let Some((_, Err(Refusal::VolumeNotFound(name)))) = &planned {
            missing_volume = self.unless_draining(self.missing_volume(name)).await??;
            planned = self.plan_now(attachment, &driver, missing_volume.as_ref());
        }
        let Some((attachment, plan)) = planned else {
            return Ok(None);
        };
        let mut plan = match plan {
            Ok(plan) => plan,
            Err(refusal) => {
                self.restore_finalizer(&attachment).await?;
                return Err(SyncError::refused(&refusal));
            }
        };
        if self.state().state_of(&attachment.uid).node_id_update_pending {
            // Writing it again makes the record certain.
            plan.record.get_or_insert_with(|| Record {
                annotations: attachment.recorded.clone(),
                whole: true,
            });
        }
        Ok(Some(PlannedAttach {
            attachment,
            plan,
            driver,
            missing_volume,
        }))
    }

    /// The newest VolumeAttachment, and whether the publish result for `target` may be written: the current plan has the
    /// same target, or it refuses the attach, but our finalizer and the recorded target ensure a detach. `None` if the
    /// VolumeAttachment is gone or being deleted.
    fn is_result_valid(
        &self,
        attachment: &Attachment,
        target: &PublishTarget,
    ) -> Option<(Arc<Attachment>, bool)> {
        // The target does not depend on the driver's capabilities.
        let (newest, plan) = self.plan_now(attachment, &self.driver, None)?;
        let Recorded { node_id, handle, .. } = &newest.recorded;
        let is_valid = match plan {
            Ok(now) => now.target == *target && now.record.is_none() && now.stale.is_none(),
            Err(_) => {
                let is_recorded = node_id.as_ref() == Some(&target.node_id)
                    && handle.as_ref().is_none_or(|handle| *handle == target.volume_id);
                newest.finalizer && is_recorded
            }
        };
        Some((newest, is_valid))
    }

    /// Marks the volume attached without a call, as the driver has no publish calls. One that has our finalizer or record may be
    /// published: the driver had the calls, and most likely restarts wrongly.
    async fn attach_without_call(&self, attachment: &Attachment) -> Result<(), SyncError> {
        let newest = self.state().newest_inputs(attachment);
        let Some(inputs) = newest.filter(|inputs| !inputs.attachment.deleting) else {
            return Ok(());
        };
        let attachment = &inputs.attachment;
        if attachment.attached {
            return Ok(());
        }
        if attachment.finalizer || attachment.recorded.node_id.is_some() {
            return Err(SyncError::no_publish_calls(&self.driver.finalizer));
        }
        let mark = AttachmentRequest::MarkAttached(&BTreeMap::new());
        let marked = self.request(attachment, mark).await;
        if marked
            .map_err(|error| SyncError::api("failed to mark as attached", &error))?
            .is_some()
        {
            tracing::info!("attached without a call");
        }
        Ok(())
    }

    /// Records and publishes. `None` if the attach is no longer wanted.
    async fn publish_planned(&self, planned: &PlannedAttach) -> Result<Option<Published>, SyncError> {
        let PlannedAttach {
            attachment,
            plan,
            driver,
            missing_volume,
        } = planned;
        let Some(secrets) = self.prepare(attachment, plan).await? else {
            return Ok(None);
        };
        let guard = self
            .unless_draining(self.target_mutexes.lock(&plan.target))
            .await?;
        match self.plan_now(attachment, driver, missing_volume.as_ref()) {
            None => return Ok(None),
            Some((_, Err(refusal))) => return Err(SyncError::refused(&refusal)),
            Some((_, Ok(now))) if !plan.is_still_valid(&now) => return Err(SyncError::outdated()),
            Some((_, Ok(_))) => {}
        }
        let published = self.publish(attachment, plan, secrets).await;
        let context = published.map_err(|error| self.publish_error(attachment, plan, &error))?;
        Ok(Some((context, guard)))
    }

    /// The error of a publish. A pod uses an attached volume under the recorded node id, so it stays there although the node
    /// registers another one now.
    fn publish_error(&self, attachment: &Attachment, plan: &AttachPlan, error: &CallError) -> SyncError {
        let present = self.state().present_node_id(attachment);
        match present.filter(|present| attachment.attached && *present != plan.target.node_id) {
            Some(present) => SyncError::other_node_id(&plan.target, &present, error),
            None => SyncError::call(error),
        }
    }

    /// Adds our finalizer to an attached VolumeAttachment that lost it and cannot be republished (for example, because its
    /// PersistentVolume was deleted): its record suffices for a detach, and detaches of the same volume wait for it.
    async fn restore_finalizer(&self, attachment: &Attachment) -> Result<(), SyncError> {
        let Attachment { recorded, .. } = attachment;
        let is_recorded = recorded.node_id.is_some() && recorded.handle.is_some();
        if attachment.attached && !attachment.finalizer && is_recorded {
            let record = Record {
                annotations: recorded.clone(),
                whole: true,
            };
            self.record(attachment, &record).await?;
        }
        Ok(())
    }

    /// The steps before the call: unpublishes stale targets, reads the Secret, and stores record and finalizers. `None` if
    /// the attach is no longer wanted.
    ///
    /// The Secret comes first: without it a detach may fail, too, and a VolumeAttachment without our finalizer can be
    /// deleted without a detach. The writes of both finalizers run concurrently, and neither is reverted if the other
    /// fails: other detaches may already rely on the VolumeAttachment's.
    async fn prepare(
        &self,
        attachment: &Arc<Attachment>,
        plan: &AttachPlan,
    ) -> Result<Option<Secrets>, SyncError> {
        let stale_guards = match &plan.stale {
            None => None,
            Some(stale) => {
                if !self.unless_draining(self.is_still_wanted(attachment)).await?? {
                    return Ok(None);
                }
                Some(self.undo(attachment, stale, plan).await?)
            }
        };
        let prepare = async {
            let secrets = match &plan.secret {
                None => Secrets::default(),
                Some(secret) => {
                    let secrets = self.unless_draining(self.cluster.secret(secret)).await?;
                    secrets.map_err(|error| SyncError::secret(secret, &error))?
                }
            };
            let add_pv_finalizer = async {
                match &plan.pv_finalizer {
                    Some(finalizer) => self.add_pv_finalizer(finalizer).await,
                    None => Ok(()),
                }
            };
            let record = async {
                match &plan.record {
                    Some(record) => self.write_unless_draining(self.record(attachment, record)).await,
                    None => Ok(true),
                }
            };
            // Both writes complete independently of each other's result: each retry would repeat an aborted write.
            let (pv_finalizer, wanted) = futures::join!(add_pv_finalizer, record);
            if !wanted? {
                return Ok(None);
            }
            pv_finalizer?;
            Ok(Some(secrets))
        };
        let prepared = prepare.await;
        // Released before the target's mutex is locked, to avoid a deadlock of two syncs.
        drop(stale_guards);
        prepared
    }

    /// Stores our finalizer and the record of the call. Returns whether the VolumeAttachment is still wanted.
    async fn record(&self, attachment: &Attachment, record: &Record) -> Result<bool, SyncError> {
        if attachment.finalizer && !attachment.recorded.has_same_target(&record.annotations) {
            self.state().state_of(&attachment.uid).node_id_update_pending = true;
        }
        let newest = self.request(attachment, AttachmentRequest::Record(record)).await;
        let newest = newest.map_err(|error| SyncError::api("could not save VolumeAttachment", &error))?;
        let Some(newest) = newest else {
            return Ok(false);
        };
        let is_stored = newest.finalizer && newest.recorded.has_same_target(&record.annotations);
        if !newest.deleting && !is_stored {
            // A publish under another record would be unpublished from the wrong target.
            return Err(SyncError::not_recorded());
        }
        self.state().state_of(&attachment.uid).node_id_update_pending = false;
        Ok(!newest.deleting)
    }

    /// Calls ControllerPublishVolume. The state keeps a target that may be published until the status says so.
    async fn publish(
        &self,
        attachment: &Arc<Attachment>,
        plan: &AttachPlan,
        secrets: Secrets,
    ) -> Result<BTreeMap<String, String>, CallError> {
        let request = ControllerPublishVolumeRequest {
            volume_id: plan.target.volume_id.to_string(),
            node_id: plan.target.node_id.to_string(),
            volume_capability: Some(plan.capability.clone()),
            readonly: plan.read_only,
            secrets: secrets.0,
            volume_context: plan.volume_context.clone().into_iter().collect(),
        };
        let key = Key::Attachment(attachment.name.clone());
        self.state().publish_begins(&plan.target);
        let result = self.call(&key, self.csi.publish(request, plan.migrated)).await;
        self.state().publish_ended(&plan.target);
        if result.as_ref().err().is_none_or(CallError::may_have_taken_effect) {
            self.state().may_be_published(AbandonedTarget {
                target: plan.target.clone(),
                secret: plan.secret.clone(),
                migrated: plan.migrated,
                attachment: attachment.clone(),
            });
        }
        result
    }

    /// Clears an outdated error: the driver lists the volume on its node.
    async fn clear_error(&self, attachment: &Attachment) -> Result<(), SyncError> {
        // ListVolumes returns no publish context, so the status keeps its own.
        let with_context = Attachment {
            metadata_keys: Box::default(),
            ..attachment.clone()
        };
        let mark = AttachmentRequest::MarkAttached(&BTreeMap::new());
        match self.request(&with_context, mark).await {
            Ok(newest) => {
                if newest.is_some() {
                    self.report_attached(attachment);
                }
                Ok(())
            }
            Err(error) => Err(SyncError {
                reported: false,
                ..SyncError::api("failed to clear the attach error", &error)
            }),
        }
    }

    async fn mark_attached(
        &self,
        attachment: &Arc<Attachment>,
        target: &PublishTarget,
        context: BTreeMap<String, String>,
    ) -> Result<(), SyncError> {
        let mark = AttachmentRequest::MarkAttached(&context);
        let error = match self.request(attachment, mark).await {
            Ok(None) => return Ok(()),
            Ok(Some(_)) => {
                tracing::info!(volume = %target.volume_id, node_id = %target.node_id, "attached");
                self.report_attached(attachment);
                return Ok(());
            }
            Err(error) => error,
        };
        let failed = SyncError::api("failed to mark as attached", &error);
        if error.is_final() {
            // The API server will never store this result (for example, the context is too large): the error is reported,
            // and the next sync publishes again.
            self.state().state_of(&attachment.uid).pending = None;
            return Err(failed);
        }
        // The volume is attached, and the next sync writes the status.
        let published = PendingStatusWrite::Published {
            target: target.clone(),
            context,
        };
        self.state().keep_pending(attachment, published);
        // Missing RBAC permissions are not specific to this VolumeAttachment; the log reports them.
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
}
