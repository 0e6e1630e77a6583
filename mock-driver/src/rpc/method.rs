//! The RPCs of CSI, by name.

use std::fmt;
use std::str::FromStr;

use super::schema::Rpc;

/// Writes the RPCs down once; the enum, the list of all and the paths follow from it.
macro_rules! methods {
    ($($service:literal => [$($name:ident),+ $(,)?])+) => {
        /// An RPC of CSI.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "each variant is the RPC of the same name")]
        pub enum Method {
            $($($name,)+)+
        }

        impl Method {
            /// Every method, in the order of the specification.
            pub const ALL: [Self; 36] = [$($(Self::$name,)+)+];

            /// The path of the call on the wire.
            pub fn path(self) -> &'static str {
                match self {
                    $($(Self::$name => concat!("/csi.v1.", $service, "/", stringify!($name)),)+)+
                }
            }
        }
    };
}

methods! {
    "Identity" => [GetPluginInfo, GetPluginCapabilities, Probe]
    "Controller" => [
        CreateVolume,
        DeleteVolume,
        ControllerPublishVolume,
        ControllerUnpublishVolume,
        ValidateVolumeCapabilities,
        ListVolumes,
        ControllerListVolumeHealth,
        ControllerGetVolumeHealth,
        GetCapacity,
        ControllerGetCapabilities,
        CreateSnapshot,
        DeleteSnapshot,
        ListSnapshots,
        GetSnapshot,
        ControllerExpandVolume,
        ControllerGetVolume,
        ControllerModifyVolume,
    ]
    "GroupController" => [
        GroupControllerGetCapabilities,
        CreateVolumeGroupSnapshot,
        DeleteVolumeGroupSnapshot,
        GetVolumeGroupSnapshot,
    ]
    "SnapshotMetadata" => [GetMetadataAllocated, GetMetadataDelta]
    "Node" => [
        NodeStageVolume,
        NodeUnstageVolume,
        NodePublishVolume,
        NodeUnpublishVolume,
        NodeGetVolumeStats,
        NodeGetVolumeHealth,
        NodeGetStorageHealth,
        NodeExpandVolume,
        NodeGetCapabilities,
        NodeGetInfo,
    ]
}

/// What a call does to the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only reads, so it ends when its client leaves.
    Look,
    /// It changes a volume.
    Change,
    /// It moves a volume to or from a node, which takes the array its time.
    Move,
    /// It changes what a node has of a volume.
    OnNode,
}

/// A name that is no RPC of this driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{name}\" is no method of this driver; it has {}", Method::ALL.map(Method::name).join(", "))]
pub struct UnknownMethod {
    name: String,
}

// === impl Method ===

impl Method {
    /// The name without the service.
    pub fn name(self) -> &'static str {
        self.path().rsplit('/').next().unwrap_or_default()
    }

    /// The method of that path on the wire.
    pub fn at(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.path() == path)
    }

    /// Whether its request carries credentials.
    pub fn has_secrets(self) -> bool {
        Rpc::at(self.path()).is_some_and(|rpc| rpc.takes("secrets"))
    }

    /// What a call of it does to the array.
    pub const fn kind(self) -> Kind {
        match self {
            Self::CreateVolume
            | Self::DeleteVolume
            | Self::CreateSnapshot
            | Self::DeleteSnapshot
            | Self::ControllerExpandVolume
            | Self::ControllerModifyVolume
            | Self::CreateVolumeGroupSnapshot
            | Self::DeleteVolumeGroupSnapshot => Kind::Change,
            Self::ControllerPublishVolume | Self::ControllerUnpublishVolume => Kind::Move,
            Self::NodeStageVolume
            | Self::NodeUnstageVolume
            | Self::NodePublishVolume
            | Self::NodeUnpublishVolume
            | Self::NodeExpandVolume => Kind::OnNode,
            Self::GetPluginInfo
            | Self::GetPluginCapabilities
            | Self::Probe
            | Self::ValidateVolumeCapabilities
            | Self::ListVolumes
            | Self::ControllerListVolumeHealth
            | Self::ControllerGetVolumeHealth
            | Self::GetCapacity
            | Self::ControllerGetCapabilities
            | Self::ListSnapshots
            | Self::GetSnapshot
            | Self::ControllerGetVolume
            | Self::GroupControllerGetCapabilities
            | Self::GetVolumeGroupSnapshot
            | Self::GetMetadataAllocated
            | Self::GetMetadataDelta
            | Self::NodeGetVolumeStats
            | Self::NodeGetVolumeHealth
            | Self::NodeGetStorageHealth
            | Self::NodeGetCapabilities
            | Self::NodeGetInfo => Kind::Look,
        }
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
    use std::collections::BTreeSet;

    use prost_reflect::DescriptorPool;

    use super::*;

    #[test]
    fn every_rpc_of_the_specification_is_known() {
        let pool = DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).unwrap();
        let specified: BTreeSet<String> = pool
            .services()
            .filter(|service| service.package_name() == "csi.v1")
            .flat_map(|service| {
                let name = service.full_name().to_owned();
                service
                    .methods()
                    .map(|rpc| format!("/{name}/{}", rpc.name()))
                    .collect::<Vec<_>>()
            })
            .collect();
        let known: BTreeSet<String> = Method::ALL.map(|method| method.path().to_owned()).into();
        assert_eq!(known, specified);
    }

    #[test]
    fn names_and_paths_lead_back_to_the_method() {
        for method in Method::ALL {
            assert_eq!(method.name().parse(), Ok(method));
            assert_eq!(method.path().parse(), Ok(method));
            assert_eq!(Method::at(method.path()), Some(method));
        }
        let unknown = "controllerPublishVolume".parse::<Method>().unwrap_err();
        assert!(
            unknown.to_string().contains("ControllerPublishVolume"),
            "{unknown}"
        );
    }
}
