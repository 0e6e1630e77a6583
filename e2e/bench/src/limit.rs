//! The limit: a bare loop that sends an attacher's writes with an attacher's RBAC permissions, without
//! watches, decisions or driver calls. It is observed like an attacher, because the observer's watch costs
//! the API server CPU.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use super::bench_env::BenchEnv;

const FINALIZER: &str = "harness/limit";

/// Sends the writes of an attach of each volume: two patches of the VolumeAttachment, the first concurrent
/// with one of the PersistentVolume.
pub(super) async fn attach(client: &Client, env: &BenchEnv, volumes: usize, at_once: usize) -> Result<()> {
    let attachments: Api<VolumeAttachment> = Api::all(client.clone());
    let persistent: Api<PersistentVolume> = Api::all(client.clone());
    let params = PatchParams::default();
    stream::iter(&env.volumes[..volumes])
        .map(Ok::<_, kube::Error>)
        .try_for_each_concurrent(at_once, |name| {
            let (attachments, persistent, params) = (&attachments, &persistent, &params);
            async move {
                let attachment_patch = Patch::Strategic(json!({ "metadata": {
                    "finalizers": [FINALIZER],
                    "annotations": {
                        "csi.alpha.kubernetes.io/node-id": "node-0",
                        "external-attacher/volume-handle": name,
                    },
                } }));
                let volume_patch = Patch::Strategic(json!({ "metadata": { "finalizers": [FINALIZER] } }));
                futures::try_join!(
                    attachments.patch(name, params, &attachment_patch),
                    persistent.patch(name, params, &volume_patch)
                )?;
                let status = Patch::Strategic(json!({ "status": {
                    "attached": true,
                    "attachmentMetadata": { "device": "/dev/disk/by-id/harness" },
                } }));
                attachments.patch_status(name, params, &status).await.map(drop)
            }
        })
        .await
        .context("send the writes of attaches")
}

/// Sends the write of a detach: one patch that removes the finalizer of a deleted VolumeAttachment.
pub(super) async fn detach(client: &Client, env: &BenchEnv, volumes: usize, at_once: usize) -> Result<()> {
    let attachments: Api<VolumeAttachment> = Api::all(client.clone());
    let release =
        Patch::Strategic(json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } }));
    stream::iter(&env.volumes[..volumes])
        .map(Ok::<_, kube::Error>)
        .try_for_each_concurrent(at_once, |name| {
            let (attachments, release) = (&attachments, &release);
            async move {
                attachments
                    .patch(name, &PatchParams::default(), release)
                    .await
                    .map(drop)
            }
        })
        .await
        .context("send the writes of detaches")
}
