//! Conversion of validated capabilities to CSI messages.

use csi_proto::v1;
use csi_proto::v1::volume_capability::{
    AccessMode as WireMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
};

use crate::array::{Access, AccessMode, Capability};

/// The CSI message of a capability.
pub(super) fn capability(capability: &Capability) -> v1::VolumeCapability {
    let access_type = match &capability.access {
        Access::Block => AccessType::Block(BlockVolume {}),
        Access::Mount {
            fs_type,
            flags,
            group,
        } => AccessType::Mount(MountVolume {
            fs_type: fs_type.clone(),
            mount_flags: flags.clone(),
            volume_mount_group: group.clone(),
        }),
    };
    v1::VolumeCapability {
        access_mode: Some(WireMode {
            mode: mode(capability.mode).into(),
        }),
        access_type: Some(access_type),
    }
}

fn mode(mode: AccessMode) -> Mode {
    match mode {
        AccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly => Mode::SingleNodeReaderOnly,
        AccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
        AccessMode::MultiNodeSingleWriter => Mode::MultiNodeSingleWriter,
        AccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
        AccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::validate;

    #[test]
    fn capability_round_trips() {
        for mode in AccessMode::ALL {
            for access in [
                Access::Block,
                Access::Mount {
                    fs_type: "xfs".to_owned(),
                    flags: vec!["noatime".to_owned()],
                    group: "7".to_owned(),
                },
            ] {
                let known = Capability { access, mode };
                assert_eq!(
                    validate::capability("capability", Some(&capability(&known))),
                    Ok(known)
                );
            }
        }
    }
}
