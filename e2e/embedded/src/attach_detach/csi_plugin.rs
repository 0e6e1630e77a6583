//! kube-controller-manager's CSI attacher: creates and deletes VolumeAttachments and waits for the external-attacher,
//! polling the informer's store.
//!
//! Cancellation: dropping an attach or detach leaves the VolumeAttachment unchanged; a restarted controller marks the
//! volume as uncertain.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep_until};

use crate::api_error::message_of;
use crate::informers::Informers;
use crate::volume::{UniqueVolumeName, VolumeSpec, attachment_name, split_unique_name};

/// First delay between two polls of the VolumeAttachment.
const INITIAL_POLL: Duration = Duration::from_millis(500);
/// Maximum delay, reached after about two minutes.
const MAX_POLL: Duration = Duration::from_secs(7);
const POLL_FACTOR: f64 = 1.05;
const POLL_JITTER: f64 = 0.1;

/// An error of an attach or detach, with upstream's text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("kubernetes.io/csi: attacher.Attach failed: {0}")]
    Create(String),
    #[error("kubernetes.io/csi: detacher.Detach failed to delete VolumeAttachment [{name}]: {message}")]
    Delete { name: String, message: String },
    #[error("volume attachment is being deleted")]
    BeingDeleted,
    #[error("{0}")]
    Driver(String),
    #[error("volumeName missing expected data")]
    VolumeName,
    #[error("DetachVolume failed fetching node from API server {volume}: {message}")]
    GetNode { volume: String, message: String },
    #[error("DetachVolume failed {volume}: volume is still in use by node, according to Node status")]
    InUse { volume: String },
    #[error("timed out waiting for external-attacher of {driver} CSI driver to {operation} volume {handle}")]
    TimedOut {
        driver: String,
        operation: &'static str,
        handle: String,
    },
}

/// The CSI volume plugin of the attach/detach controller.
pub(crate) struct CsiPlugin {
    client: Client,
    informers: Informers,
    jitter: Mutex<fastrand::Rng>,
    /// Timeout of an attach or detach.
    timeout: Duration,
}

// === impl CsiPlugin ===

impl CsiPlugin {
    pub(crate) fn new(client: Client, informers: Informers, rng: fastrand::Rng, timeout: Duration) -> Self {
        Self {
            client,
            informers,
            jitter: Mutex::new(rng),
            timeout,
        }
    }

    /// Whether volumes of the driver need a VolumeAttachment; true for a driver without CSIDriver object.
    pub(crate) fn can_attach(&self, driver: &str) -> bool {
        self.informers
            .csi_drivers
            .get("", driver)
            .and_then(|driver| driver.spec.attach_required)
            .unwrap_or(true)
    }

    /// Whether the volume is attached to the node according to its VolumeAttachment. Reads it from the API server if the
    /// informer's store lacks it; as upstream, a failed read counts as detached. A volume that needs no attach counts as
    /// attached.
    pub(crate) async fn is_attached(&self, spec: &VolumeSpec, node: &str) -> bool {
        if !self.can_attach(&spec.driver) {
            return true;
        }
        let name = attachment_name(&spec.handle, &spec.driver, node);
        let status = match self.informers.attachments.get("", &name) {
            Some(known) => known.status.clone(),
            None => {
                let attachments = Api::<VolumeAttachment>::all(self.client.clone());
                let found = attachments.get(&name).await.ok();
                found.and_then(|found| found.status)
            }
        };
        status.is_some_and(|status| status.attached)
    }

    /// Creates the VolumeAttachment, unless it exists, and waits until the volume is attached.
    ///
    /// # Errors
    /// The API server rejected it, the driver failed, or the attacher timed out. The volume may be attached
    /// nevertheless.
    pub(crate) async fn attach(&self, spec: &VolumeSpec, node: &str) -> Result<(), Error> {
        let name = attachment_name(&spec.handle, &spec.driver, node);
        if self.informers.attachments.get("", &name).is_none() {
            // Boxed: the future of a request takes many kilobytes, and this future lives as long as the wait below.
            self.create_attachment(&name, spec, node).boxed().await?;
        }
        // The store may not have a new VolumeAttachment yet.
        let attached =
            |attachment: Option<&VolumeAttachment>| attachment.map_or(Ok(false), verify_attachment_status);
        self.wait(&name, &spec.driver, &spec.handle, "attach", attached)
            .await
    }

