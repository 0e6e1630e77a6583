//! kubelet's calls of a driver's Node service.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::node_service_capability::Type;
use csi_proto::v1::node_service_capability::rpc;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_proto::v1::{
    NodeGetCapabilitiesRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeCapability,
};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::volume_manager::VolumeKey;
use crate::driver::NodeDriver;

/// Deadline of a call; kubelet's default is 2 minutes.
const CALL: Duration = Duration::from_secs(60);

/// The Node service of one node's driver.
#[derive(Clone)]
pub(super) struct CsiPlugin {
    client: NodeClient<Channel>,
    /// kubelet's `--root-dir`.
    root: PathBuf,
    /// Whether the driver has the capability SINGLE_NODE_MULTI_WRITER.
    single_node_multi_writer: bool,
}

// === impl CsiPlugin ===

impl CsiPlugin {
    pub(super) async fn connect(driver: &NodeDriver) -> Result<Self> {
        let mut client = driver.client();
        let capabilities = call(
            "NodeGetCapabilities",
            client.node_get_capabilities(NodeGetCapabilitiesRequest {}),
        );
        let single_node_multi_writer = capabilities.await?.capabilities.into_iter().any(|capability| {
            matches!(capability.r#type, Some(Type::Rpc(rpc)) if rpc.r#type() == rpc::Type::SingleNodeMultiWriter)
        });
        Ok(Self {
            client,
            root: driver.kubelet_dir(),
            single_node_multi_writer,
        })
    }

    /// NodeStageVolume: kubelet's MountDevice, once per volume.
    pub(super) async fn stage(
        &self,
        volume: &VolumeKey,
        publish_context: BTreeMap<String, String>,
    ) -> Result<()> {
        let path = self.staging_path(volume);
        tokio::fs::create_dir_all(&path)
            .await
            .context("create the staging path")?;
        let request = NodeStageVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: into_map(publish_context),
            staging_target_path: text(&path),
            volume_capability: Some(self.capability(volume)),
            volume_context: into_map(volume.attributes.clone()),
            ..NodeStageVolumeRequest::default()
        };
        call("NodeStageVolume", self.client.clone().node_stage_volume(request))
            .await
            .map(drop)
    }

    /// NodePublishVolume: kubelet's SetUp, once per pod and volume.
    pub(super) async fn publish(
        &self,
        pod: &str,
        volume: &VolumeKey,
        publish_context: BTreeMap<String, String>,
    ) -> Result<()> {
        let path = self.target_path(pod, volume);
        // The driver creates the target itself.
        let parent = path.parent().context("a target path must have a parent")?;
        tokio::fs::create_dir_all(parent)
            .await
            .context("create the parent of the target path")?;
        let request = NodePublishVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: into_map(publish_context),
            staging_target_path: text(&self.staging_path(volume)),
            target_path: text(&path),
            volume_capability: Some(self.capability(volume)),
            volume_context: into_map(volume.attributes.clone()),
            ..NodePublishVolumeRequest::default()
        };
        call(
            "NodePublishVolume",
            self.client.clone().node_publish_volume(request),
        )
        .await
        .map(drop)
    }

    /// NodeUnpublishVolume: kubelet's TearDown.
    pub(super) async fn unpublish(&self, pod: &str, volume: &VolumeKey) -> Result<()> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume.handle.clone(),
            target_path: text(&self.target_path(pod, volume)),
        };
        call(
            "NodeUnpublishVolume",
            self.client.clone().node_unpublish_volume(request),
        )
        .await
        .map(drop)
    }

    /// NodeUnstageVolume: kubelet's UnmountDevice.
    pub(super) async fn unstage(&self, volume: &VolumeKey) -> Result<()> {
        let request = NodeUnstageVolumeRequest {
            volume_id: volume.handle.clone(),
            staging_target_path: text(&self.staging_path(volume)),
        };
        call(
            "NodeUnstageVolume",
            self.client.clone().node_unstage_volume(request),
        )
        .await
        .map(drop)
    }

    fn staging_path(&self, volume: &VolumeKey) -> PathBuf {
        let dir = self.root.join("plugins/kubernetes.io/csi").join(&volume.driver);
        dir.join(&volume.handle).join("globalmount")
    }

    fn target_path(&self, pod: &str, volume: &VolumeKey) -> PathBuf {
        let dir = self.root.join("pods").join(pod).join("volumes/kubernetes.io~csi");
        dir.join(&volume.handle).join("mount")
    }

    /// As kubelet's CSI plugin maps a PersistentVolume's access modes.
    fn capability(&self, volume: &VolumeKey) -> VolumeCapability {
        let has = |mode: &str| volume.access_modes.iter().any(|other| other == mode);
        let mode = if has("ReadWriteMany") {
            Mode::MultiNodeMultiWriter
        } else if has("ReadOnlyMany") {
            Mode::MultiNodeReaderOnly
        } else if !self.single_node_multi_writer {
            Mode::SingleNodeWriter
        } else if has("ReadWriteOncePod") {
            Mode::SingleNodeSingleWriter
        } else {
            Mode::SingleNodeMultiWriter
        };
        let access_type = match volume.block {
            true => AccessType::Block(BlockVolume {}),
            false => AccessType::Mount(MountVolume::default()),
        };
        VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(access_type),
        }
    }
}

// === functions ===

async fn call<T>(method: &str, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T> {
    let answer = timeout(CALL, call).await;
    let answer = answer.with_context(|| format!("{method} had no answer in {CALL:?}"))?;
    Ok(answer.with_context(|| method.to_owned())?.into_inner())
}

fn into_map(map: BTreeMap<String, String>) -> HashMap<String, String> {
    map.into_iter().collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
