//! CreateVolume, DeleteVolume and ControllerGetVolume.

use csi_proto::v1::controller_get_volume_response::VolumeStatus;
use csi_proto::v1::{
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, CreateVolumeRequest, CreateVolumeResponse,
    DeleteVolumeRequest, DeleteVolumeResponse,
};

use crate::array::{self, Access, Source, Wanted};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, Share};
use crate::node::mount::Mounter;
use crate::rpc::capabilities::{Capability, LiveOffer};
use crate::rpc::method::Method;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

impl Rpc for CreateVolumeRequest {
    const METHOD: Method = Method::CreateVolume;
    type Reply = CreateVolumeResponse;
    type Plan = Wanted;

    fn name(&self) -> &str {
        &self.name
    }

    fn keys(&self) -> Vec<(Key, Share)> {
        let mut keys = vec![(Key::Name(self.name.clone()), Share::Whole)];
        // What it is made from must stay as it is meanwhile.
        match validate::source(self.volume_content_source.as_ref()) {
            Ok(Some(Source::Snapshot(id))) => {
                keys.push((Key::Snapshot(id.to_string()), Share::Reading));
            }
            Ok(Some(Source::Volume(id))) => keys.push((Key::Volume(id.to_string()), Share::Reading)),
            Ok(None) | Err(_) => {}
        }
        keys
    }

    fn check(&self) -> Result<Wanted, Invalid> {
        let name = validate::name(&self.name)?.to_owned();
        let capabilities = validate::capabilities(&self.volume_capabilities)?;
        let size = validate::size_range(self.capacity_range.as_ref())?;
        let parameters = validate::map("parameters", &self.parameters)?;
        validate::secrets(&self.secrets)?;
        Ok(Wanted {
            name,
            size,
            capabilities,
            parameters,
            mutable_parameters: validate::map("mutable_parameters", &self.mutable_parameters)?,
            source: validate::source(self.volume_content_source.as_ref())?,
            requirement: validate::requirement(self.accessibility_requirements.as_ref())?,
        })
    }

    async fn act(wanted: Wanted, driver: &Driver) -> Result<Self::Reply, Error> {
        check_offer(&driver.offer, &wanted)?;
        check_filesystems(&wanted.capabilities)?;
        let spec = driver.create_volume(&wanted).await?;
        Ok(CreateVolumeResponse {
            volume: Some(driver.shape_volume(&spec)),
        })
    }
}

impl Rpc for DeleteVolumeRequest {
    const METHOD: Method = Method::DeleteVolume;
    type Reply = DeleteVolumeResponse;
    type Plan = String;

    fn volume(&self) -> &str {
        &self.volume_id
    }

    fn check(&self) -> Result<String, Invalid> {
        validate::secrets(&self.secrets)?;
        Ok(validate::required("volume_id", &self.volume_id)?.to_owned())
    }

    async fn act(volume: String, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.delete_volume(&volume).await?;
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
        Ok(validate::required("volume_id", &self.volume_id)?.to_owned())
    }

    async fn act(volume: String, driver: &Driver) -> Result<Self::Reply, Error> {
        let volume = driver.store.read(|array| array.volume(&volume).cloned()).await?;
        let published_node_ids = volume.attachments.keys().map(ToString::to_string).collect();
        Ok(ControllerGetVolumeResponse {
            volume: Some(driver.shape_volume(&volume.spec)),
            status: Some(VolumeStatus { published_node_ids }),
        })
    }
}

/// No node takes a volume with a filesystem that it does not know.
pub(super) fn check_filesystems(capabilities: &[array::Capability]) -> Result<(), Invalid> {
    for (index, capability) in capabilities.iter().enumerate() {
        if let Access::Mount { fs_type, .. } = &capability.access
            && let Err(unknown) = Mounter::supports(fs_type)
        {
            let field = format!("volume_capabilities[{index}].mount.fs_type");
            return Err(Invalid::new(&field, unknown.to_string()));
        }
    }
    Ok(())
}

/// A driver without a capability does not know the fields that came with it.
fn check_offer(offer: &LiveOffer, wanted: &Wanted) -> Result<(), Invalid> {
    let field = "volume_content_source";
    let (from_snapshot, from_volume) = match &wanted.source {
        Some(Source::Snapshot(_)) => (true, false),
        Some(Source::Volume(_)) => (false, true),
        None => (false, false),
    };
    validate::needs(offer, Capability::CreateDeleteSnapshot, field, from_snapshot)?;
    validate::needs(offer, Capability::CloneVolume, field, from_volume)?;
    validate::needs(
        offer,
        Capability::VolumeAccessibilityConstraints,
        "accessibility_requirements",
        wanted.requirement.is_some(),
    )?;
    validate::needs(
        offer,
        Capability::ModifyVolume,
        "mutable_parameters",
        !wanted.mutable_parameters.is_empty(),
    )?;
    let newer = Capability::SingleNodeMultiWriter;
    validate::needs_modes(offer, newer, "volume_capabilities", &wanted.capabilities)
}
