//! Capabilities, the RPCs that report them, and the RPCs that need them.

use std::str::FromStr;

use csi_proto::v1::{
    controller_service_capability::rpc as controller, group_controller_service_capability::rpc as group,
    node_service_capability::rpc as node, plugin_capability as plugin,
};

use crate::rpc::method::Method;

/// A capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each variant is the capability of the same name")]
pub enum Capability {
    /// Only reported: the driver serves the Controller service's RPCs all the same.
    ControllerService,
    VolumeAccessibilityConstraints,
    GroupControllerService,
    SnapshotMetadataService,
    SnapshotAccessibilityConstraints,
    VolumeExpansionOnline,
    /// Excludes the previous one, so it is not a default.
    VolumeExpansionOffline,

    CreateDeleteVolume,
    PublishUnpublishVolume,
    ListVolumes,
    GetCapacity,
    CreateDeleteSnapshot,
    ListSnapshots,
    CloneVolume,
    PublishReadonly,
    ExpandVolume,
    ListVolumesPublishedNodes,
    /// Removed in CSI 1.13, but kubelet still reads it.
    VolumeCondition,
    GetVolume,
    SingleNodeMultiWriter,
    ModifyVolume,
    GetSnapshot,
    GetVolumeHealth,
    ListVolumeHealth,

    CreateDeleteGetVolumeGroupSnapshot,

    NodeStageUnstageVolume,
    NodeGetVolumeStats,
    NodeExpandVolume,
    /// Removed in CSI 1.13, but kubelet still reads it.
    NodeVolumeCondition,
    NodeSingleNodeMultiWriter,
    NodeVolumeMountGroup,
    NodeGetVolumeHealth,
    NodeGetStorageHealth,
}

/// The RPC that reports a capability, and its value there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportedIn {
    /// GetPluginCapabilities, as a service.
    Service(plugin::service::Type),
    /// GetPluginCapabilities, as a kind of volume expansion.
    Expansion(plugin::volume_expansion::Type),
    /// ControllerGetCapabilities. A number, because legacy capabilities have no name in the proto file.
    Controller(i32),
    /// GroupControllerGetCapabilities.
    Group(i32),
    /// NodeGetCapabilities.
    Node(i32),
}

/// A malformed list of changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapabilitySetError {
    /// An item without a sign.
    #[error("\"{0}\" must begin with + or -")]
    NoSign(String),
    /// Unknown capability.
    #[error("\"{name}\" is no capability of this driver; it has {}", Capability::ALL.map(Capability::name).join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
}

// === impl Capability ===

impl Capability {
    pub(crate) const ALL: [Self; 33] = [
        Self::ControllerService,
        Self::VolumeAccessibilityConstraints,
        Self::GroupControllerService,
        Self::SnapshotMetadataService,
        Self::SnapshotAccessibilityConstraints,
        Self::VolumeExpansionOnline,
        Self::VolumeExpansionOffline,
        Self::CreateDeleteVolume,
        Self::PublishUnpublishVolume,
        Self::ListVolumes,
        Self::GetCapacity,
        Self::CreateDeleteSnapshot,
        Self::ListSnapshots,
        Self::CloneVolume,
        Self::PublishReadonly,
        Self::ExpandVolume,
        Self::ListVolumesPublishedNodes,
        Self::VolumeCondition,
        Self::GetVolume,
        Self::SingleNodeMultiWriter,
        Self::ModifyVolume,
        Self::GetSnapshot,
        Self::GetVolumeHealth,
        Self::ListVolumeHealth,
        Self::CreateDeleteGetVolumeGroupSnapshot,
        Self::NodeStageUnstageVolume,
        Self::NodeGetVolumeStats,
        Self::NodeExpandVolume,
        Self::NodeVolumeCondition,
        Self::NodeSingleNodeMultiWriter,
        Self::NodeVolumeMountGroup,
        Self::NodeGetVolumeHealth,
        Self::NodeGetStorageHealth,
    ];

