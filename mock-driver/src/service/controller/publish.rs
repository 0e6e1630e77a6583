//! ControllerPublishVolume and ControllerUnpublishVolume.

use std::collections::HashMap;

use csi_proto::v1::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse,
};

use crate::array::Hold;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::fault::DeviceView;
use crate::rpc::capabilities::Capability;
use crate::rpc::method::Method;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

/// An attachment somebody asks for.
pub(crate) struct Attach {
    volume: String,
    node: String,
    hold: Hold,
}

/// An attachment somebody wants gone; without a node, all of the volume's.
pub(crate) struct Detach {
    volume: String,
    node: Option<String>,
}

impl Rpc for ControllerPublishVolumeRequest {
    const METHOD: Method = Method::ControllerPublishVolume;
    type Reply = ControllerPublishVolumeResponse;
    type Plan = Attach;

    fn volume(&self) -> &str {
        &self.volume_id
    }

    fn node(&self) -> &str {
        &self.node_id
    }

    fn check(&self) -> Result<Attach, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let node = validate::required_node_id(&self.node_id)?.to_owned();
        let capability = validate::capability(self.volume_capability.as_ref())?;
        validate::secrets(&self.secrets)?;
        validate::map("volume_context", &self.volume_context)?;
        Ok(Attach {
            volume,
            node,
            hold: Hold {
                capability,
                readonly: self.readonly,
            },
        })
    }

    async fn act(attach: Attach, driver: &Driver) -> Result<Self::Reply, Error> {
        let Attach { volume, node, hold } = attach;
        let (offer, capability) = (&driver.offer, std::slice::from_ref(&hold.capability));
        let newer = Capability::SingleNodeMultiWriter;
        validate::needs_modes(offer, newer, "volume_capability", capability)?;
        validate::needs(offer, Capability::PublishReadonly, "readonly", hold.readonly)?;
        driver.drag(&volume).await;
        let publication = driver
            .store
            .change(|array| array.publish(&volume, &node, &hold))
            .await?;
        if driver.is_here(&node) {
            driver.settle_device(&volume).await?;
        }
        let mut publish_context: HashMap<_, _> = publication.context().into_iter().collect();
        if let DeviceView::Wrong(device) = driver.faults.troubles().device(&volume, &node) {
            publish_context.insert("serial".to_owned(), format!("wrong-{}", publication.serial));
            publish_context.insert("device".to_owned(), device);
        }
        Ok(ControllerPublishVolumeResponse { publish_context })
    }
}

impl Rpc for ControllerUnpublishVolumeRequest {
    const METHOD: Method = Method::ControllerUnpublishVolume;
    type Reply = ControllerUnpublishVolumeResponse;
    type Plan = Detach;

    fn volume(&self) -> &str {
        &self.volume_id
    }

    fn node(&self) -> &str {
        &self.node_id
    }

    fn check(&self) -> Result<Detach, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let node = validate::node_id(&self.node_id)?.map(str::to_owned);
        validate::secrets(&self.secrets)?;
        Ok(Detach { volume, node })
    }

    async fn act(detach: Detach, driver: &Driver) -> Result<Self::Reply, Error> {
        let Detach { volume, node } = detach;
        driver.drag(&volume).await;
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
