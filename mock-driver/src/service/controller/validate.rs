use csi_proto::v1::ValidateVolumeCapabilitiesRequest;
use csi_proto::v1::validate_volume_capabilities_response::Confirmed;

use super::volume::check_filesystems;
use crate::array::{Capability, Volume};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities::{self, LiveCapabilities};
use crate::rpc::validate::{self, Invalid, Map};
use crate::service::call::Rpc;

/// Parameters of ValidateVolumeCapabilities, with the request, which a confirmation repeats.
pub(crate) struct ValidateParams {
    request: ValidateVolumeCapabilitiesRequest,
    context: Map,
    capabilities: Vec<Capability>,
    parameters: Map,
    mutable_parameters: Map,
}

impl Rpc for ValidateVolumeCapabilitiesRequest {
    type Params = ValidateParams;

    fn validate(&self) -> Result<ValidateParams, Invalid> {
        validate::required("volume_id", &self.volume_id)?;
        let capabilities = validate::capabilities(&self.volume_capabilities)?;
        let context = validate::map("volume_context", &self.volume_context)?;
        let parameters = validate::map("parameters", &self.parameters)?;
        let mutable_parameters = validate::map("mutable_parameters", &self.mutable_parameters)?;
        Ok(ValidateParams {
            request: self.clone(),
            context,
            capabilities,
            parameters,
            mutable_parameters,
        })
    }

    async fn execute(question: ValidateParams, driver: &Driver) -> Result<Self::Reply, Error> {
        let volume = &question.request.volume_id;
        let volume = driver.store.read(|array| array.volume(volume).cloned()).await?;
        Ok(match question.objection(&volume, &driver.capabilities) {
            Some(message) => Self::Reply {
                confirmed: None,
                message,
            },
            None => Self::Reply {
                confirmed: Some(question.confirmed()),
                message: String::new(),
            },
        })
    }
}

// === impl ValidateParams ===

impl ValidateParams {
    /// The first capability that the volume does not support.
    fn objection(&self, volume: &Volume, offered: &LiveCapabilities) -> Option<String> {
        let newer = capabilities::Capability::SingleNodeMultiWriter;
        if let Err(unknown) = validate::needs_modes(offered, newer, "volume_capabilities", &self.capabilities)
        {
            return Some(unknown.to_string());
        }
        if let Err(unknown) = check_filesystems(&self.capabilities) {
            return Some(unknown.to_string());
        }
        let spec = &volume.spec;
        if let Some(asked) = self.capabilities.iter().find(|asked| !spec.supports(asked)) {
            return Some(format!(
                "volume_capabilities: the volume was not created for {asked}"
            ));
        }
        if !self.context.is_empty() && self.context != spec.parameters {
            return Some("volume_context: not the one the volume was created with".to_owned());
        }
        if !self.parameters.is_empty() && self.parameters != spec.parameters {
            return Some("parameters: not those the volume was created with".to_owned());
        }
        let modifies = capabilities::Capability::ModifyVolume;
        let is_set = !self.mutable_parameters.is_empty();
        if let Err(unknown) = validate::needs(offered, modifies, "mutable_parameters", is_set) {
            return Some(unknown.to_string());
        }
        let is_other = |(key, value): &(&String, &String)| volume.qos.get(*key) != Some(*value);
        let other = self.mutable_parameters.iter().find(is_other);
        other.map(|(key, _)| format!("mutable_parameters: the volume has another \"{key}\""))
    }

    fn confirmed(self) -> Confirmed {
        Confirmed {
            volume_context: self.request.volume_context,
            volume_capabilities: self.request.volume_capabilities,
            parameters: self.request.parameters,
            mutable_parameters: self.request.mutable_parameters,
        }
    }
}
