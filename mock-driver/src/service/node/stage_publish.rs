use csi_proto::v1::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};

use super::path;
use crate::array::quantity;
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::node::{Map, Record, Role};
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

/// Kubelet's key of inline volumes (CSI ephemeral volumes) in the volume context.
const INLINE_KEY: &str = "csi.storage.k8s.io/ephemeral";
/// The attribute of an inline volume in the pod's spec, which kubelet copies to the volume context.
const INLINE_SIZE_KEY: &str = "size";

const MIB: u64 = 1 << 20;

/// The default size of an inline volume: enough for every filesystem, in a sparse file.
const INLINE_DEFAULT_BYTES: u64 = 1024 * MIB;

/// The size of the smallest filesystem, and of the largest volume.
const INLINE_BOUNDS: std::ops::RangeInclusive<u64> = MIB..=1024 * 1024 * MIB;

impl Rpc for NodeStageVolumeRequest {
    type Params = Record;

    fn validate(&self) -> Result<Record, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let staging = path::required("staging_target_path", &self.staging_target_path)?;
        let capability = validate::capability("volume_capability", self.volume_capability.as_ref())?;
        path::group(&capability)?;
        Ok(Record {
            publish_context: validate::map("publish_context", &self.publish_context)?,
            volume_context: path::lasting(validate::volume_context(&self.volume_context)?),
            ..Record::new(volume, staging, Role::Staged, capability)
        })
    }

    async fn execute(stage: Record, driver: &Driver) -> Result<Self::Reply, Error> {
        let (node, stage) = (driver.here()?, &stage);
        path::needs(&driver.capabilities, &stage.capability)?;
        let act = |view| async move { node.stage(stage, &view, driver.node_features()).await };
        driver.with_device(&stage.volume, &stage.capability, act).await?;
        Ok(Self::Reply {})
    }
}

impl Rpc for NodeUnstageVolumeRequest {
    type Params = (String, String);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let staging = path::required("staging_target_path", &self.staging_target_path)?;
        Ok((volume, staging))
    }

    async fn execute((volume, staging): Self::Params, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.check_strict(&volume).await?;
        driver.here()?.unstage(&volume, &staging).await?;
        driver.release_device(&volume).await?;
        Ok(Self::Reply {})
    }
}

impl Rpc for NodePublishVolumeRequest {
    type Params = Record;

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let target = path::required("target_path", &self.target_path)?;
        let staging = path::optional("staging_target_path", &self.staging_target_path)?;
        let capability = validate::capability("volume_capability", self.volume_capability.as_ref())?;
        path::group(&capability)?;
        let context = validate::volume_context(&self.volume_context)?;
        let inline = inline_bytes(&context)?;
        if staging.as_ref() == Some(&target) {
            return Err(Invalid::new("target_path", "must not be the staging_target_path"));
        }
        let role = Role::Published {
            staging: staging.unwrap_or_default(),
            ours: false,
        };
        Ok(Record {
            readonly: self.readonly,
            publish_context: validate::map("publish_context", &self.publish_context)?,
            volume_context: path::lasting(context),
            inline,
            ..Record::new(volume, target, role, capability)
        })
    }

    async fn execute(publish: Record, driver: &Driver) -> Result<Self::Reply, Error> {
        let (node, publish) = (driver.here()?, &publish);
        path::needs(&driver.capabilities, &publish.capability)?;
        if publish.inline.is_some() {
            if let Some(remote) = &driver.remote {
                remote.check_media(node).await?;
            }
            node.publish_inline(publish).await?;
        } else {
            let act = |view| async move { node.publish(publish, &view, driver.node_features()).await };
            driver
                .with_device(&publish.volume, &publish.capability, act)
                .await?;
        }
        Ok(Self::Reply {})
    }
}

impl Rpc for NodeUnpublishVolumeRequest {
    type Params = (String, String);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let target = path::required("target_path", &self.target_path)?;
        Ok((volume, target))
    }

    async fn execute((volume, target): Self::Params, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.check_strict(&volume).await?;
        let node = driver.here()?;
        // The array does not have inline volumes.
        let is_inline = node.is_inline(&volume);
        node.unpublish(&volume, &target).await?;
        if !is_inline {
            driver.release_device(&volume).await?;
        }
        Ok(Self::Reply {})
    }
}

