//! The CSI RPCs: one table of names, kinds and capabilities. Request, reply and streaming come from the protobuf descriptors in
//! `csi-proto`.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MessageDescriptor, MethodDescriptor};
use wildmatch::WildMatch;

use super::capabilities::Capability;

const NODE_SERVICE: &str = "/csi.v1.Node/";

/// Request fields with a volume id; in ListSnapshots, a filter.
pub(crate) const VOLUME: [&str; 2] = ["volume_id", "source_volume_id"];

/// Request field with a node id.
pub(crate) const NODE: [&str; 1] = ["node_id"];

/// Request field with the name of an object to create.
pub(crate) const NAME: [&str; 1] = ["name"];

/// The descriptors of all messages and services.
pub(crate) static DESCRIPTORS: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).expect("the built-in descriptors must decode")
});

/// In the order of [`Method::ALL`].
static METHODS: LazyLock<Vec<MethodDescriptor>> = LazyLock::new(|| {
    let find = |method: Method| {
        let (service, name) = method.path()[1..].rsplit_once('/')?;
        let service = DESCRIPTORS.get_service_by_name(service)?;
        service.methods().find(|known| known.name() == name)
    };
    let described = |method| find(method).expect("the specification must have every method");
    Method::ALL.into_iter().map(described).collect()
});

/// Generates `Method` and its tables from one list of RPCs, each with its effect on the array and the capabilities that its
/// calls need.
macro_rules! methods {
    ($($service:literal => [$($name:ident: $kind:ident $(needs $($capability:ident)+)?),+ $(,)?])+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Method {
            $($($name,)+)+
        }

        impl Method {
            /// Every method, in the order of the specification.
            pub(crate) const ALL: [Self; 36] = [$($(Self::$name,)+)+];

            pub(crate) fn at(path: &str) -> Option<Self> {
                match path {
                    $($(concat!("/csi.v1.", $service, "/", stringify!($name)) => Some(Self::$name),)+)+
                    _ => None,
                }
            }

            pub(crate) const fn path(self) -> &'static str {
                match self {
                    $($(Self::$name => concat!("/csi.v1.", $service, "/", stringify!($name)),)+)+
                }
            }

            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $($(Self::$name => stringify!($name),)+)+
                }
            }

            pub(crate) const fn kind(self) -> Kind {
                match self {
                    $($(Self::$name => Kind::$kind,)+)+
                }
            }

            pub(crate) const fn needs(self) -> &'static [Capability] {
                match self {
                    $($(Self::$name => &[$($(Capability::$capability),+)?],)+)+
                }
            }
        }
    };
}

methods! {
    "Identity" => [GetPluginInfo: Read, GetPluginCapabilities: Read, Probe: Read]
    "Controller" => [
        CreateVolume: Change needs CreateDeleteVolume,
        DeleteVolume: Change needs CreateDeleteVolume,
        ControllerPublishVolume: Publish needs PublishUnpublishVolume,
        ControllerUnpublishVolume: Publish needs PublishUnpublishVolume,
        ValidateVolumeCapabilities: Read,
        ListVolumes: Read needs ListVolumes,
        ControllerListVolumeHealth: Read needs GetVolumeHealth ListVolumeHealth,
        ControllerGetVolumeHealth: Read needs GetVolumeHealth,
        GetCapacity: Read needs GetCapacity,
        ControllerGetCapabilities: Read,
        CreateSnapshot: Change needs CreateDeleteSnapshot,
        DeleteSnapshot: Change needs CreateDeleteSnapshot,
        ListSnapshots: Read needs ListSnapshots,
        GetSnapshot: Read needs GetSnapshot,
        ControllerExpandVolume: Change needs ExpandVolume,
        ControllerGetVolume: Read needs GetVolume,
        ControllerModifyVolume: Change needs ModifyVolume,
    ]
    "GroupController" => [
        GroupControllerGetCapabilities: Read needs GroupControllerService,
        CreateVolumeGroupSnapshot: Change needs GroupControllerService CreateDeleteGetVolumeGroupSnapshot,
        DeleteVolumeGroupSnapshot: Change needs GroupControllerService CreateDeleteGetVolumeGroupSnapshot,
        GetVolumeGroupSnapshot: Read needs GroupControllerService CreateDeleteGetVolumeGroupSnapshot,
    ]
    "SnapshotMetadata" => [
        GetMetadataAllocated: Read needs SnapshotMetadataService,
        GetMetadataDelta: Read needs SnapshotMetadataService,
    ]
    "Node" => [
        NodeStageVolume: OnNode needs NodeStageUnstageVolume,
        NodeUnstageVolume: OnNode needs NodeStageUnstageVolume,
        NodePublishVolume: OnNode,
        NodeUnpublishVolume: OnNode,
        NodeGetVolumeStats: Read needs NodeGetVolumeStats,
        NodeGetVolumeHealth: Read needs NodeGetVolumeHealth,
        NodeGetStorageHealth: Read needs NodeGetStorageHealth,
        NodeExpandVolume: OnNode needs NodeExpandVolume,
        NodeGetCapabilities: Read,
        NodeGetInfo: Read,
    ]
}

