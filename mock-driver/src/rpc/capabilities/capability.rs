//! Capabilities, and the RPCs that report them.

use std::str::FromStr;

use csi_proto::v1::controller_service_capability::rpc::Type as Controller;
use csi_proto::v1::group_controller_service_capability::rpc::Type as Group;
use csi_proto::v1::node_service_capability::rpc::Type as Node;
use csi_proto::v1::plugin_capability::{service::Type as Service, volume_expansion::Type as Expansion};

/// Numbers of capabilities that CSI 1.13 removed, but kubelet still reads.
const VOLUME_CONDITION: i32 = 11;
const NODE_VOLUME_CONDITION: i32 = 4;

/// The RPC that reports a capability, and its value there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportedIn {
    /// GetPluginCapabilities, as a service.
    Service(Service),
    /// GetPluginCapabilities, as a kind of volume expansion.
    Expansion(Expansion),
    /// ControllerGetCapabilities. A number, because legacy capabilities have no name in the proto file.
    Controller(i32),
    Group(i32),
    Node(i32),
}

/// A malformed list of changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum CapabilitySetError {
    #[error("\"{0}\" must begin with + or -")]
    NoSign(String),
    #[error("unknown capability \"{name}\": use one of {}", Capability::ALL.map(Capability::name).join(", "))]
    Unknown { name: String },
}

/// Generates `Capability` from one list of names and of values in the RPCs that report them.
macro_rules! capabilities {
    ($($(#[$doc:meta])* $capability:ident $name:literal $rpc:ident($value:expr);)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Capability {
            $($(#[$doc])* $capability,)+
        }

        impl Capability {
            pub(crate) const ALL: [Self; 33] = [$(Self::$capability,)+];

            /// Its name in the CSI specification, with the prefix `NODE_` for the Node service's.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$capability => $name,)+
                }
            }

            pub(crate) fn reported_in(self) -> ReportedIn {
                match self {
                    $(Self::$capability => ReportedIn::$rpc($value),)+
                }
            }
        }
    };
}

capabilities! {
    /// Only reported: the driver serves the Controller service's RPCs also without it.
    ControllerService "CONTROLLER_SERVICE" Service(Service::ControllerService);
    VolumeAccessibilityConstraints "VOLUME_ACCESSIBILITY_CONSTRAINTS" Service(Service::VolumeAccessibilityConstraints);
    GroupControllerService "GROUP_CONTROLLER_SERVICE" Service(Service::GroupControllerService);
    SnapshotMetadataService "SNAPSHOT_METADATA_SERVICE" Service(Service::SnapshotMetadataService);
    SnapshotAccessibilityConstraints "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS" Service(Service::SnapshotAccessibilityConstraints);
    VolumeExpansionOnline "VOLUME_EXPANSION_ONLINE" Expansion(Expansion::Online);
    /// Excludes the previous one, so it is not a default.
    VolumeExpansionOffline "VOLUME_EXPANSION_OFFLINE" Expansion(Expansion::Offline);

    CreateDeleteVolume "CREATE_DELETE_VOLUME" Controller(Controller::CreateDeleteVolume.into());
    PublishUnpublishVolume "PUBLISH_UNPUBLISH_VOLUME" Controller(Controller::PublishUnpublishVolume.into());
    ListVolumes "LIST_VOLUMES" Controller(Controller::ListVolumes.into());
    GetCapacity "GET_CAPACITY" Controller(Controller::GetCapacity.into());
    CreateDeleteSnapshot "CREATE_DELETE_SNAPSHOT" Controller(Controller::CreateDeleteSnapshot.into());
    ListSnapshots "LIST_SNAPSHOTS" Controller(Controller::ListSnapshots.into());
    CloneVolume "CLONE_VOLUME" Controller(Controller::CloneVolume.into());
    PublishReadonly "PUBLISH_READONLY" Controller(Controller::PublishReadonly.into());
    ExpandVolume "EXPAND_VOLUME" Controller(Controller::ExpandVolume.into());
    ListVolumesPublishedNodes "LIST_VOLUMES_PUBLISHED_NODES" Controller(Controller::ListVolumesPublishedNodes.into());
    /// Removed in CSI 1.13, but kubelet still reads it.
    VolumeCondition "VOLUME_CONDITION" Controller(VOLUME_CONDITION);
    GetVolume "GET_VOLUME" Controller(Controller::GetVolume.into());
    SingleNodeMultiWriter "SINGLE_NODE_MULTI_WRITER" Controller(Controller::SingleNodeMultiWriter.into());
    ModifyVolume "MODIFY_VOLUME" Controller(Controller::ModifyVolume.into());
    GetSnapshot "GET_SNAPSHOT" Controller(Controller::GetSnapshot.into());
    GetVolumeHealth "GET_VOLUME_HEALTH" Controller(Controller::GetVolumeHealth.into());
    ListVolumeHealth "LIST_VOLUME_HEALTH" Controller(Controller::ListVolumeHealth.into());

    CreateDeleteGetVolumeGroupSnapshot "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
        Group(Group::CreateDeleteGetVolumeGroupSnapshot.into());

    NodeStageUnstageVolume "NODE_STAGE_UNSTAGE_VOLUME" Node(Node::StageUnstageVolume.into());
    NodeGetVolumeStats "NODE_GET_VOLUME_STATS" Node(Node::GetVolumeStats.into());
    NodeExpandVolume "NODE_EXPAND_VOLUME" Node(Node::ExpandVolume.into());
    /// Removed in CSI 1.13, but kubelet still reads it.
    NodeVolumeCondition "NODE_VOLUME_CONDITION" Node(NODE_VOLUME_CONDITION);
    NodeSingleNodeMultiWriter "NODE_SINGLE_NODE_MULTI_WRITER" Node(Node::SingleNodeMultiWriter.into());
    NodeVolumeMountGroup "NODE_VOLUME_MOUNT_GROUP" Node(Node::VolumeMountGroup.into());
    NodeGetVolumeHealth "NODE_GET_VOLUME_HEALTH" Node(Node::GetVolumeHealth.into());
    NodeGetStorageHealth "NODE_GET_STORAGE_HEALTH" Node(Node::GetStorageHealth.into());
}

// === impl Capability ===

impl Capability {
    /// Whether it is a default: all but the superseded ones.
    pub(crate) fn is_default(self) -> bool {
        !matches!(
            self,
            Self::VolumeExpansionOffline | Self::VolumeCondition | Self::NodeVolumeCondition
        )
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
            let specified = match capability.reported_in() {
                ReportedIn::Service(service) => service.as_str_name().to_owned(),
                ReportedIn::Expansion(expansion) => format!("VOLUME_EXPANSION_{}", expansion.as_str_name()),
                ReportedIn::Controller(VOLUME_CONDITION) => "VOLUME_CONDITION".to_owned(),
                ReportedIn::Controller(number) => {
                    Controller::try_from(number).unwrap().as_str_name().to_owned()
                }
                ReportedIn::Group(number) => Group::try_from(number).unwrap().as_str_name().to_owned(),
                ReportedIn::Node(NODE_VOLUME_CONDITION) => "NODE_VOLUME_CONDITION".to_owned(),
                ReportedIn::Node(number) => {
                    format!("NODE_{}", Node::try_from(number).unwrap().as_str_name())
                }
            };
            assert_eq!(capability.name(), specified, "{capability:?}");
        }
    }
}
