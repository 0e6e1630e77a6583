//! A minimal external-attacher: syncs all VolumeAttachments every 50 ms.

use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::sleep;

use crate::driver::FakeDriver;

const FINALIZER: &str = "external-attacher/ebs-csi-aws-com";

/// Runs until dropped.
pub(crate) async fn run(client: Client, driver: FakeDriver) {
    let attachments = Api::<VolumeAttachment>::all(client.clone());
    loop {
        if let Ok(listed) = attachments.list(&ListParams::default()).await {
            for attachment in listed {
                // A conflict or a deleted object: the next round has the current state.
                drop(sync(&client, &driver, &attachment).await);
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn sync(client: &Client, driver: &FakeDriver, attachment: &VolumeAttachment) -> kube::Result<()> {
    let attachments = Api::<VolumeAttachment>::all(client.clone());
    let name = attachment.metadata.name.as_deref().unwrap();
    let node = &attachment.spec.node_name;
    let source = attachment.spec.source.clone();
    let spec = match source.persistent_volume_name {
        Some(volume) => {
            let volumes = Api::<PersistentVolume>::all(client.clone());
            volumes.get(&volume).await?.spec
        }
        None => source.inline_volume_spec,
    };
    let handle = spec.unwrap().csi.unwrap().volume_handle;
    let params = PatchParams::default();
    let protected = attachment
        .metadata
        .finalizers
        .iter()
        .flatten()
        .any(|own| own == FINALIZER);
    if attachment.metadata.deletion_timestamp.is_some() {
        if protected {
            driver.detach(&handle, node);
            let patch = json!({"metadata": {"finalizers": null}});
            attachments.patch(name, &params, &Patch::Merge(patch)).await?;
        }
        return Ok(());
    }
    if attachment.status.as_ref().is_some_and(|status| status.attached) {
        return Ok(());
    }
    if !protected {
        let patch = json!({"metadata": {"finalizers": [FINALIZER]}});
        attachments.patch(name, &params, &Patch::Merge(patch)).await?;
    }
    let status = match driver.attach(&handle, node) {
        Ok(()) => json!({"attached": true, "attachError": null, "attachmentMetadata": {"device": "sda"}}),
        Err(error) => json!({"attached": false, "attachError": {
            "time": "2026-01-01T00:00:00Z",
            "message": format!("rpc error: code = {:?} desc = {}", error.code(), error.message()),
            "errorCode": i32::from(error.code()),
        }}),
    };
    let patch = json!({"status": status});
    attachments
        .patch_status(name, &params, &Patch::Merge(patch))
        .await
        .map(drop)
}