/// The size in bytes of an inline volume, from the volume context; `None` for other volumes.
fn inline_bytes(context: &Map) -> Result<Option<u64>, Invalid> {
    if context.get(INLINE_KEY).is_none_or(|mark| mark != "true") {
        return Ok(None);
    }
    let bytes = match context.get(INLINE_SIZE_KEY) {
        None => INLINE_DEFAULT_BYTES,
        Some(text) => quantity::bytes(text)
            .filter(|bytes| INLINE_BOUNDS.contains(bytes))
            .ok_or_else(|| {
                Invalid::new(
                    "volume_context[size]",
                    format!("must be a quantity from 1Mi to 1Ti, is \"{text}\""),
                )
            })?,
    };
    Ok(Some(bytes.next_multiple_of(512)))
}

#[cfg(test)]
mod tests {
    use csi_proto::v1::VolumeCapability;
    use csi_proto::v1::volume_capability::access_mode::Mode;
    use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume};
    use serde_json::json;

    use super::*;
    use crate::driver::Settings;
    use crate::fault::{Rule, RuleKind};

    fn mk_context(size: Option<&str>) -> Map {
        let mut context = Map::from([(INLINE_KEY.to_owned(), "true".to_owned())]);
        context.extend(size.map(|size| (INLINE_SIZE_KEY.to_owned(), size.to_owned())));
        context
    }

    #[test]
    fn inline_volume_size_is_read_from_volume_context() {
        // (attribute, bytes or none for a refusal)
        let table = [
            (None, Some(1 << 30)),
            (Some("64Mi"), Some(64 << 20)),
            (Some("2G"), Some(2_000_000_000)),
            (Some("1048577"), Some(1_049_088)),
            (Some("1k"), None),
            // As in flags: a valid quantity that is out of bounds.
            (Some("1Pi"), None),
            (Some("2Ti"), None),
            (Some("-1Mi"), None),
            (Some("1.5Gi"), None),
            (Some("much"), None),
            (Some(""), None),
            (Some("99999999999999999999Ti"), None),
        ];
        for (size, expected) in table {
            match expected {
                Some(bytes) => assert_eq!(
                    inline_bytes(&mk_context(size)).unwrap().unwrap(),
                    bytes,
                    "{size:?}"
                ),
                None => assert!(inline_bytes(&mk_context(size)).is_err(), "{size:?}"),
            }
        }
        assert!(
            inline_bytes(&Map::new()).unwrap().is_none(),
            "all others are not inline"
        );
    }

    #[tokio::test]
    async fn backend_faults_of_devices_affect_inline_volumes() {
        let directory = tempfile::tempdir().unwrap();
        let (driver, _) = Driver::open(Settings {
            node_id: Some("node-0".to_owned()),
            ..Settings::default()
        })
        .unwrap();
        let request = || {
            let mode = Mode::SingleNodeWriter.into();
            tonic::Request::new(NodePublishVolumeRequest {
                volume_id: "inline".to_owned(),
                target_path: directory.path().join("target").display().to_string(),
                volume_capability: Some(VolumeCapability {
                    access_mode: Some(AccessMode { mode }),
                    access_type: Some(AccessType::Mount(MountVolume::default())),
                }),
                volume_context: mk_context(Some("64Mi")).into_iter().collect(),
                ..Default::default()
            })
        };
        for kind in ["device-absent", "wrong-device", "foreign-data"] {
            let fault = json!({"id": "x", "type": kind, "volume": "inline", "node": "node-0"});
            driver
                .faults
                .put(Rule::backend_fault_from_value(fault).unwrap())
                .unwrap();
            driver.answer(request()).await.expect_err(kind);
        }
        assert!(driver.faults.remove(RuleKind::BackendFault, "x"));
        driver.answer(request()).await.unwrap();
        driver.close();
    }
}