    /// Its name in the CSI specification, with the prefix `NODE_` for the Node service's.
    pub fn name(self) -> &'static str {
        match self {
            Self::ControllerService => "CONTROLLER_SERVICE",
            Self::VolumeAccessibilityConstraints => "VOLUME_ACCESSIBILITY_CONSTRAINTS",
            Self::GroupControllerService => "GROUP_CONTROLLER_SERVICE",
            Self::SnapshotMetadataService => "SNAPSHOT_METADATA_SERVICE",
            Self::SnapshotAccessibilityConstraints => "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
            Self::VolumeExpansionOnline => "VOLUME_EXPANSION_ONLINE",
            Self::VolumeExpansionOffline => "VOLUME_EXPANSION_OFFLINE",
            Self::CreateDeleteVolume => "CREATE_DELETE_VOLUME",
            Self::PublishUnpublishVolume => "PUBLISH_UNPUBLISH_VOLUME",
            Self::ListVolumes => "LIST_VOLUMES",
            Self::GetCapacity => "GET_CAPACITY",
            Self::CreateDeleteSnapshot => "CREATE_DELETE_SNAPSHOT",
            Self::ListSnapshots => "LIST_SNAPSHOTS",
            Self::CloneVolume => "CLONE_VOLUME",
            Self::PublishReadonly => "PUBLISH_READONLY",
            Self::ExpandVolume => "EXPAND_VOLUME",
            Self::ListVolumesPublishedNodes => "LIST_VOLUMES_PUBLISHED_NODES",
            Self::VolumeCondition => "VOLUME_CONDITION",
            Self::GetVolume => "GET_VOLUME",
            Self::SingleNodeMultiWriter => "SINGLE_NODE_MULTI_WRITER",
            Self::ModifyVolume => "MODIFY_VOLUME",
            Self::GetSnapshot => "GET_SNAPSHOT",
            Self::GetVolumeHealth => "GET_VOLUME_HEALTH",
            Self::ListVolumeHealth => "LIST_VOLUME_HEALTH",
            Self::CreateDeleteGetVolumeGroupSnapshot => "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
            Self::NodeStageUnstageVolume => "NODE_STAGE_UNSTAGE_VOLUME",
            Self::NodeGetVolumeStats => "NODE_GET_VOLUME_STATS",
            Self::NodeExpandVolume => "NODE_EXPAND_VOLUME",
            Self::NodeVolumeCondition => "NODE_VOLUME_CONDITION",
            Self::NodeSingleNodeMultiWriter => "NODE_SINGLE_NODE_MULTI_WRITER",
            Self::NodeVolumeMountGroup => "NODE_VOLUME_MOUNT_GROUP",
            Self::NodeGetVolumeHealth => "NODE_GET_VOLUME_HEALTH",
            Self::NodeGetStorageHealth => "NODE_GET_STORAGE_HEALTH",
        }
    }

    /// The RPC that reports it.
    pub(crate) fn place(self) -> ReportedIn {
        use plugin::service::Type as Service;
        use plugin::volume_expansion::Type as Expansion;
        let controller = |rpc: controller::Type| ReportedIn::Controller(rpc.into());
        let node = |rpc: node::Type| ReportedIn::Node(rpc.into());
        match self {
            Self::ControllerService => ReportedIn::Service(Service::ControllerService),
            Self::VolumeAccessibilityConstraints => {
                ReportedIn::Service(Service::VolumeAccessibilityConstraints)
            }
            Self::GroupControllerService => ReportedIn::Service(Service::GroupControllerService),
            Self::SnapshotMetadataService => ReportedIn::Service(Service::SnapshotMetadataService),
            Self::SnapshotAccessibilityConstraints => {
                ReportedIn::Service(Service::SnapshotAccessibilityConstraints)
            }
            Self::VolumeExpansionOnline => ReportedIn::Expansion(Expansion::Online),
            Self::VolumeExpansionOffline => ReportedIn::Expansion(Expansion::Offline),
            Self::CreateDeleteVolume => controller(controller::Type::CreateDeleteVolume),
            Self::PublishUnpublishVolume => controller(controller::Type::PublishUnpublishVolume),
            Self::ListVolumes => controller(controller::Type::ListVolumes),
            Self::GetCapacity => controller(controller::Type::GetCapacity),
            Self::CreateDeleteSnapshot => controller(controller::Type::CreateDeleteSnapshot),
            Self::ListSnapshots => controller(controller::Type::ListSnapshots),
            Self::CloneVolume => controller(controller::Type::CloneVolume),
            Self::PublishReadonly => controller(controller::Type::PublishReadonly),
            Self::ExpandVolume => controller(controller::Type::ExpandVolume),
            Self::ListVolumesPublishedNodes => controller(controller::Type::ListVolumesPublishedNodes),
            Self::VolumeCondition => ReportedIn::Controller(11),
            Self::GetVolume => controller(controller::Type::GetVolume),
            Self::SingleNodeMultiWriter => controller(controller::Type::SingleNodeMultiWriter),
            Self::ModifyVolume => controller(controller::Type::ModifyVolume),
            Self::GetSnapshot => controller(controller::Type::GetSnapshot),
            Self::GetVolumeHealth => controller(controller::Type::GetVolumeHealth),
            Self::ListVolumeHealth => controller(controller::Type::ListVolumeHealth),
            Self::CreateDeleteGetVolumeGroupSnapshot => {
                ReportedIn::Group(group::Type::CreateDeleteGetVolumeGroupSnapshot.into())
            }
            Self::NodeStageUnstageVolume => node(node::Type::StageUnstageVolume),
            Self::NodeGetVolumeStats => node(node::Type::GetVolumeStats),
            Self::NodeExpandVolume => node(node::Type::ExpandVolume),
            Self::NodeVolumeCondition => ReportedIn::Node(4),
            Self::NodeSingleNodeMultiWriter => node(node::Type::SingleNodeMultiWriter),
            Self::NodeVolumeMountGroup => node(node::Type::VolumeMountGroup),
            Self::NodeGetVolumeHealth => node(node::Type::GetVolumeHealth),
            Self::NodeGetStorageHealth => node(node::Type::GetStorageHealth),
        }
    }

    /// Whether it is a default.
    pub(crate) fn is_default(self) -> bool {
        match self {
            Self::VolumeExpansionOffline | Self::VolumeCondition | Self::NodeVolumeCondition => false,
            Self::NodeStageUnstageVolume
            | Self::NodeGetVolumeStats
            | Self::NodeExpandVolume
            | Self::NodeSingleNodeMultiWriter
            | Self::NodeVolumeMountGroup
            | Self::NodeGetVolumeHealth
            | Self::NodeGetStorageHealth
            | Self::ControllerService
            | Self::VolumeAccessibilityConstraints
            | Self::GroupControllerService
            | Self::SnapshotMetadataService
            | Self::SnapshotAccessibilityConstraints
            | Self::VolumeExpansionOnline
            | Self::CreateDeleteVolume
            | Self::PublishUnpublishVolume
            | Self::ListVolumes
            | Self::GetCapacity
            | Self::CreateDeleteSnapshot
            | Self::ListSnapshots
            | Self::CloneVolume
            | Self::PublishReadonly
            | Self::ExpandVolume
            | Self::ListVolumesPublishedNodes
            | Self::GetVolume
            | Self::SingleNodeMultiWriter
            | Self::ModifyVolume
            | Self::GetSnapshot
            | Self::GetVolumeHealth
            | Self::ListVolumeHealth
            | Self::CreateDeleteGetVolumeGroupSnapshot => true,
        }
    }

    /// The capabilities that the method needs.
    pub(super) fn behind(method: Method) -> &'static [Self] {
        match method {
            Method::CreateVolume | Method::DeleteVolume => &[Self::CreateDeleteVolume],
            Method::ControllerPublishVolume | Method::ControllerUnpublishVolume => {
                &[Self::PublishUnpublishVolume]
            }
            Method::ListVolumes => &[Self::ListVolumes],
            Method::ControllerListVolumeHealth => &[Self::GetVolumeHealth, Self::ListVolumeHealth],
            Method::ControllerGetVolumeHealth => &[Self::GetVolumeHealth],
            Method::GetCapacity => &[Self::GetCapacity],
            Method::CreateSnapshot | Method::DeleteSnapshot => &[Self::CreateDeleteSnapshot],
            Method::ListSnapshots => &[Self::ListSnapshots],
            Method::GetSnapshot => &[Self::GetSnapshot],
            Method::ControllerExpandVolume => &[Self::ExpandVolume],
            Method::ControllerGetVolume => &[Self::GetVolume],
            Method::ControllerModifyVolume => &[Self::ModifyVolume],
            Method::GroupControllerGetCapabilities => &[Self::GroupControllerService],
            Method::CreateVolumeGroupSnapshot
            | Method::DeleteVolumeGroupSnapshot
            | Method::GetVolumeGroupSnapshot => &[
                Self::GroupControllerService,
                Self::CreateDeleteGetVolumeGroupSnapshot,
            ],
            Method::GetMetadataAllocated | Method::GetMetadataDelta => &[Self::SnapshotMetadataService],
            Method::NodeStageVolume | Method::NodeUnstageVolume => &[Self::NodeStageUnstageVolume],
            Method::NodeGetVolumeStats => &[Self::NodeGetVolumeStats],
            Method::NodeGetVolumeHealth => &[Self::NodeGetVolumeHealth],
            Method::NodeGetStorageHealth => &[Self::NodeGetStorageHealth],
            Method::NodeExpandVolume => &[Self::NodeExpandVolume],
            Method::GetPluginInfo
            | Method::GetPluginCapabilities
            | Method::Probe
            | Method::ValidateVolumeCapabilities
            | Method::ControllerGetCapabilities
            | Method::NodePublishVolume
            | Method::NodeUnpublishVolume
            | Method::NodeGetCapabilities
            | Method::NodeGetInfo => &[],
        }
    }
}

