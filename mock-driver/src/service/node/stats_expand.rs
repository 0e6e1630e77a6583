use csi_proto::v1::volume_usage::Unit;
use csi_proto::v1::{NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, VolumeUsage};

use super::path;
use crate::array::{Capability, SizeRange};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::node;
use crate::node::mount::Usage;
use crate::node::stats_expand::VolumeSpace;
use crate::rpc::capabilities;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;
use crate::service::controller::shape;

impl Rpc for NodeGetVolumeStatsRequest {
    type Params = (String, String);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let path = path::looked_for("volume_path", &self.volume_path)?;
        path::optional("staging_target_path", &self.staging_target_path)?;
        Ok((volume, path))
    }

    async fn execute((volume, path): Self::Params, driver: &Driver) -> Result<Self::Reply, Error> {
        let view = driver.array_volume_or_inline(&volume).await?;
        let node = driver.here()?;
        let space = node
            .stats(&volume, &path, view.as_ref(), driver.node_features())
            .await?;
        let usage = match space {
            VolumeSpace::Files(stats) => {
                vec![usage(Unit::Bytes, stats.bytes), usage(Unit::Inodes, stats.inodes)]
            }
            // The driver does not know which blocks of a device are in use.
            VolumeSpace::Device(bytes) => vec![VolumeUsage {
                total: shape::bytes(bytes),
                unit: Unit::Bytes.into(),
                ..VolumeUsage::default()
            }],
        };
        let issues = view.map(|view| view.issues).unwrap_or_default();
        let reports_condition = driver
            .capabilities
            .has(capabilities::Capability::NodeVolumeCondition);
        Ok(Self::Reply {
            usage,
            volume_condition: reports_condition.then(|| shape::condition(&issues)),
        })
    }
}

impl Rpc for NodeExpandVolumeRequest {
    type Params = (String, String, SizeRange, Option<Capability>);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let volume = validate::required("volume_id", &self.volume_id)?.to_owned();
        let path = path::looked_for("volume_path", &self.volume_path)?;
        path::optional("staging_target_path", &self.staging_target_path)?;
        let range = validate::size_range(self.capacity_range.as_ref())?;
        let capability = validate::optional_capability(self.volume_capability.as_ref())?;
        Ok((volume, path, range, capability))
    }

    async fn execute(
        (volume, path, range, capability): Self::Params,
        driver: &Driver,
    ) -> Result<Self::Reply, Error> {
        let most = driver.settings.config.node_growth_limit;
        if let Some(most) = most.filter(|most| range.required > *most) {
            let reason = format!("nodes grow volumes to at most {most} bytes (--max-volume-size-node)");
            return Err(node::Error::size(&reason).into());
        }
        let view = driver.array_volume_or_inline(&volume).await?;
        let node = driver.here()?;
        let is_block = node.is_block_at(&volume, &path)?;
        if capability.is_some_and(|capability| capability.is_block() != is_block) {
            return Err(Invalid::new("volume_capability", "is not what the volume is used as here").into());
        }
        let bytes = node
            .expand(&volume, &path, range, view.as_ref(), driver.node_features())
            .await?;
        Ok(Self::Reply {
            capacity_bytes: shape::bytes(bytes),
        })
    }
}

fn usage(unit: Unit, usage: Usage) -> VolumeUsage {
    VolumeUsage {
        available: shape::bytes(usage.available),
        total: shape::bytes(usage.total),
        used: shape::bytes(usage.used),
        unit: unit.into(),
    }
}
