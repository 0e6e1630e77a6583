//! ControllerExpandVolume and ControllerModifyVolume.

use csi_proto::v1::{ControllerExpandVolumeRequest, ControllerModifyVolumeRequest};

use super::shape;
use crate::array::{Array, Capability, SizeRange};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities;
use crate::rpc::validate::{self, Invalid, Map};
use crate::service::call::Rpc;

impl Rpc for ControllerExpandVolumeRequest {
    type Params = (String, SizeRange, Option<Capability>);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        if self.capacity_range.is_none() {
            return Err(Invalid::new("capacity_range", "must be set"));
        }
        let range = validate::size_range(self.capacity_range.as_ref())?;
        let capability = validate::optional_capability(self.volume_capability.as_ref())?;
        Ok((volume, range, capability))
    }

    async fn execute(
        (volume, range, capability): Self::Params,
        driver: &Driver,
    ) -> Result<Self::Reply, Error> {
        let supports = |array: &Array| {
            let spec = &array.volume(&volume)?.spec;
            Ok(capability.as_ref().is_none_or(|asked| spec.supports(asked)))
        };
        if !driver.store.read(supports).await? {
            let reason = "must be one the volume was created for";
            return Err(Invalid::new("volume_capability", reason).into());
        }
        let online = driver
            .capabilities
            .has(capabilities::Capability::VolumeExpansionOnline);
        let bytes = driver.expand_volume(&volume, range, online).await?;
        Ok(Self::Reply {
            capacity_bytes: shape::bytes(bytes),
            // The node must refresh its device and the filesystem.
            node_expansion_required: driver
                .capabilities
                .has(capabilities::Capability::NodeExpandVolume),
        })
    }
}

impl Rpc for ControllerModifyVolumeRequest {
    type Params = (String, Map);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let parameters = validate::map("mutable_parameters", &self.mutable_parameters)?;
        Ok((volume, parameters))
    }

    async fn execute((volume, parameters): Self::Params, driver: &Driver) -> Result<Self::Reply, Error> {
        if parameters.is_empty() && driver.settings.config.strict_modify {
            return Err(Invalid::new("mutable_parameters", "must be set").into());
        }
        let modify = |array: &mut Array| array.modify_volume(&volume, &parameters);
        driver.store.change(modify).await?;
        Ok(Self::Reply {})
    }
}
