//! Binds claims to volumes and keeps the phases of both: the PV controller of kube-controller-manager.
//!
//! [`super::decision`] makes the decisions. Every write carries the resourceVersion that its decision is based on, so
//! the API server rejects a stale decision and the controller decides again.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, interval, sleep_until};

use super::Item;
use super::claims::{
    ANN_BETA_STORAGE_PROVISIONER, ANN_BIND_COMPLETED, ANN_BOUND_BY_CONTROLLER, ANN_MIGRATED_TO,
    ANN_PROVISIONED_BY, ANN_STORAGE_PROVISIONER, annotation, claim_phase, class_name, find_by_claim,
    volume_phase,
};
use super::decision::{ClaimAction, VolumeAction, decide_claim, decide_volume};
use super::waiting_claims::{consumers_text, default_class_for};
use crate::event_recorder::{EventRecorder, EventType};
use crate::informer::{Change, Key, key_of};
use crate::informers::Informers;
use crate::migration::migrated_driver;
use crate::workqueue::WorkQueue;

/// Resync period of unbound claims and volumes.
const RESYNC_PERIOD: Duration = Duration::from_secs(15);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(10);

/// The PV controller.
pub(crate) struct PersistentVolumeController {
    pub client: Client,
    pub informers: Informers,
    pub recorder: EventRecorder,
}

// === impl PersistentVolumeController ===