    async fn create_attachment(&self, name: &str, spec: &VolumeSpec, node: &str) -> Result<(), Error> {
        let attachment = new_attachment(name, spec, node);
        let attachments = Api::all(self.client.clone());
        match attachments.create(&PostParams::default(), &attachment).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            Err(error) => Err(Error::Create(message_of(&error))),
        }
    }

    /// Deletes the VolumeAttachment and waits until it is gone.
    ///
    /// # Errors
    /// The API server rejected it, the driver failed, or the attacher timed out.
    pub(crate) async fn detach(&self, volume: &UniqueVolumeName, node: &str) -> Result<(), Error> {
        let (driver, handle) = split_unique_name(volume).ok_or(Error::VolumeName)?;
        let name = attachment_name(handle, driver, node);
        if !self.delete_attachment(&name).boxed().await? {
            return Ok(());
        }
        let detached =
            |attachment: Option<&VolumeAttachment>| attachment.map_or(Ok(true), verify_detachment_status);
        // Upstream waits without a volume spec, so its message does not name the driver.
        self.wait(&name, "unknown", handle, "detach", detached).await
    }

    /// Deletes the VolumeAttachment. Returns false if it did not exist.
    async fn delete_attachment(&self, name: &str) -> Result<bool, Error> {
        let attachments = Api::<VolumeAttachment>::all(self.client.clone());
        match attachments.delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(Error::Delete {
                name: name.to_owned(),
                message: message_of(&error),
            }),
        }
    }

    /// Checks that the node does not report the volume as in use. Reads from the API server, because the informer may be
    /// stale.
    ///
    /// # Errors
    /// The volume is in use, or the node could not be read. A node that does not exist uses no volume.
    pub(crate) async fn verify_safe_to_detach(
        &self,
        volume: &UniqueVolumeName,
        spec: Option<&VolumeSpec>,
        node: &str,
    ) -> Result<(), Error> {
        let described = || {
            let name = spec.map_or("nil", |spec| spec.name.as_str());
            format!("for volume {name:?} (UniqueName: {volume:?}) on node {node:?}")
        };
        let fetched = Api::<Node>::all(self.client.clone()).get_opt(node).await;
        let fetched = fetched.map_err(|error| Error::GetNode {
            volume: described(),
            message: message_of(&error),
        })?;
        let in_use = fetched
            .and_then(|node| node.status?.volumes_in_use)
            .is_some_and(|in_use| in_use.contains(volume));
        if in_use {
            return Err(Error::InUse { volume: described() });
        }
        Ok(())
    }

    async fn wait(
        &self,
        name: &str,
        driver: &str,
        handle: &str,
        operation: &'static str,
        is_done: impl Fn(Option<&VolumeAttachment>) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + self.timeout;
        let mut delay = INITIAL_POLL;
        loop {
            let next = Instant::now() + self.jittered(delay);
            if next >= deadline {
                sleep_until(deadline).await;
                return Err(Error::TimedOut {
                    driver: driver.to_owned(),
                    operation,
                    handle: handle.to_owned(),
                });
            }
            sleep_until(next).await;
            if is_done(self.informers.attachments.get("", name).as_deref())? {
                return Ok(());
            }
            delay = delay.mul_f64(POLL_FACTOR).min(MAX_POLL);
        }
    }

    fn jittered(&self, delay: Duration) -> Duration {
        let mut rng = self.jitter.lock().unwrap_or_else(PoisonError::into_inner);
        delay.mul_f64(1.0 + POLL_JITTER * rng.f64())
    }
}

// === functions ===

