//! Kubernetes' volume mode and access modes as a CSI VolumeCapability.

use csi_proto::v1::VolumeCapability;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::model::{CsiSource, Driver, VolumeSpec};

/// Access modes that have no CSI equivalent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum Unsupported {
    #[error(
        "Kubernetes does not support use of ReadWriteOncePod with other access modes on the same PersistentVolume"
    )]
    OncePodWithOthers,
    #[error("CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume")]
    ReadOnlyManyAndReadWriteOnce,
    #[error("unsupported AccessMode combination: []")]
    Nothing,
}

/// The capability with which `spec` is published.
pub(super) fn capability(
    spec: &VolumeSpec,
    csi: &CsiSource,
    driver: &Driver,
) -> Result<VolumeCapability, Unsupported> {
    let mode = access_mode(&spec.access_modes, driver.capabilities.single_node_multi_writer)?;
    let access_type = if spec.block {
        AccessType::Block(BlockVolume {})
    } else {
        let fs_type = match &*csi.fs_type {
            "" => driver.default_fs_type.to_string(),
            fs_type => fs_type.to_owned(),
        };
        AccessType::Mount(MountVolume {
            fs_type,
            mount_flags: spec.mount_options.clone(),
            // Kubernetes sets the group only in node calls (KEP-2317).
            volume_mount_group: String::new(),
        })
    };
    Ok(VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode.into() }),
    })
}

/// ReadWriteMany includes the weaker modes; with SINGLE_NODE_MULTI_WRITER the mode distinguishes one pod from one node.
/// Ignores unknown names and refuses a volume without known modes, as the Go sidecar does.
fn access_mode(names: &[String], single_node_multi_writer: bool) -> Result<Mode, Unsupported> {
    let has = |mode: &str| names.iter().any(|name| name == mode);
    match (
        has("ReadWriteOncePod"),
        has("ReadWriteMany"),
        has("ReadOnlyMany"),
        has("ReadWriteOnce"),
    ) {
        (true, false, false, false) if single_node_multi_writer => Ok(Mode::SingleNodeSingleWriter),
        (true, false, false, false) => Ok(Mode::SingleNodeWriter),
        (true, _, _, _) => Err(Unsupported::OncePodWithOthers),
        (false, true, _, _) => Ok(Mode::MultiNodeMultiWriter),
        (false, false, true, true) => Err(Unsupported::ReadOnlyManyAndReadWriteOnce),
        (false, false, true, false) => Ok(Mode::MultiNodeReaderOnly),
        (false, false, false, true) if single_node_multi_writer => Ok(Mode::SingleNodeMultiWriter),
        (false, false, false, true) => Ok(Mode::SingleNodeWriter),
        (false, false, false, false) => Err(Unsupported::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_map_as_in_the_go_sidecar() {
        use Mode::*;
        use Unsupported::*;
        type Mapped = Result<Mode, Unsupported>;
        #[rustfmt::skip]
        let table: &[(&[&str], Mapped, Mapped)] = &[
            // modes, plain driver, driver with SINGLE_NODE_MULTI_WRITER
            (&[], Err(Nothing), Err(Nothing)),
            (&["SomethingNew"], Err(Nothing), Err(Nothing)),
            (&["ReadWriteOnce"], Ok(SingleNodeWriter), Ok(SingleNodeMultiWriter)),
            (&["ReadWriteOncePod"], Ok(SingleNodeWriter), Ok(SingleNodeSingleWriter)),
            (&["ReadOnlyMany"], Ok(MultiNodeReaderOnly), Ok(MultiNodeReaderOnly)),
            (&["ReadWriteMany"], Ok(MultiNodeMultiWriter), Ok(MultiNodeMultiWriter)),
            (&["ReadWriteMany", "ReadWriteOnce"], Ok(MultiNodeMultiWriter), Ok(MultiNodeMultiWriter)),
            (&["ReadWriteMany", "ReadOnlyMany", "ReadWriteOnce"], Ok(MultiNodeMultiWriter), Ok(MultiNodeMultiWriter)),
            (&["ReadOnlyMany", "ReadWriteOnce"], Err(ReadOnlyManyAndReadWriteOnce), Err(ReadOnlyManyAndReadWriteOnce)),
            (&["ReadWriteOncePod", "ReadWriteOnce"], Err(OncePodWithOthers), Err(OncePodWithOthers)),
            (&["ReadWriteOncePod", "ReadWriteMany"], Err(OncePodWithOthers), Err(OncePodWithOthers)),
        ];
        for (names, plain, multi_writer) in table {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            assert_eq!(access_mode(&names, false), *plain, "{names:?}");
            assert_eq!(
                access_mode(&names, true),
                *multi_writer,
                "{names:?} with multi writer"
            );
        }
    }
}