impl PersistentVolumeController {
    /// Runs until the future is dropped. The call subscribes, so that the controller misses no change.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let mut claims = self.informers.claims.subscribe();
        let mut volumes = self.informers.volumes.subscribe();
        async move {
            self.informers.wait_for_sync().await;
            let mut queue = WorkQueue::new(FIRST_RETRY, MAX_RETRY);
            let mut resync = interval(RESYNC_PERIOD);
            loop {
                tokio::select! {
                    biased;
                    Some(change) = claims.recv() => claim_changed(&mut queue, &change),
                    Some(change) = volumes.recv() => volume_changed(&mut queue, &change),
                    _ = resync.tick() => self.enqueue_unbound(&mut queue),
                    () = sleep_until(queue.next_due().unwrap_or_else(Instant::now)),
                        if queue.next_due().is_some() => {}
                }
                while let Some(item) = queue.pop(Instant::now()) {
                    match self.sync(&item, &mut queue).await {
                        Ok(()) => queue.forget(&item),
                        Err(error) => {
                            tracing::debug!(?item, %error, "sync failed, trying again");
                            queue.add_rate_limited(item, Instant::now());
                        }
                    }
                }
            }
        }
    }

    /// What is bound needs no resync: its changes enqueue it.
    fn enqueue_unbound(&self, queue: &mut WorkQueue<Item>) {
        let volumes = self.informers.volumes.list().into_iter();
        for volume in volumes.filter(|volume| volume_phase(volume) != "Bound") {
            queue.add_unless_delayed(Item::Volume(volume.metadata.name.clone().unwrap_or_default()));
        }
        let claims = self.informers.claims.list().into_iter();
        for claim in claims.filter(|claim| claim_phase(claim) != "Bound") {
            queue.add_unless_delayed(Item::Claim(key_of(&*claim)));
        }
    }

    async fn sync(&self, item: &Item, queue: &mut WorkQueue<Item>) -> kube::Result<()> {
        match item {
            Item::Claim((namespace, name)) => match self.informers.claims.get(namespace, name) {
                Some(claim) => self.sync_claim(&claim).await,
                None => Ok(()),
            },
            Item::Volume(name) => match self.informers.volumes.get("", name) {
                Some(volume) => self.sync_volume(&volume, queue).await,
                None => Ok(()),
            },
        }
    }

    async fn sync_claim(&self, claim: &PersistentVolumeClaim) -> kube::Result<()> {
        if let Some(migrated) = migration_annotation(claim) {
            // The change enqueues the item again.
            return self.patch_claim(claim, migrated).await.map(drop);
        }
        let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let volumes = match wanted.filter(|name| !name.is_empty()) {
            Some(name) => self.informers.volumes.get("", name).into_iter().collect(),
            None => self.informers.volumes.list(),
        };
        let class = self.informers.classes.get("", class_name(claim));
        if let Some(default) = default_class_for(claim, &self.informers) {
            let bound = find_by_claim(claim, volumes.iter().map(|volume| &**volume), false);
            if bound.is_none() {
                let patch = json!({"spec": {"storageClassName": default.metadata.name}});
                // The change enqueues the item again.
                return self.patch_claim(claim, patch).await.map(drop);
            }
        }
        let action = decide_claim(claim, &volumes, class.as_deref());
        match action {
            ClaimAction::Nothing => Ok(()),
            ClaimAction::Bind(name) => match volumes.iter().find(|v| v.metadata.name.as_ref() == Some(&name))
            {
                Some(volume) => self.bind(volume, claim).await,
                None => Ok(()),
            },
            ClaimAction::Provision(provisioner) => self.leave_to_provisioner(claim, &provisioner).await,
            ClaimAction::WaitForFirstConsumer => {
                let (reason, message) = consumers_text(claim, &self.informers);
                self.recorder.event(claim, EventType::Normal, reason, &message);
                self.set_claim_phase(claim, "Pending").await
            }
            ClaimAction::WaitForVolume => self.set_claim_phase(claim, "Pending").await,
            ClaimAction::Wait(kind, reason, message) => {
                self.recorder.event(claim, kind, reason, &message);
                self.set_claim_phase(claim, "Pending").await
            }
            ClaimAction::Lost(reason, message) => {
                if claim_phase(claim) != "Lost" {
                    self.recorder.event(claim, EventType::Warning, reason, message);
                }
                self.set_claim_phase(claim, "Lost").await
            }
        }
    }

    async fn leave_to_provisioner(
        &self,
        claim: &PersistentVolumeClaim,
        provisioner: &str,
    ) -> kube::Result<()> {
        // The driver that replaced an in-tree plugin provisions its classes, too.
        let provisioner = migrated_driver(provisioner).unwrap_or(provisioner);
        if annotation(claim, ANN_STORAGE_PROVISIONER) != Some(provisioner) {
            let annotations = json!({
                ANN_STORAGE_PROVISIONER: provisioner,
                ANN_BETA_STORAGE_PROVISIONER: provisioner,
            });
            self.patch_claim(claim, json!({"metadata": {"annotations": annotations}}))
                .await?;
        }
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by \
             the system administrator. If volume creation is delayed, please verify that the provisioner is running \
             and correctly registered."
        );
        self.recorder
            .event(claim, EventType::Normal, "ExternalProvisioning", &message);
        self.set_claim_phase(claim, "Pending").await
    }

    /// The four steps of a binding. It skips completed steps, so that a restarted controller resumes between two steps.
    async fn bind(&self, volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> kube::Result<()> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let claim_ref = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let mut bound = volume.clone();
        if claim_ref.and_then(|owner| owner.uid.as_ref()) != claim.metadata.uid.as_ref() {
            let mut patch = json!({"spec": {"claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace, "name": claim.metadata.name, "uid": claim.metadata.uid,
                "resourceVersion": claim.metadata.resource_version,
            }}});
            if claim_ref.is_none() {
                patch["metadata"]["annotations"] = json!({ANN_BOUND_BY_CONTROLLER: "yes"});
            }
            bound = self.patch_volume(volume, patch).await?;
        }
        self.set_volume_phase(&bound, "Bound").await?;
        let mut claim = claim.clone();
        let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let mut patch = json!({});
        if wanted.unwrap_or_default().is_empty() {
            patch["spec"]["volumeName"] = json!(name);
            patch["metadata"]["annotations"][ANN_BOUND_BY_CONTROLLER] = json!("yes");
        }
        if annotation(&claim, ANN_BIND_COMPLETED).is_none() {
            patch["metadata"]["annotations"][ANN_BIND_COMPLETED] = json!("yes");
        }
        if patch != json!({}) {
            claim = self.patch_claim(&claim, patch).await?;
        }
        self.set_claim_bound(&claim, &bound).await
    }

    async fn set_claim_bound(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> kube::Result<()> {
        let spec = volume.spec.clone().unwrap_or_default();
        let status = claim.status.clone().unwrap_or_default();
        if status.phase.as_deref() == Some("Bound") && status.access_modes == spec.access_modes {
            return Ok(());
        }
        let status = json!({"phase": "Bound", "accessModes": spec.access_modes, "capacity": spec.capacity});
        self.patch_claim_status(claim, status).await
    }

    /// Annotates a volume of a migrated in-tree plugin with the CSI driver that replaced the plugin; returns whether
    /// the volume changed.
    async fn mark_as_migrated(&self, volume: &PersistentVolume) -> kube::Result<bool> {
        let driver = annotation(volume, ANN_PROVISIONED_BY).and_then(migrated_driver);
        if driver.is_none() || driver == annotation(volume, ANN_MIGRATED_TO) {
            return Ok(false);
        }
        let patch = json!({"metadata": {"annotations": {ANN_MIGRATED_TO: driver}}});
        self.patch_volume(volume, patch).await?;
        Ok(true)
    }

    async fn sync_volume(&self, volume: &PersistentVolume, queue: &mut WorkQueue<Item>) -> kube::Result<()> {
        if self.mark_as_migrated(volume).await? {
            // The change enqueues the item again.
            return Ok(());
        }
        let key = claim_key(volume);
        let claim = key
            .as_ref()
            .and_then(|(namespace, name)| self.informers.claims.get(namespace, name));
        if let (Some(key), Some(_)) = (&key, &claim) {
            queue.add_unless_delayed(Item::Claim(key.clone()));
        }
        let mut action = decide_volume(volume, claim.as_deref());
        if matches!(
            action,
            VolumeAction::SetPhase("Released") | VolumeAction::FailDelete
        ) && let Some((namespace, name)) = &key
        {
            // The informer may lack the claim, or still have an earlier claim of this name.
            let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), namespace);
            let claim = claims.get_opt(name).await?;
            action = decide_volume(volume, claim.as_ref());
        }
        match action {
            VolumeAction::Nothing => Ok(()),
            VolumeAction::SetPhase(phase) => self.set_volume_phase(volume, phase).await,
            VolumeAction::FailDelete => self.fail_delete(volume).await,
            VolumeAction::Unbind => {
                let patch = if annotation(volume, ANN_BOUND_BY_CONTROLLER).is_some() {
                    let annotations = json!({ANN_BOUND_BY_CONTROLLER: null});
                    json!({"metadata": {"annotations": annotations}, "spec": {"claimRef": null}})
                } else {
                    // A user pre-bound the volume.
                    json!({"spec": {"claimRef": {"uid": null}}})
                };
                let freed = self.patch_volume(volume, patch).await?;
                self.set_volume_phase(&freed, "Available").await
            }
        }
    }
}