impl FromStr for Capability {
    type Err = CapabilitySetError;

    fn from_str(name: &str) -> Result<Self, CapabilitySetError> {
        Self::ALL
            .into_iter()
            .find(|capability| capability.name() == name)
            .ok_or_else(|| CapabilitySetError::Unknown {
                name: name.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_specification() {
        for capability in Capability::ALL {
            let specified = match capability.place() {
                ReportedIn::Service(service) => service.as_str_name().to_owned(),
                ReportedIn::Expansion(expansion) => format!("VOLUME_EXPANSION_{}", expansion.as_str_name()),
                ReportedIn::Controller(11) => "VOLUME_CONDITION".to_owned(),
                ReportedIn::Controller(number) => controller::Type::try_from(number)
                    .unwrap()
                    .as_str_name()
                    .to_owned(),
                ReportedIn::Group(number) => group::Type::try_from(number).unwrap().as_str_name().to_owned(),
                ReportedIn::Node(4) => "NODE_VOLUME_CONDITION".to_owned(),
                ReportedIn::Node(number) => {
                    format!("NODE_{}", node::Type::try_from(number).unwrap().as_str_name())
                }
            };
            assert_eq!(capability.name(), specified, "{capability:?}");
        }
    }

    #[test]
    fn every_capability_is_listed_once() {
        let mut all = Capability::ALL.to_vec();
        all.sort();
        all.dedup();
        assert_eq!(all, Capability::ALL, "sorted, without repeats");
        assert_eq!(
            Capability::ALL.last(),
            Some(&Capability::NodeGetStorageHealth),
            "the last variant is in the list"
        );
    }
}
