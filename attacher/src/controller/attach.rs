//! Attach: record, publish, write the status.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::keyed_mutex::KeyedGuard;
use super::state::{AbandonedTarget, PendingStatusWrite};
use super::{Controller, SyncError};
use crate::csi::{CallError, ControllerClient, PublishRequest};
use crate::kube_api::{Cluster, Error, Secrets};
use crate::model::{Attachment, Capabilities, Driver, PublishTarget, Volume};
use crate::plan::{self, AttachInputs, AttachPlan, Operation, Record};

/// An attach as planned from its inputs.
struct PlannedAttach {
    attachment: Arc<Attachment>,
    plan: AttachPlan,
    driver: Driver,
    /// The PersistentVolume, if the store does not have it.
    missing_volume: Option<Arc<Volume>>,
}

/// What ControllerPublishVolume returned, with the lock under which the status is written.
pub(super) type Published<'c> = (BTreeMap<String, String>, KeyedGuard<'c, PublishTarget>);

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Attaches the volume, or completes what an earlier sync began; also republishes an attached volume.
    pub(super) async fn attach(
        &self,
        attachment: &Arc<Attachment>,
        pending: Option<PendingStatusWrite>,
    ) -> Result<(), SyncError> {
        let published = match pending {
            Some(PendingStatusWrite::Listed) => return self.clear_error(attachment).await,
            Some(published @ PendingStatusWrite::Published { .. }) => Some(published),
            Some(PendingStatusWrite::Unpublished) | None => None,
        };
        let planned = match &published {
            // To write a known result is no call: it needs no driver, and goes on during a shutdown.
            Some(_) => {
                let known = self.state().capabilities();
                self.plan_attach(attachment, known).await
            }
            None => self.unless_draining(self.plan_attach(attachment, None)).await,
        };
        let mut planned = match planned {
            Ok(Some(planned)) => planned,
            Ok(None) => return Ok(()),
            Err(error) => {
                // The driver was not called, so the known result still holds.
                if let Some(published) = published {
                    self.state().keep_pending(attachment, published);
                }
                return Err(error);
            }
        };
        let (context, _guard) = match published.and_then(|published| known_context(published, &planned.plan))
        {
            Some(context) => (context, self.target_mutexes.lock(&planned.plan.target).await),
            None => match self.publish_planned(&mut planned).await? {
                Some(published) => published,
                None => return Ok(()),
            },
        };
        self.verify_target(&planned)?;
        self.mark_attached(&planned.attachment, &planned.plan, context)
            .await
    }

    /// Plans the attach from the newest inputs, after waiting for the driver unless its capabilities are `known`. `None` if
    /// the VolumeAttachment is gone or being deleted, or the driver has no publish calls.
    async fn plan_attach(
        &self,
        attachment: &Attachment,
        known: Option<Capabilities>,
    ) -> Result<Option<PlannedAttach>, SyncError> {
        let driver = match known {
            Some(capabilities) => Driver {
                capabilities,
                ..self.driver.clone()
            },
            None => self.ready_driver().await?,
        };
        let newest = self.state().inputs(attachment);
        let Some(inputs) = newest.filter(|inputs| !inputs.attachment.deleting) else {
            return Ok(None);
        };
        let attachment = inputs.attachment.clone();
        if !driver.capabilities.publish {
            self.attach_without_call(&attachment).await?;
            return Ok(None);
        }
        let missing_volume = self.missing_volume(&inputs).await?;
        let inputs = AttachInputs {
            volume: inputs.volume.or_else(|| missing_volume.clone()),
            ..inputs
        };
        let mut plan = match plan::attach(&inputs, &driver) {
            Ok(plan) => plan,
            Err(refusal) => {
                self.restore_finalizer(&attachment).await?;
                return Err(SyncError::refused(&refusal));
            }
        };
        if self.state().is_node_id_update_pending(&attachment) {
            // Written once more, the record is certain again.
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

    /// Plans again from what the store has now.
    fn replan(&self, planned: &PlannedAttach) -> Result<Option<(Arc<Attachment>, AttachPlan)>, SyncError> {
        let newest = self.state().inputs(&planned.attachment);
        let Some(inputs) = newest.filter(|inputs| !inputs.attachment.deleting) else {
            return Ok(None);
        };
        let inputs = AttachInputs {
            volume: inputs.volume.or_else(|| planned.missing_volume.clone()),
            ..inputs
        };
        let plan = plan::attach(&inputs, &planned.driver).map_err(|refusal| SyncError::refused(&refusal))?;
        Ok(Some((inputs.attachment, plan)))
    }

    /// Plans again under the target's lock, before the call; says whether the attach is still wanted. A different plan is an
    /// error: the node may have another id now, so the volume would be published to another machine, or the
    /// PersistentVolume may be terminating.
    fn revalidate(&self, planned: &PlannedAttach) -> Result<bool, SyncError> {
        let Some((attachment, now)) = self.replan(planned)? else {
            return Ok(false);
        };
        let plan = &planned.plan;
        let is_recorded = attachment.finalizer
            && now
                .record
                .as_ref()
                .is_none_or(|record| attachment.recorded.has_same_target(&record.annotations));
        let has_pv_finalizer = now.pv_finalizer.is_none() || now.pv_finalizer == plan.pv_finalizer;
        let calls = |plan: &AttachPlan| {
            (
                plan.target.clone(),
                plan.other_node_id.clone(),
                plan.secret.clone(),
            )
        };
        if !is_recorded || !has_pv_finalizer || calls(&now) != calls(plan) {
            return Err(SyncError::outdated());
        }
        Ok(true)
    }

    /// Plans again before the status write. No pod uses the volume until then, so if its target changed, the next sync
    /// unpublishes it before it publishes again.
    fn verify_target(&self, planned: &PlannedAttach) -> Result<(), SyncError> {
        match self.replan(planned) {
            Ok(Some((_, now))) if now.target != planned.plan.target => Err(SyncError::outdated()),
            // A VolumeAttachment that is no longer wanted still gets the result of its publish.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Marks the volume attached without a call, as the driver has no publish calls. Our finalizer of an earlier driver
    /// version is removed; the record of its publish stays, so that a driver that gets publish calls again unpublishes it.
    async fn attach_without_call(&self, attachment: &Attachment) -> Result<(), SyncError> {
        if !attachment.attached {
            let marked = self.cluster.mark_attached(attachment, &BTreeMap::new()).await;
            let stored = self.store_response(attachment, marked, |_| ());
            let stored = stored.map_err(|error| SyncError::api("failed to mark as attached", &error))?;
            if stored.is_none() {
                return Ok(());
            }
            tracing::debug!("attached without a call");
        }
        if !attachment.finalizer {
            return Ok(());
        }
        let left = self.cluster.remove_finalizer(attachment).await;
        self.store_response(attachment, left, |_| ())
            .map_err(|error| SyncError::api("could not remove VolumeAttachment finalizer", &error))?;
        Ok(())
    }

    /// Records and publishes. `None` if the attach is not wanted any more.
    async fn publish_planned(&self, planned: &mut PlannedAttach) -> Result<Option<Published<'_>>, SyncError> {
        let attachment = &planned.attachment;
        let Some(secrets) = self.prepare(attachment, &planned.plan).await? else {
            return Ok(None);
        };
        let guard = self.lock_target(&planned.plan.target).await?;
        if !self.revalidate(planned)? {
            return Ok(None);
        }
        let error = match self.publish(attachment, &planned.plan, secrets.clone()).await {
            Ok(context) => return Ok(Some((context, guard))),
            Err(error) => error,
        };
        drop(guard);
        let republished = self.publish_to_present_id(attachment, &mut planned.plan, secrets, error);
        republished.await.map(Some)
    }

    /// Everything that must be unpublished, read, and stored before the call. `None` if the attach is not wanted any more.
    ///
    /// The Secret comes first: without it a detach may fail, too, and a VolumeAttachment without our finalizer can be
    /// deleted without a detach. The writes of both finalizers run concurrently, and neither is reverted if the other
    /// fails: other detaches may already rely on the VolumeAttachment's.
    async fn prepare(
        &self,
        attachment: &Arc<Attachment>,
        plan: &AttachPlan,
    ) -> Result<Option<Secrets>, SyncError> {
        let stale_guard = match &plan.stale {
            None => None,
            Some(stale) => {
                if !self.unless_draining(self.is_still_wanted(attachment)).await? {
                    return Ok(None);
                }
                Some(self.undo(attachment, stale, plan).await?)
            }
        };
        let prepare = async {
            if !self.report_new_node_id(attachment, plan).await? {
                return Ok(None);
            }
            let secrets = self.secrets(plan.secret.as_ref()).await;
            let secrets = secrets.map_err(|(reference, error)| SyncError::secret(&reference, &error))?;
            // Both complete whatever the result of the other: an aborted write would be sent again by each retry.
            let (pv_finalizer, wanted) = futures::join!(
                self.add_pv_finalizer(plan.pv_finalizer.as_ref()),
                self.record(attachment, plan.record.as_ref())
            );
            if !wanted? {
                return Ok(None);
            }
            pv_finalizer?;
            Ok(Some(secrets))
        };
        let prepared = self.unless_draining(prepare).await;
        // Released before the target's lock is taken: two syncs must not wait for each other.
        drop(stale_guard);
        prepared
    }

    /// Stores our finalizer and the record of the call. Says whether the VolumeAttachment is still wanted.
    pub(super) async fn record(
        &self,
        attachment: &Attachment,
        record: Option<&Record>,
    ) -> Result<bool, SyncError> {
        let Some(record) = record else { return Ok(true) };
        if attachment.finalizer && !attachment.recorded.has_same_target(&record.annotations) {
            self.state().node_id_update_begins(attachment);
        }
        let newest = self.cluster.record(attachment, record).await;
        let read = self.store_response(attachment, newest, |newest| {
            let stored = newest.finalizer && newest.recorded.has_same_target(&record.annotations);
            (!newest.deleting, stored)
        });
        let read = read.map_err(|error| SyncError::api("could not save VolumeAttachment", &error))?;
        let Some((wanted, stored)) = read else {
            return Ok(false);
        };
        if wanted && !stored {
            // A publish under another record would be unpublished from the wrong target.
            return Err(SyncError::not_recorded());
        }
        self.state().node_id_update_ends(attachment);
        Ok(wanted)
    }

    /// Calls ControllerPublishVolume. The state keeps a target that may be published until the status says so.
    pub(super) async fn publish(
        &self,
        attachment: &Arc<Attachment>,
        plan: &AttachPlan,
        secrets: Secrets,
    ) -> Result<BTreeMap<String, String>, CallError> {
        let request = PublishRequest {
            target: plan.target.clone(),
            capability: plan.capability.clone(),
            read_only: plan.read_only,
            volume_context: plan.volume_context.clone(),
            secrets,
            migrated: plan.migrated,
        };
        let result = self.csi.publish(request).await;
        if result.as_ref().err().is_none_or(CallError::may_have_taken_effect) {
            self.state()
                .may_be_published(AbandonedTarget::new(attachment, plan));
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
        let written = self.cluster.mark_attached(&with_context, &BTreeMap::new()).await;
        match self.store_response(attachment, written, |_| ()) {
            Ok(Some(())) => {
                self.announce_recovery(Operation::Attach, attachment);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => {
                self.state().keep_pending(attachment, PendingStatusWrite::Listed);
                Err(SyncError {
                    reported: false,
                    ..SyncError::api("failed to clear the attach error", &error)
                })
            }
        }
    }

    async fn mark_attached(
        &self,
        attachment: &Arc<Attachment>,
        plan: &AttachPlan,
        context: BTreeMap<String, String>,
    ) -> Result<(), SyncError> {
        let written = self.cluster.mark_attached(attachment, &context).await;
        match self.store_response(attachment, written, |_| ()) {
            Ok(None) => Ok(()),
            Ok(Some(())) => {
                // A republish is not the end of the wait since the creation.
                if !attachment.attached {
                    self.observe_latency(Operation::Attach, attachment);
                }
                tracing::debug!(volume = %plan.target.volume_id, node_id = %plan.target.node_id, "attached");
                self.announce_recovery(Operation::Attach, attachment);
                Ok(())
            }
            // The API server will never store this result (a context that is too large, say): the error is reported, and the
            // next sync publishes again.
            Err(error) if error.is_refusal() => Err(SyncError::api("failed to mark as attached", &error)),
            // The volume is attached, and the next sync writes the status.
            Err(error) => {
                let published = PendingStatusWrite::Published {
                    target: plan.target.clone(),
                    context,
                };
                self.state().keep_pending(attachment, published);
                // Missing rights are no fault of this VolumeAttachment; the log has them.
                let is_refused = matches!(
                    error,
                    Error::Refused {
                        status: 400..=499,
                        retry_after: None,
                        ..
                    }
                );
                let reported = is_refused && !error.is_unauthorized();
                Err(SyncError {
                    reported,
                    ..SyncError::api("failed to mark as attached", &error)
                })
            }
        }
    }
}

/// The context of an earlier publish, if `plan` has the same publish.
fn known_context(published: PendingStatusWrite, plan: &AttachPlan) -> Option<BTreeMap<String, String>> {
    match published {
        PendingStatusWrite::Published { target, context }
            if target == plan.target && plan.record.is_none() && plan.stale.is_none() =>
        {
            Some(context)
        }
        PendingStatusWrite::Published { .. }
        | PendingStatusWrite::Unpublished
        | PendingStatusWrite::Listed => None,
    }
}
