//! NodePublishVolume and NodeUnpublishVolume.

use csi_proto::v1::{
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse,
};

use super::{inline, path};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::node::{Record, Role};
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

impl Rpc for NodePublishVolumeRequest {
    type Reply = NodePublishVolumeResponse;
    type Params = Record;

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let target = path::required("target_path", &self.target_path)?;
        let staging = path::optional("staging_target_path", &self.staging_target_path)?;
        let capability = validate::capability("volume_capability", self.volume_capability.as_ref())?;
        path::group(&capability)?;
        let context = validate::map("volume_context", &self.volume_context)?;
        let inline = inline::read(&context)?;
        if staging.as_ref() == Some(&target) {
            return Err(Invalid::new("target_path", "must not be the staging_target_path"));
        }
        let role = Role::Published {
            staging: staging.unwrap_or_default(),
            ours: false,
        };
        Ok(Record {
            readonly: self.readonly,
            publish_context: validate::map("publish_context", &self.publish_context)?,
            volume_context: path::lasting(context),
            inline,
            ..Record::new(volume, target, role, capability)
        })
    }

    async fn execute(publish: Record, driver: &Driver) -> Result<Self::Reply, Error> {
        let (node, publish) = (driver.here()?, &publish);
        path::needs(&driver.capabilities, &publish.capability)?;
        if publish.inline.is_some() {
            if let Some(remote) = &driver.remote {
                remote.check_media(node).await?;
            }
            node.publish_inline(publish).await?;
        } else {
            let act = |view| async move { node.publish(publish, &view, driver.node_features()).await };
            driver
                .with_device(&publish.volume, &publish.capability, act)
                .await?;
        }
        Ok(NodePublishVolumeResponse {})
    }
}

impl Rpc for NodeUnpublishVolumeRequest {
    type Reply = NodeUnpublishVolumeResponse;
    type Params = (String, String);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let target = path::required("target_path", &self.target_path)?;
        Ok((volume, target))
    }

    async fn execute((volume, target): Self::Params, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.check_strict(&volume).await?;
        let node = driver.here()?;
        // The array does not have inline volumes.
        let is_inline = node.is_inline(&volume);
        node.unpublish(&volume, &target).await?;
        if !is_inline {
            driver.release_device(&volume).await?;
        }
        Ok(NodeUnpublishVolumeResponse {})
    }
}
