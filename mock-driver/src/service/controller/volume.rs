//! CreateVolume, DeleteVolume, ControllerGetVolume and ValidateVolumeCapabilities.

use csi_proto::v1::controller_get_volume_response::VolumeStatus;
use csi_proto::v1::validate_volume_capabilities_response::Confirmed;
use csi_proto::v1::{
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, CreateVolumeRequest, CreateVolumeResponse,
    DeleteVolumeRequest, DeleteVolumeResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, Volume,
};

use crate::backend::{Capability, Spec, Wanted};
use crate::call::{Kind, Rpc};
use crate::driver::Driver;
use crate::error::Error;
use crate::method::Method;
use crate::request::{self, Invalid, Map};

/// A checked question about a volume's capabilities, with the request it came from: a confirmation
/// repeats what was asked.
pub(crate) struct Question {
    request: ValidateVolumeCapabilitiesRequest,
    context: Map,
    capabilities: Vec<Capability>,
    parameters: Map,
}

impl Rpc for CreateVolumeRequest {
    const METHOD: Method = Method::CreateVolume;
    const KIND: Kind = Kind::Change;
    type Reply = CreateVolumeResponse;
    type Plan = Wanted;

    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self) -> Result<Wanted, Invalid> {
        let name = request::name(&self.name)?.to_owned();
        let capabilities = request::capabilities(&self.volume_capabilities)?;
        let size = request::size_range(self.capacity_range.as_ref())?;
        let parameters = request::map("parameters", &self.parameters)?;
        request::secrets(&self.secrets)?;
        request::absent(
            "volume_content_source",
            self.volume_content_source.is_none(),
            "CLONE_VOLUME or CREATE_DELETE_SNAPSHOT",
        )?;
        request::absent(
            "accessibility_requirements",
            self.accessibility_requirements.is_none(),
            "VOLUME_ACCESSIBILITY_CONSTRAINTS",
        )?;
        request::absent(
            "mutable_parameters",
            self.mutable_parameters.is_empty(),
            "MODIFY_VOLUME",
        )?;
        Ok(Wanted {
            name,
            size,
            capabilities,
            parameters,
        })
    }

    async fn act(wanted: Wanted, driver: &Driver) -> Result<Self::Reply, Error> {
        let spec = driver.store.change(|array| array.create_volume(&wanted)).await?;
        Ok(CreateVolumeResponse {
            volume: Some(on_the_wire(&spec)),
        })
    }
}

impl Rpc for DeleteVolumeRequest {
    const METHOD: Method = Method::DeleteVolume;
    const KIND: Kind = Kind::Change;
    type Reply = DeleteVolumeResponse;
    type Plan = String;

    fn volume(&self) -> &str {
        &self.volume_id
    }

    fn check(&self) -> Result<String, Invalid> {
        request::secrets(&self.secrets)?;
        Ok(request::required("volume_id", &self.volume_id)?.to_owned())
    }

    async fn act(volume: String, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.store.change(|array| array.delete_volume(&volume)).await?;
        Ok(DeleteVolumeResponse {})
    }
}

impl Rpc for ControllerGetVolumeRequest {
    const METHOD: Method = Method::ControllerGetVolume;
    type Reply = ControllerGetVolumeResponse;
    type Plan = String;

    fn volume(&self) -> &str {
        &self.volume_id
    }

    fn check(&self) -> Result<String, Invalid> {
        Ok(request::required("volume_id", &self.volume_id)?.to_owned())
    }

    async fn act(volume: String, driver: &Driver) -> Result<Self::Reply, Error> {
        let volume = driver.store.read(|array| array.volume(&volume).cloned()).await?;
        let published_node_ids = volume.attachments.keys().map(ToString::to_string).collect();
        Ok(ControllerGetVolumeResponse {
            volume: Some(on_the_wire(&volume.spec)),
            status: Some(VolumeStatus { published_node_ids }),
        })
    }
}

impl Rpc for ValidateVolumeCapabilitiesRequest {
    const METHOD: Method = Method::ValidateVolumeCapabilities;
    type Reply = ValidateVolumeCapabilitiesResponse;
    type Plan = Question;

    fn volume(&self) -> &str {
        &self.volume_id
    }

    fn check(&self) -> Result<Question, Invalid> {
        request::required("volume_id", &self.volume_id)?;
        let capabilities = request::capabilities(&self.volume_capabilities)?;
        let context = request::map("volume_context", &self.volume_context)?;
        let parameters = request::map("parameters", &self.parameters)?;
        request::map("mutable_parameters", &self.mutable_parameters)?;
        request::secrets(&self.secrets)?;
        Ok(Question {
            request: self.clone(),
            context,
            capabilities,
            parameters,
        })
    }

    async fn act(question: Question, driver: &Driver) -> Result<Self::Reply, Error> {
        let volume = &question.request.volume_id;
        let spec = driver
            .store
            .read(|array| array.volume(volume).map(|volume| volume.spec.clone()))
            .await?;
        Ok(match question.objection(&spec) {
            Some(message) => ValidateVolumeCapabilitiesResponse {
                confirmed: None,
                message,
            },
            None => ValidateVolumeCapabilitiesResponse {
                confirmed: Some(question.confirmed()),
                message: String::new(),
            },
        })
    }
}

// === impl Question ===

impl Question {
    /// The first thing the volume cannot confirm.
    fn objection(&self, spec: &Spec) -> Option<String> {
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
        if !self.request.mutable_parameters.is_empty() {
            return Some("mutable_parameters: the driver does not have MODIFY_VOLUME".to_owned());
        }
        None
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

/// A volume as CSI shows it.
pub(super) fn on_the_wire(spec: &Spec) -> Volume {
    Volume {
        capacity_bytes: i64::try_from(spec.capacity_bytes).unwrap_or(i64::MAX),
        volume_id: spec.id.to_string(),
        volume_context: spec
            .parameters
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        content_source: None,
        accessible_topology: Vec::new(),
    }
}