fn new_attachment(name: &str, spec: &VolumeSpec, node: &str) -> VolumeAttachment {
    let source = match &spec.inline {
        Some(inline) => VolumeAttachmentSource {
            inline_volume_spec: Some((**inline).clone()),
            ..VolumeAttachmentSource::default()
        },
        None => VolumeAttachmentSource {
            persistent_volume_name: Some(spec.name.clone()),
            ..VolumeAttachmentSource::default()
        },
    };
    VolumeAttachment {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: VolumeAttachmentSpec {
            attacher: spec.driver.clone(),
            node_name: node.to_owned(),
            source,
        },
        ..VolumeAttachment::default()
    }
}

fn verify_attachment_status(attachment: &VolumeAttachment) -> Result<bool, Error> {
    if attachment.metadata.deletion_timestamp.is_some() {
        return Err(Error::BeingDeleted);
    }
    let Some(status) = &attachment.status else {
        return Ok(false);
    };
    if status.attached {
        return Ok(true);
    }
    match &status.attach_error {
        Some(error) => Err(Error::Driver(error.message.clone().unwrap_or_default())),
        None => Ok(false),
    }
}

fn verify_detachment_status(attachment: &VolumeAttachment) -> Result<bool, Error> {
    let error = attachment
        .status
        .as_ref()
        .and_then(|status| status.detach_error.as_ref());
    match error {
        Some(error) => Err(Error::Driver(error.message.clone().unwrap_or_default())),
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn attachment_that_the_informer_lacks_is_read() {
        let server = crate::apiserver::ApiServer::new(&crate::apiserver::Options::default());
        let informers = Informers::default();
        let timeout = Duration::from_secs(1);
        let plugin = CsiPlugin::new(server.client(), informers, fastrand::Rng::with_seed(1), timeout);
        let spec = super::super::desired_state_of_world::tests::mk_spec("h", "ReadWriteOnce");
        assert!(!plugin.is_attached(&spec, "a").await);
        let attachments = Api::<VolumeAttachment>::all(server.client());
        let name = attachment_name(&spec.handle, &spec.driver, "a");
        let attachment = new_attachment(&name, &spec, "a");
        attachments
            .create(&PostParams::default(), &attachment)
            .await
            .unwrap();
        let patch = kube::api::Patch::Merge(serde_json::json!({"status": {"attached": true}}));
        let params = kube::api::PatchParams::default();
        attachments.patch_status(&name, &params, &patch).await.unwrap();
        assert!(plugin.is_attached(&spec, "a").await);
    }

    #[test]
    fn attachment_status_decides_whether_the_wait_ends() {
        let attachment = |json: serde_json::Value| -> VolumeAttachment {
            let mut object = serde_json::json!({
                "metadata": {"name": "csi-1"},
                "spec": {"attacher": "d", "nodeName": "a", "source": {"persistentVolumeName": "pv"}},
            });
            object.as_object_mut().unwrap().insert("status".to_owned(), json);
            serde_json::from_value(object).unwrap()
        };
        let cases = [
            (serde_json::json!({"attached": false}), "Ok(false)", "Ok(false)"),
            (serde_json::json!({"attached": true}), "Ok(true)", "Ok(false)"),
            (
                serde_json::json!({"attached": false, "attachError": {"message": "full"}}),
                "Err(Driver(\"full\"))",
                "Ok(false)",
            ),
            (
                serde_json::json!({"attached": true, "detachError": {"message": "busy"}}),
                "Ok(true)",
                "Err(Driver(\"busy\"))",
            ),
        ];
        for (status, attach, detach) in cases {
            let attachment = attachment(status.clone());
            assert_eq!(
                format!("{:?}", verify_attachment_status(&attachment)),
                attach,
                "{status}"
            );
            assert_eq!(
                format!("{:?}", verify_detachment_status(&attachment)),
                detach,
                "{status}"
            );
        }
        let mut deleting = attachment(serde_json::json!({"attached": true}));
        deleting.metadata.deletion_timestamp =
            serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(matches!(
            verify_attachment_status(&deleting),
            Err(Error::BeingDeleted)
        ));
    }
}
