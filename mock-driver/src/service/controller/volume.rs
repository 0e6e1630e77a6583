use csi_proto::v1::controller_get_volume_response::VolumeStatus;
use csi_proto::v1::{ControllerGetVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest};

use crate::array::{self, Access, Array, CreateVolumeParams, Source};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, LockMode};
use crate::node::mount::Mounter;
use crate::rpc::capabilities::{Capability, LiveCapabilities};
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

impl Rpc for CreateVolumeRequest {
    type Params = CreateVolumeParams;

    fn keys(&self) -> Vec<(Key, LockMode)> {
        let mut keys = vec![(Key::Name(self.name.clone()), LockMode::Exclusive)];
        // The source must not change meanwhile.
        match validate::source(self.volume_content_source.as_ref()) {
            Ok(Some(Source::Snapshot(id))) => {
                keys.push((Key::Snapshot(id.to_string()), LockMode::Shared));
            }
            Ok(Some(Source::Volume(id))) => keys.push((Key::Volume(id.to_string()), LockMode::Shared)),
            Ok(None) | Err(_) => {}
        }
        keys
    }

    fn validate(&self) -> Result<CreateVolumeParams, Invalid> {
        let name = validate::name(&self.name)?.to_owned();
        let capabilities = validate::capabilities(&self.volume_capabilities)?;
        let size = validate::size_range(self.capacity_range.as_ref())?;
        let parameters = validate::map("parameters", &self.parameters)?;
        Ok(CreateVolumeParams {
            name,
            size,
            capabilities,
            parameters,
            mutable_parameters: validate::map("mutable_parameters", &self.mutable_parameters)?,
            source: validate::source(self.volume_content_source.as_ref())?,
            requirement: validate::requirement(self.accessibility_requirements.as_ref())?,
        })
    }

    fn promise(wanted: &Self::Params, array: &mut Array) {
        array.promise_volume(&wanted.name);
    }

    async fn execute(wanted: CreateVolumeParams, driver: &Driver) -> Result<Self::Reply, Error> {
        check_offer(&driver.capabilities, &wanted)?;
        check_filesystems(&wanted.capabilities)?;
        let spec = driver.create_volume(&wanted).await?;
        Ok(Self::Reply {
            volume: Some(driver.shape_volume(&spec)),
        })
    }
}

impl Rpc for DeleteVolumeRequest {
    required_id!(volume_id);

    async fn execute(volume: String, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.delete_volume(&volume).await?;
        Ok(Self::Reply {})
    }
}

impl Rpc for ControllerGetVolumeRequest {
    required_id!(volume_id);

    async fn execute(volume: String, driver: &Driver) -> Result<Self::Reply, Error> {
        let volume = driver.store.read(|array| array.volume(&volume).cloned()).await?;
        Ok(Self::Reply {
            volume: Some(driver.shape_volume(&volume.spec)),
            status: Some(VolumeStatus {
                published_node_ids: volume.attachments.keys().map(ToString::to_string).collect(),
                volume_condition: driver.volume_condition(&volume),
            }),
        })
    }
}

/// Refuses filesystems that nodes do not support.
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

/// Refuses fields that belong to capabilities which the driver does not have.
fn check_offer(offered: &LiveCapabilities, wanted: &CreateVolumeParams) -> Result<(), Invalid> {
    let field = "volume_content_source";
    let (from_snapshot, from_volume) = match &wanted.source {
        Some(Source::Snapshot(_)) => (true, false),
        Some(Source::Volume(_)) => (false, true),
        None => (false, false),
    };
    validate::needs(offered, Capability::CreateDeleteSnapshot, field, from_snapshot)?;
    validate::needs(offered, Capability::CloneVolume, field, from_volume)?;
    validate::needs(
        offered,
        Capability::VolumeAccessibilityConstraints,
        "accessibility_requirements",
        wanted.requirement.is_some(),
    )?;
    validate::needs(
        offered,
        Capability::ModifyVolume,
        "mutable_parameters",
        !wanted.mutable_parameters.is_empty(),
    )?;
    let newer = Capability::SingleNodeMultiWriter;
    validate::needs_modes(offered, newer, "volume_capabilities", &wanted.capabilities)
}
