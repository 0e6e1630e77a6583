use csi_proto::v1::node_get_storage_health_response::StorageBackendHealth;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};
use csi_proto::v1::{
    NodeGetStorageHealthRequest, NodeGetVolumeHealthRequest, StorageHealthErrorType, VolumeCapability,
};

use super::super::controller::shape;
use super::path;
use crate::array::{Access, Capability, StorageHealthIssue, StorageSeverity};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

impl Rpc for NodeGetVolumeHealthRequest {
    type Params = (String, Option<String>);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let path = Some(self.volume_publish_path.clone()).filter(|path| !path.is_empty());
        path::optional("staging_target_path", &self.staging_target_path)?;
        Ok((volume, path))
    }

    async fn execute((volume, path): Self::Params, driver: &Driver) -> Result<Self::Reply, Error> {
        let view = driver.array_volume_or_inline(&volume).await?;
        let findings = driver
            .here()?
            .findings(&volume, path.as_deref(), view.as_ref())
            .await?;
        let mut issues = view.map(|view| view.issues).unwrap_or_default();
        issues.extend(findings);
        Ok(Self::Reply {
            volume_health: Some(shape::health(&volume, &issues)),
        })
    }
}

impl Rpc for NodeGetStorageHealthRequest {
    no_parameters!();

    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let issues = driver.storage_health().await?;
        Ok(Self::Reply {
            backend_health: issues.into_iter().map(backend_health).collect(),
        })
    }
}

fn backend_health(issue: StorageHealthIssue) -> StorageBackendHealth {
    let status = match issue.status {
        StorageSeverity::Unknown => StorageHealthErrorType::UnknownStorageHealthErrorType,
        StorageSeverity::Degraded => StorageHealthErrorType::StorageDegraded,
        StorageSeverity::Unreachable => StorageHealthErrorType::StorageUnreachable,
    };
    StorageBackendHealth {
        status: status.into(),
        reason: issue.reason,
        message: issue.message,
        volume_capability: issue.capability.as_ref().map(capability),
    }
}

fn capability(capability: &Capability) -> VolumeCapability {
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
    VolumeCapability {
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
