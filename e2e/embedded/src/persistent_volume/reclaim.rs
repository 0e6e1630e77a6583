//! Deletes provisioned volumes whose claim was deleted: the driver's volume first, then the PersistentVolume.

use std::collections::HashMap;

use csi_proto::v1;
use k8s_openapi::api::core::v1::{PersistentVolume, SecretReference};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::claims::{ANN_PROVISIONED_BY, annotation, volume_phase};
use super::provisioned_volume::{ANN_DELETION_SECRET_NAME, ANN_DELETION_SECRET_NAMESPACE, FINALIZER};
use super::provisioner::{Error, Worker};
use crate::api_error::{ignore_not_found, message_of};
use crate::event_recorder::EventType;
use crate::informer::has_finalizer;

// === impl Worker ===

impl Worker {
    pub(super) fn should_delete(&self, volume: &PersistentVolume) -> bool {
        let policy = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        let finalized =
            volume.metadata.deletion_timestamp.is_none() || has_finalizer(&volume.metadata, FINALIZER);
        annotation(volume, ANN_PROVISIONED_BY) == Some(&self.name)
            && policy == Some("Delete")
            && volume_phase(volume) == "Released"
            && finalized
    }

    pub(super) async fn delete(&self, volume: &PersistentVolume) -> bool {
        match self.try_delete(volume).await {
            Ok(()) => true,
            Err(error) => {
                self.provisioner.recorder.event(
                    volume,
                    EventType::Warning,
                    "VolumeFailedDelete",
                    &error.to_string(),
                );
                false
            }
        }
    }

    async fn try_delete(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let attachments = self.provisioner.informers.attachments.list();
        let attached = attachments
            .iter()
            .find(|attachment| attachment.spec.source.persistent_volume_name.as_ref() == Some(&name));
        if let Some(attachment) = attached {
            return Err(Error::StillAttached {
                volume: name,
                node: attachment.spec.node_name.clone(),
            });
        }
        let secret = annotation(volume, ANN_DELETION_SECRET_NAME).filter(|secret| !secret.is_empty());
        let secret = secret.map(|secret| SecretReference {
            name: Some(secret.to_owned()),
            namespace: annotation(volume, ANN_DELETION_SECRET_NAMESPACE).map(str::to_owned),
        });
        // As upstream, the deletion continues: the Secret may have been deleted before the volume.
        let secrets = self.secrets(secret).await.unwrap_or_else(|error| {
            tracing::debug!(volume = name, %error, "failed to get credentials");
            HashMap::new()
        });
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let request = v1::DeleteVolumeRequest {
            volume_id: csi.map(|csi| csi.volume_handle.clone()).unwrap_or_default(),
            secrets,
        };
        self.provisioner
            .driver()
            .controller()
            .delete_volume(request)
            .await?;
        self.remove_object(volume, &name)
            .await
            .map_err(|error| Error::Api(message_of(&error)))
    }

    async fn remove_object(&self, volume: &PersistentVolume, name: &str) -> kube::Result<()> {
        let volumes = Api::<PersistentVolume>::all(self.provisioner.client.clone());
        ignore_not_found(volumes.delete(name, &DeleteParams::default()).await)?;
        if !has_finalizer(&volume.metadata, FINALIZER) {
            return Ok(());
        }
        let patch = json!({"metadata": {
            "uid": volume.metadata.uid,
            "$deleteFromPrimitiveList/finalizers": [FINALIZER],
        }});
        ignore_not_found(
            volumes
                .patch(name, &PatchParams::default(), &Patch::Strategic(patch))
                .await,
        )
    }
}