/// The effect of a call on the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It only reads, so it ends when its client disconnects.
    Read,
    Change,
    /// It publishes or unpublishes a volume, which takes time.
    Publish,
    /// It changes a volume on a node.
    OnNode,
}

// === impl Kind ===

impl Kind {
    /// Whether a call changes the array's state. Calls of the Node service do not.
    pub(crate) fn changes_array(self) -> bool {
        matches!(self, Self::Change | Self::Publish)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown method \"{name}\"; this driver has {}", Method::ALL.map(Method::name).join(", "))]
pub(crate) struct UnknownMethod {
    name: String,
}

/// The name of a method without its service.
pub(crate) fn short(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

// === impl Method ===

impl Method {
    pub(crate) fn request(self) -> MessageDescriptor {
        self.descriptor().input()
    }

    pub(crate) fn reply(self) -> MessageDescriptor {
        self.descriptor().output()
    }

    pub(crate) fn service(self) -> &'static str {
        let path = self.path();
        &path[1..path.len() - self.name().len() - 1]
    }

    pub(crate) fn streams(self) -> bool {
        self.descriptor().is_server_streaming()
    }

    pub(crate) fn takes(self, field: &str) -> bool {
        self.request().get_field_by_name(field).is_some()
    }

    /// Whether it runs on a node without a node id in the request.
    pub(crate) fn is_on_node(self) -> bool {
        self.path().starts_with(NODE_SERVICE)
    }

    pub(crate) fn has_volume(self) -> bool {
        VOLUME.iter().any(|field| self.takes(field))
    }

    /// Whether its request has a node id, or it runs on a node.
    pub(crate) fn has_node(self) -> bool {
        self.is_on_node() || NODE.iter().any(|field| self.takes(field))
    }

    pub(crate) fn has_name(self) -> bool {
        NAME.iter().any(|field| self.takes(field))
    }

    /// Whether the pattern matches its name or path.
    pub(crate) fn matches(self, pattern: &WildMatch) -> bool {
        pattern.matches(self.name()) || pattern.matches(self.path())
    }

    fn descriptor(self) -> &'static MethodDescriptor {
        &METHODS[self as usize]
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = UnknownMethod;

    /// Parses the bare name or the full path.
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

    use super::*;

    #[test]
    fn every_rpc_of_the_specification_is_known() {
        let specified: BTreeSet<String> = DESCRIPTORS
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

    #[test]
    fn descriptors_are_those_of_the_methods() {
        for method in Method::ALL {
            assert_eq!(method.descriptor().name(), method.name());
        }
        let publish = Method::ControllerPublishVolume;
        assert_eq!(publish.path(), "/csi.v1.Controller/ControllerPublishVolume");
        assert!(publish.takes("node_id") && !publish.takes("name") && !publish.streams());
        assert!(Method::GetMetadataDelta.streams());
    }
}
