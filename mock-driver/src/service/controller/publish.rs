use std::collections::HashMap;

use csi_proto::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};

use crate::array::{self, Array, PublishParams};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::fault::DeviceFault;
use crate::rpc::capabilities::Capability;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

impl Rpc for ControllerPublishVolumeRequest {
    type Params = (String, String, PublishParams);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let node = validate::required(validate::NODE_ID, &self.node_id)?.to_owned();
        let capability = validate::capability("volume_capability", self.volume_capability.as_ref())?;
        let context = self.volume_context.iter().flat_map(|(key, value)| [key, value]);
        validate::bounded_collection("volume_context", context)?;
        let readonly = self.readonly;
        Ok((volume, node, PublishParams { capability, readonly }))
    }

    fn promise((volume, node, _): &Self::Params, array: &mut Array) {
        array.promise_attachment(volume, node);
    }

    async fn execute((volume, node, params): Self::Params, driver: &Driver) -> Result<Self::Reply, Error> {
        let (offered, capability) = (&driver.capabilities, std::slice::from_ref(&params.capability));
        let newer = Capability::SingleNodeMultiWriter;
        validate::needs_modes(offered, newer, "volume_capability", capability)?;
        validate::needs(offered, Capability::PublishReadonly, "readonly", params.readonly)?;
        driver.apply_qos_latency(&volume).await;
        let mut is_new = false;
        let publish = |array: &mut Array| {
            let done = array.publish(&volume, &node, &params)?;
            is_new = !done.rows.is_empty();
            Ok(done)
        };
        let attachment = driver.store.change(publish).await?;
        if driver.is_here(&node)
            && let Err(error) = driver.reconcile_device(&volume).await
        {
            if is_new {
                detach(driver, &volume, Some(&node)).await?;
            }
            return Err(Error::AttachDevice(Box::new(error)));
        }
        let mut publish_context: HashMap<_, _> = attachment.publish_context(&volume);
        if let Some(DeviceFault::Wrong(device)) = driver.faults.device(&volume, &node) {
            publish_context.insert("serial".to_owned(), format!("wrong-{}", array::serial(&volume)));
            publish_context.insert("device".to_owned(), device);
        }
        Ok(Self::Reply { publish_context })
    }
}

impl Rpc for ControllerUnpublishVolumeRequest {
    /// Without a node, all attachments of the volume.
    type Params = (String, Option<String>);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let node = match self.node_id.as_str() {
            "" => None,
            node => Some(validate::required(validate::NODE_ID, node)?.to_owned()),
        };
        Ok((volume, node))
    }

    async fn execute((volume, node): Self::Params, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.apply_qos_latency(&volume).await;
        detach(driver, &volume, node.as_deref()).await?;
        Ok(Self::Reply {})
    }
}

async fn detach(driver: &Driver, volume: &str, node: Option<&str>) -> Result<(), Error> {
    if node.is_none_or(|node| driver.is_here(node)) {
        driver.remove_device(volume).await?;
    }
    driver.store.change(|array| array.unpublish(volume, node)).await?;
    if node.is_some_and(|node| driver.was_here(node)) {
        driver.reconcile_device(volume).await?;
    }
    Ok(())
}
