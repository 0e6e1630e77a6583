//! The RPCs this driver offers, by name.

use std::fmt;
use std::str::FromStr;

/// An RPC this driver offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant is the RPC of the same name")]
pub enum Method {
    GetPluginInfo,
    GetPluginCapabilities,
    Probe,
    CreateVolume,
    DeleteVolume,
    ControllerPublishVolume,
    ControllerUnpublishVolume,
    ValidateVolumeCapabilities,
    ListVolumes,
    ControllerGetCapabilities,
    ControllerGetVolume,
    NodeGetCapabilities,
    NodeGetInfo,
}

/// A name that is no RPC of this driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{name}\" is no method of this driver; it has {}", Method::ALL.map(Method::name).join(", "))]
pub struct UnknownMethod {
    name: String,
}

// === impl Method ===

impl Method {
    /// Every method, in the order of the specification.
    pub const ALL: [Self; 13] = [
        Self::GetPluginInfo,
        Self::GetPluginCapabilities,
        Self::Probe,
        Self::CreateVolume,
        Self::DeleteVolume,
        Self::ControllerPublishVolume,
        Self::ControllerUnpublishVolume,
        Self::ValidateVolumeCapabilities,
        Self::ListVolumes,
        Self::ControllerGetCapabilities,
        Self::ControllerGetVolume,
        Self::NodeGetCapabilities,
        Self::NodeGetInfo,
    ];

    /// The path of the call on the wire.
    pub fn path(self) -> &'static str {
        match self {
            Self::GetPluginInfo => "/csi.v1.Identity/GetPluginInfo",
            Self::GetPluginCapabilities => "/csi.v1.Identity/GetPluginCapabilities",
            Self::Probe => "/csi.v1.Identity/Probe",
            Self::CreateVolume => "/csi.v1.Controller/CreateVolume",
            Self::DeleteVolume => "/csi.v1.Controller/DeleteVolume",
            Self::ControllerPublishVolume => "/csi.v1.Controller/ControllerPublishVolume",
            Self::ControllerUnpublishVolume => "/csi.v1.Controller/ControllerUnpublishVolume",
            Self::ValidateVolumeCapabilities => "/csi.v1.Controller/ValidateVolumeCapabilities",
            Self::ListVolumes => "/csi.v1.Controller/ListVolumes",
            Self::ControllerGetCapabilities => "/csi.v1.Controller/ControllerGetCapabilities",
            Self::ControllerGetVolume => "/csi.v1.Controller/ControllerGetVolume",
            Self::NodeGetCapabilities => "/csi.v1.Node/NodeGetCapabilities",
            Self::NodeGetInfo => "/csi.v1.Node/NodeGetInfo",
        }
    }

    /// The name without the service.
    pub fn name(self) -> &'static str {
        self.path().rsplit('/').next().unwrap_or_default()
    }

    /// Whether its request names a volume by id.
    pub fn has_volume(self) -> bool {
        match self {
            Self::DeleteVolume
            | Self::ControllerPublishVolume
            | Self::ControllerUnpublishVolume
            | Self::ValidateVolumeCapabilities
            | Self::ControllerGetVolume => true,
            Self::GetPluginInfo
            | Self::GetPluginCapabilities
            | Self::Probe
            | Self::CreateVolume
            | Self::ListVolumes
            | Self::ControllerGetCapabilities
            | Self::NodeGetCapabilities
            | Self::NodeGetInfo => false,
        }
    }

    /// Whether its request names a node.
    pub fn has_node(self) -> bool {
        matches!(
            self,
            Self::ControllerPublishVolume | Self::ControllerUnpublishVolume
        )
    }

    /// Whether its request names a volume to be created.
    pub fn has_name(self) -> bool {
        self == Self::CreateVolume
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = UnknownMethod;

    /// Takes the bare name and the full path.
    fn from_str(text: &str) -> Result<Self, UnknownMethod> {
        Self::ALL
            .into_iter()
            .find(|method| method.name() == text || method.path() == text)
            .ok_or_else(|| UnknownMethod {
                name: text.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;

    use super::*;

    #[test]
    fn methods_carry_the_fields_rules_match_on() {
        let pool = DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).unwrap();
        for method in Method::ALL {
            let (service, name) = method.path()[1..].split_once('/').unwrap();
            let service = pool.get_service_by_name(service).unwrap();
            let rpc = service.methods().find(|rpc| rpc.name() == name).unwrap();
            let has = |field| rpc.input().get_field_by_name(field).is_some();
            assert_eq!(method.has_volume(), has("volume_id"), "{method}");
            assert_eq!(method.has_node(), has("node_id"), "{method}");
            assert_eq!(method.has_name(), has("name"), "{method}");
        }
    }

    #[test]
    fn names_and_paths_lead_back_to_the_method() {
        for method in Method::ALL {
            assert_eq!(method.name().parse(), Ok(method));
            assert_eq!(method.path().parse(), Ok(method));
        }
        let unknown = "controllerPublishVolume".parse::<Method>().unwrap_err();
        assert!(
            unknown.to_string().contains("ControllerPublishVolume"),
            "{unknown}"
        );
    }
}