// === impl PersistentVolumeController: writes ===

impl PersistentVolumeController {
    async fn set_volume_phase(&self, volume: &PersistentVolume, phase: &str) -> kube::Result<()> {
        if volume_phase(volume) == phase {
            return Ok(());
        }
        self.patch_volume_status(volume, json!({"phase": phase})).await
    }

    /// As `deleteVolumeOperation` for a volume that no provisioner deletes.
    async fn fail_delete(&self, volume: &PersistentVolume) -> kube::Result<()> {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let message = format!(
            "error getting deleter volume plugin for volume {name:?}: no deletable volume plugin matched"
        );
        self.patch_volume_status(volume, json!({"phase": "Failed", "message": message}))
            .await?;
        self.recorder
            .event(volume, EventType::Warning, "VolumeFailedDelete", &message);
        Ok(())
    }

    async fn patch_volume_status(&self, volume: &PersistentVolume, status: Value) -> kube::Result<()> {
        let patch = with_version(
            json!({ "status": status }),
            volume.metadata.resource_version.as_ref(),
        );
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        Api::<PersistentVolume>::all(self.client.clone())
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(drop)
    }

    async fn set_claim_phase(&self, claim: &PersistentVolumeClaim, phase: &str) -> kube::Result<()> {
        if claim_phase(claim) == phase {
            return Ok(());
        }
        self.patch_claim_status(claim, json!({"phase": phase})).await
    }

    async fn patch_volume(&self, volume: &PersistentVolume, patch: Value) -> kube::Result<PersistentVolume> {
        let patch = with_version(patch, volume.metadata.resource_version.as_ref());
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        Api::<PersistentVolume>::all(self.client.clone())
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
    }

    async fn patch_claim(
        &self,
        claim: &PersistentVolumeClaim,
        patch: Value,
    ) -> kube::Result<PersistentVolumeClaim> {
        let patch = with_version(patch, claim.metadata.resource_version.as_ref());
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        self.claims_of(claim)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
    }

    /// Statuses are written without a resourceVersion: a concurrent change of an annotation does not affect them.
    async fn patch_claim_status(&self, claim: &PersistentVolumeClaim, status: Value) -> kube::Result<()> {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({"metadata": {"uid": claim.metadata.uid}, "status": status});
        self.claims_of(claim)
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(drop)
    }

    fn claims_of(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.client.clone(), namespace)
    }
}

// === functions ===

fn claim_changed(queue: &mut WorkQueue<Item>, change: &Change<PersistentVolumeClaim>) {
    let claim = change.object();
    queue.add_unless_delayed(Item::Claim(key_of(&**claim)));
    if let Some(volume) = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()) {
        queue.add_unless_delayed(Item::Volume(volume));
    }
}

fn volume_changed(queue: &mut WorkQueue<Item>, change: &Change<PersistentVolume>) {
    let volume = change.object();
    queue.add_unless_delayed(Item::Volume(volume.metadata.name.clone().unwrap_or_default()));
    if let Some(claim) = claim_key(volume) {
        queue.add_unless_delayed(Item::Claim(claim));
    }
}

/// A patch of a claim whose annotation with the migrated provisioner is outdated (`updateMigrationAnnotations`).
fn migration_annotation(claim: &PersistentVolumeClaim) -> Option<Value> {
    let provisioner = annotation(claim, ANN_STORAGE_PROVISIONER)
        .or_else(|| annotation(claim, ANN_BETA_STORAGE_PROVISIONER))?;
    let driver = migrated_driver(provisioner);
    (driver != annotation(claim, ANN_MIGRATED_TO))
        .then(|| json!({"metadata": {"annotations": {ANN_MIGRATED_TO: driver}}}))
}

/// The claim in the volume's claimRef.
fn claim_key(volume: &PersistentVolume) -> Option<Key> {
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some((
        claim.namespace.clone().unwrap_or_default(),
        claim.name.clone().unwrap_or_default(),
    ))
}

fn with_version(mut patch: Value, version: Option<&String>) -> Value {
    patch["metadata"]["resourceVersion"] = json!(version);
    patch
}
