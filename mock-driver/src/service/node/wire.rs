//! Conversion of validated capabilities to CSI messages.

use csi_proto::v1;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};

use crate::array::{Access, Capability};

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
    let mode = Mode::from_str_name(capability.mode.name()).expect("CSI must have every mode");
    v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array;
    use crate::rpc::validate;

    #[test]
    fn capability_round_trips() {
        for mode in array::AccessMode::ALL {
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
