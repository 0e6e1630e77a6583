//! Volumes of a test environment: created at the driver, bound in Kubernetes.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use embedded_cluster::volume::attachment_name;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeError};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{SECRET, STEP_TIMEOUT, TestEnv};
use crate::fixture::{
    Access, BIND_COMPLETED, CAPACITY, SCENARIO_LABEL, VolumeSource, into_ebs_volume, mk_claim, mk_meta,
    mk_persistent_volume,
};
use crate::objects;
use crate::wait::{self, Progress};

/// Volumes that are created concurrently.
const CONCURRENCY: usize = 16;
/// Additional timeout for the binding of each volume.
const BIND_EACH: Duration = Duration::from_millis(200);

/// Names and IDs of a test environment's volume.
#[derive(Clone, Debug)]
pub struct TestVolume {
    /// Name of the PersistentVolume.
    pub pv: String,
    /// Name of the claim, in the test environment's namespace.
    pub claim: String,
    /// The driver's id.
    pub handle: String,
    /// Whether one node or several nodes may have it.
    pub access: Access,
}

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Creates a volume at the driver, and a PersistentVolume and a claim that are bound.
    pub async fn volume(&mut self, name: &str, access: Access) -> Result<TestVolume> {
        self.bound_volume(name, access, |pv| pv).await
    }

    /// Creates a volume like [`Self::volume`], whose PersistentVolume is an in-tree EBS volume with this annotation.
    pub async fn ebs_volume(
        &mut self,
        name: &str,
        access: Access,
        annotation: Option<(&str, &str)>,
    ) -> Result<TestVolume> {
        self.bound_volume(name, access, |pv| into_ebs_volume(pv, annotation))
            .await
    }

    /// Creates a volume for all access modes at the driver, and nothing in Kubernetes; returns its handle.
    pub async fn unbound_volume(&mut self, name: &str) -> Result<String> {
        let pv = format!("{}-{name}", self.prefix);
        let made = self.driver.create_volume_with_all_access_modes(&pv).await?;
        let volume = TestVolume {
            pv: pv.clone(),
            claim: name.to_owned(),
            handle: made.volume_id.clone(),
            access: Access::ManyNodes,
        };
        self.volumes.insert(pv, volume);
        Ok(made.volume_id)
    }

    /// Creates a PersistentVolume without a claim, with this spec and defaults for size and reclaim policy.
    pub async fn unbound_persistent_volume(&self, name: &str, mut spec: Value) -> Result<()> {
        spec["capacity"] = json!({"storage": CAPACITY});
        spec["persistentVolumeReclaimPolicy"] = "Retain".into();
        let volume = PersistentVolume {
            metadata: mk_meta(&self.prefix, name),
            spec: Some(serde_json::from_value(spec).context("understand the volume's spec")?),
            ..PersistentVolume::default()
        };
        objects::create(&Api::<PersistentVolume>::all(self.client()), &volume)
            .await
            .map(drop)
    }

    /// Creates a volume like [`Self::unbound_volume`] and a PersistentVolume for it like
    /// [`Self::unbound_persistent_volume`], which names the publish Secret in this namespace. Returns the PersistentVolume's
    /// name and the handle.
    pub async fn unbound_volume_with_secret(&mut self, namespace: &str) -> Result<(String, String)> {
        let handle = self.unbound_volume("data").await?;
        let pv = format!("{}-data", self.prefix);
        let spec = json!({
            "accessModes": ["ReadWriteOnce"],
            "csi": {
                "driver": self.driver.name(),
                "volumeHandle": handle,
                "controllerPublishSecretRef": {"name": SECRET, "namespace": namespace},
            },
        });
        self.unbound_persistent_volume(&pv, spec).await?;
        Ok((pv, handle))
    }

    async fn bound_volume(
        &mut self,
        name: &str,
        access: Access,
        change: impl FnOnce(PersistentVolume) -> PersistentVolume,
    ) -> Result<TestVolume> {
        let volume = self.make_volume(name, access, change).await?;
        self.bind(std::slice::from_ref(&volume)).await?;
        self.volumes.insert(volume.pv.clone(), volume.clone());
        Ok(volume)
    }

    /// Creates `count` single-node volumes, several concurrently.
    pub async fn many_volumes(&mut self, count: usize) -> Result<Vec<TestVolume>> {
        self.volumes("data", count, Access::OneNode).await
    }

    /// Creates `count` volumes with this name prefix and access, several concurrently.
    pub async fn volumes(&mut self, name: &str, count: usize, access: Access) -> Result<Vec<TestVolume>> {
        let env = &*self;
        let made: Vec<TestVolume> = futures::stream::iter(0..count)
            .map(|index| async move { env.make_volume(&format!("{name}-{index}"), access, |pv| pv).await })
            .buffered(CONCURRENCY)
            .try_collect()
            .await?;
        env.bind(&made).await?;
        self.volumes
            .extend(made.iter().map(|volume| (volume.pv.clone(), volume.clone())));
        Ok(made)
    }

    /// Makes the PersistentVolume controller complete the binding of volumes and claims that refer to each other.
    ///
    /// The controller binds the volume when it sees it, but syncs the claim only in its next resync, up to fifteen seconds
    /// later, unless the claim changes. So this function marks the claim as bound, after the controller knows the volume: before
    /// that, the controller would set the claim's phase to Lost.
    async fn bind(&self, volumes: &[TestVolume]) -> Result<()> {
        let wanted: BTreeSet<_> = volumes.iter().map(|volume| volume.pv.as_str()).collect();
        let mine = watcher::Config::default().labels(&format!("{SCENARIO_LABEL}={}", self.prefix));
        let what = "all volumes to be bound";
        let within = STEP_TIMEOUT + BIND_EACH * u32::try_from(volumes.len())?;
        wait::for_objects(
            &Api::<PersistentVolume>::all(self.client()),
            mine,
            within,
            what,
            |seen| {
                let bound = seen.values().filter(|pv| {
                    let phase = pv.status.as_ref().and_then(|status| status.phase.as_deref());
                    wanted.contains(pv.name_any().as_str()) && phase == Some("Bound")
                });
                let bound = bound.count();
                Progress::of(bound == wanted.len(), || {
                    format!("{bound} of {} are", wanted.len())
                })
            },
        )
        .await?;
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client(), &self.prefix);
        let patch = Patch::Merge(json!({"metadata": {"annotations": {BIND_COMPLETED: "yes"}}}));
        futures::stream::iter(volumes.iter().map(Ok))
            .try_for_each_concurrent(CONCURRENCY, |volume| {
                let (claims, patch) = (&claims, &patch);
                async move {
                    let patched = claims.patch(&volume.claim, &PatchParams::default(), patch).await;
                    patched
                        .map(drop)
                        .with_context(|| format!("mark the claim {} as bound", volume.claim))
                }
            })
            .await
    }

    async fn make_volume(
        &self,
        name: &str,
        access: Access,
        change: impl FnOnce(PersistentVolume) -> PersistentVolume,
    ) -> Result<TestVolume> {
        let pv = format!("{}-{name}", self.prefix);
        let made = self.driver.create_volume(&pv, access).await?;
        let claim = objects::create(
            &Api::<PersistentVolumeClaim>::namespaced(self.client(), &self.prefix),
            &mk_claim(&self.prefix, name, &pv, access),
        )
        .await?;
        let source = VolumeSource {
            driver: self.driver.name().to_owned(),
            handle: made.volume_id.clone(),
            attributes: made.volume_context.into_iter().collect(),
            access,
            publish_secret: Some((self.prefix.clone(), SECRET.to_owned())),
        };
        objects::create(
            &Api::<PersistentVolume>::all(self.client()),
            &change(mk_persistent_volume(&self.prefix, &pv, &source, &claim)),
        )
        .await?;
        Ok(TestVolume {
            pv,
            claim: name.to_owned(),
            handle: made.volume_id,
            access,
        })
    }

    /// The volume with this name.
    pub fn volume_named(&self, name: &str) -> Result<TestVolume> {
        let mut volumes = self.volumes.values();
        let volume = volumes.find(|volume| volume.claim == name);
        volume
            .cloned()
            .with_context(|| format!("the volume {name} was not made"))
    }

    /// All volumes, except those of provisioned claims that are still pending.
    pub fn all_volumes(&self) -> Vec<TestVolume> {
        self.volumes.values().cloned().collect()
    }

    /// The present PersistentVolume.
    pub async fn persistent_volume(&self, volume: &TestVolume) -> Result<PersistentVolume> {
        Ok(Api::all(self.client()).get(&volume.pv).await?)
    }

    /// Deletes the PersistentVolume, without waiting.
    pub async fn delete_persistent_volume(&self, volume: &TestVolume) -> Result<()> {
        let volumes = Api::<PersistentVolume>::all(self.client());
        objects::delete(&volumes, &volume.pv).await
    }

    /// Deletes the claim, without waiting.
    pub async fn delete_claim(&self, volume: &TestVolume) -> Result<()> {
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client(), &self.prefix);
        objects::delete(&claims, &volume.claim).await
    }

    /// Waits until `condition` holds for the PersistentVolume, which is `None` once it is gone.
    pub async fn wait_for_persistent_volume<T>(
        &self,
        volume: &TestVolume,
        within: Duration,
        what: &str,
        condition: impl FnMut(Option<&PersistentVolume>) -> Progress<T>,
    ) -> Result<T> {
        wait::for_object(&Api::all(self.client()), &volume.pv, within, what, condition).await
    }

    /// Name of the attachment of the volume to the node.
    pub fn attachment_name(&self, volume: &TestVolume, node: usize) -> String {
        attachment_name(&volume.handle, self.driver.name(), self.node(node).name())
    }

    /// Waits until `condition` holds for the attachment of the volume to the node, which is `None` while there is none.
    pub async fn wait_for_attachment<T>(
        &self,
        volume: &TestVolume,
        node: usize,
        within: Duration,
        what: &str,
        condition: impl FnMut(Option<&VolumeAttachment>) -> Progress<T>,
    ) -> Result<T> {
        let name = self.attachment_name(volume, node);
        wait::for_object(&Api::all(self.client()), &name, within, what, condition).await
    }

    /// Waits until the attachment of the volume to the node exists.
    pub async fn wait_until_attachment_exists(
        &self,
        volume: &TestVolume,
        node: usize,
    ) -> Result<VolumeAttachment> {
        self.wait_for_attachment(
            volume,
            node,
            STEP_TIMEOUT,
            "the attachment",
            |attachment| match attachment {
                Some(attachment) => Progress::Reached(attachment.clone()),
                None => Progress::Pending("there is none".to_owned()),
            },
        )
        .await
    }

    /// Waits until the attachment of the volume to the node has an attachError.
    pub async fn wait_for_attach_error(
        &self,
        volume: &TestVolume,
        node: usize,
    ) -> Result<(VolumeAttachment, VolumeError)> {
        self.wait_for_attachment(volume, node, STEP_TIMEOUT, "an attachError", |attachment| {
            let status = attachment.and_then(|attachment| attachment.status.as_ref());
            match (attachment, status.and_then(|status| status.attach_error.as_ref())) {
                (Some(attachment), Some(error)) => Progress::Reached((attachment.clone(), error.clone())),
                _ => Progress::Pending(format!("its status is {status:?}")),
            }
        })
        .await
    }

    /// Waits until the attachment of the volume to the node has a detachError with this text.
    pub async fn wait_for_detach_error(&self, volume: &TestVolume, node: usize, text: &str) -> Result<()> {
        let what = format!("a detachError with {text:?}");
        self.wait_for_attachment(volume, node, STEP_TIMEOUT, &what, |attachment| {
            let status = attachment.and_then(|attachment| attachment.status.as_ref());
            let error = status.and_then(|status| status.detach_error.as_ref());
            let message = error.and_then(|error| error.message.as_deref());
            let failed = message.is_some_and(|message| message.contains(text));
            Progress::of(failed, || format!("its status is {status:?}"))
        })
        .await
    }

    /// Waits until the array has the volume published to the node, or unpublished if `wanted` is false, even if the call
    /// has not returned.
    pub async fn wait_until_published(&self, volume: &TestVolume, node: usize, wanted: bool) -> Result<()> {
        let node_id = self.node(node).node_id();
        self.driver
            .wait_until_published(&volume.handle, node_id, wanted, STEP_TIMEOUT)
            .await
    }

    /// Waits until the attachment of the volume to the node is gone.
    pub async fn wait_until_detached(
        &self,
        volume: &TestVolume,
        node: usize,
        within: Duration,
    ) -> Result<()> {
        let attachments = Api::<VolumeAttachment>::all(self.client());
        let what = format!(
            "the attachment of {} to {} to go",
            volume.pv,
            self.node(node).name()
        );
        wait::for_absence(&attachments, &self.attachment_name(volume, node), within, &what).await
    }
}
