//! ControllerPublishVolume and ControllerUnpublishVolume.

use std::collections::HashMap;

use csi_proto::v1::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse,
};

use crate::array::{self, PublishParams};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::fault::DeviceOverlay;
use crate::rpc::capabilities::Capability;
use crate::rpc::method::Method;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

/// Parameters of ControllerPublishVolume.
pub(crate) struct AttachParams {
    volume: String,
    node: String,
    params: PublishParams,
}

/// Parameters of ControllerUnpublishVolume; without a node, all attachments of the volume.
pub(crate) struct DetachParams {
    volume: String,
    node: Option<String>,
}

impl Rpc for ControllerPublishVolumeRequest {
    const METHOD: Method = Method::ControllerPublishVolume;
    type Reply = ControllerPublishVolumeResponse;
    type Params = AttachParams;

    fn volume(&self) -> &str {
        &self.volume_id
    }

    fn node(&self) -> &str {
        &self.node_id
    }

    fn validate(&self) -> Result<AttachParams, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let node = validate::required(validate::NODE_ID, &self.node_id)?.to_owned();
        let capability = validate::capability("volume_capability", self.volume_capability.as_ref())?;
        validate::secrets(&self.secrets)?;
        let context = self.volume_context.iter().flat_map(|(key, value)| [key, value]);
        validate::bounded_collection("volume_context", context)?;
        Ok(AttachParams {
            volume,
            node,
            params: PublishParams {
                capability,
                readonly: self.readonly,
            },
        })
    }

    async fn execute(attach: AttachParams, driver: &Driver) -> Result<Self::Reply, Error> {
        let AttachParams { volume, node, params } = attach;
        let (offered, capability) = (&driver.capabilities, std::slice::from_ref(&params.capability));
        let newer = Capability::SingleNodeMultiWriter;
        validate::needs_modes(offered, newer, "volume_capability", capability)?;
        validate::needs(offered, Capability::PublishReadonly, "readonly", params.readonly)?;
        driver.apply_qos_latency(&volume).await;
        let attachment = driver
            .store
            .change(|array| array.publish(&volume, &node, &params))
            .await?;
        if driver.is_here(&node) {
            driver.reconcile_device(&volume).await?;
        }
        let mut publish_context: HashMap<_, _> = attachment.publish_context(&volume);
        if let DeviceOverlay::Wrong(device) = driver.faults.device(&volume, &node) {
            publish_context.insert("serial".to_owned(), format!("wrong-{}", array::serial(&volume)));
            publish_context.insert("device".to_owned(), device);
        }
        Ok(ControllerPublishVolumeResponse { publish_context })
    }
}

impl Rpc for ControllerUnpublishVolumeRequest {
    const METHOD: Method = Method::ControllerUnpublishVolume;
    type Reply = ControllerUnpublishVolumeResponse;
    type Params = DetachParams;

    fn volume(&self) -> &str {
        &self.volume_id
    }

    fn node(&self) -> &str {
        &self.node_id
    }

    fn validate(&self) -> Result<DetachParams, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let node = match self.node_id.as_str() {
            "" => None,
            node => Some(validate::required(validate::NODE_ID, node)?.to_owned()),
        };
        validate::secrets(&self.secrets)?;
        Ok(DetachParams { volume, node })
    }

    async fn execute(detach: DetachParams, driver: &Driver) -> Result<Self::Reply, Error> {
        let DetachParams { volume, node } = detach;
        driver.apply_qos_latency(&volume).await;
        if node.as_deref().is_none_or(|node| driver.is_here(node)) {
            driver.remove_device(&volume).await?;
        }
        driver
            .store
            .change(|array| array.unpublish(&volume, node.as_deref()))
            .await?;
        Ok(ControllerUnpublishVolumeResponse {})
    }
}
