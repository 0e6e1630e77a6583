//! NodeStageVolume and NodeUnstageVolume.

use csi_proto::v1::{
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};

use super::path;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::node::{Record, Role};
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

impl Rpc for NodeStageVolumeRequest {
    type Reply = NodeStageVolumeResponse;
    type Params = Record;

    fn validate(&self) -> Result<Record, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let staging = path::required("staging_target_path", &self.staging_target_path)?;
        let capability = validate::capability("volume_capability", self.volume_capability.as_ref())?;
        path::group(&capability)?;
        Ok(Record {
            publish_context: validate::map("publish_context", &self.publish_context)?,
            volume_context: path::lasting(validate::map("volume_context", &self.volume_context)?),
            ..Record::new(volume, staging, Role::Staged, capability)
        })
    }

    async fn execute(stage: Record, driver: &Driver) -> Result<Self::Reply, Error> {
        let (node, stage) = (driver.here()?, &stage);
        path::needs(&driver.capabilities, &stage.capability)?;
        let act = |view| async move { node.stage(stage, &view, driver.node_features()).await };
        driver.with_device(&stage.volume, &stage.capability, act).await?;
        Ok(NodeStageVolumeResponse {})
    }
}

impl Rpc for NodeUnstageVolumeRequest {
    type Reply = NodeUnstageVolumeResponse;
    type Params = (String, String);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let staging = path::required("staging_target_path", &self.staging_target_path)?;
        Ok((volume, staging))
    }

    async fn execute((volume, staging): Self::Params, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.check_strict(&volume).await?;
        driver.here()?.unstage(&volume, &staging).await?;
        driver.release_device(&volume).await?;
        Ok(NodeUnstageVolumeResponse {})
    }
}
