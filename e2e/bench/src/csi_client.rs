//! A CSI client of the driver.

use std::path::Path;

use anyhow::{Context, Result};
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use csi_proto::v1::{
    ControllerPublishVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest, GetPluginInfoRequest,
    ListVolumesRequest, NodeGetInfoRequest, Volume, VolumeCapability,
};
use futures::{StreamExt, TryStreamExt, stream};
use tonic::transport::{Channel, Endpoint};

/// Maximum number of concurrent calls.
const AT_ONCE: usize = 16;

/// A client of a running driver.
pub(super) struct CsiClient(Channel);

// === impl CsiClient ===

impl CsiClient {
    pub(super) async fn connect(socket: &Path) -> Result<Self> {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
        Ok(Self(
            endpoint
                .connect()
                .await
                .with_context(|| format!("connect to {}", socket.display()))?,
        ))
    }

    pub(super) async fn name(&self) -> Result<String> {
        let info = IdentityClient::new(self.0.clone())
            .get_plugin_info(GetPluginInfoRequest {})
            .await?;
        Ok(info.into_inner().name)
    }

    pub(super) async fn node_id(&self) -> Result<String> {
        let info = NodeClient::new(self.0.clone())
            .node_get_info(NodeGetInfoRequest {})
            .await?;
        Ok(info.into_inner().node_id)
    }

    /// Creates volumes with these names.
    pub(super) async fn create(&self, names: impl IntoIterator<Item = String>) -> Result<Vec<Volume>> {
        stream::iter(names.into_iter().map(|name| async move {
            let request = CreateVolumeRequest {
                name,
                volume_capabilities: vec![capability()],
                ..CreateVolumeRequest::default()
            };
            let answer = ControllerClient::new(self.0.clone())
                .create_volume(request)
                .await?;
            answer
                .into_inner()
                .volume
                .context("CreateVolume must answer with a volume")
        }))
        .buffered(AT_ONCE)
        .try_collect()
        .await
    }

    pub(super) async fn delete(&self, handles: impl IntoIterator<Item = String>) -> Result<()> {
        stream::iter(handles)
            .map(Ok)
            .try_for_each_concurrent(AT_ONCE, |volume_id| async move {
                let request = DeleteVolumeRequest {
                    volume_id,
                    ..DeleteVolumeRequest::default()
                };
                ControllerClient::new(self.0.clone())
                    .delete_volume(request)
                    .await?;
                Ok(())
            })
            .await
    }

    /// Publishes these volumes, each to its node.
    pub(super) async fn publish(&self, volumes: impl IntoIterator<Item = (String, String)>) -> Result<()> {
        stream::iter(volumes)
            .map(Ok)
            .try_for_each_concurrent(AT_ONCE, |(volume_id, node_id)| async move {
                let request = ControllerPublishVolumeRequest {
                    volume_id,
                    node_id,
                    volume_capability: Some(capability()),
                    ..ControllerPublishVolumeRequest::default()
                };
                ControllerClient::new(self.0.clone())
                    .controller_publish_volume(request)
                    .await?;
                Ok(())
            })
            .await
    }

    /// Number of published volumes on the first page of ListVolumes. Pagination is not tested here.
    pub(super) async fn published(&self) -> Result<usize> {
        let mut controller = ControllerClient::new(self.0.clone()).max_decoding_message_size(64 << 20);
        let answer = controller
            .list_volumes(ListVolumesRequest::default())
            .await?
            .into_inner();
        let is_published = |ids: &[String]| ids.iter().any(|id| !id.is_empty());
        Ok(answer
            .entries
            .iter()
            .filter(|entry| {
                entry
                    .status
                    .as_ref()
                    .is_some_and(|status| is_published(&status.published_node_ids))
            })
            .count())
    }
}

fn capability() -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
    }
}
