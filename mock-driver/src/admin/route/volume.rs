use std::collections::BTreeMap;

use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_proto::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerModifyVolumeRequest, CreateVolumeRequest,
    DeleteVolumeRequest, VolumeCapability,
};

use crate::admin::page::{first, page};
use crate::admin::problem::Refusal;
use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::query::VolumeQuery;
use crate::admin_api::resource::{Attachment, Page, Volume, VolumeChange, VolumeNew};
use crate::array::{self, Array, Named, Source};
use crate::rpc::capabilities::Capability;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

pub(super) async fn list(admin: &Admin, query: VolumeQuery) -> Reply<Page<Volume>> {
    let (after, limit) = (query.after.as_deref(), query.limit);
    let list = |array: &Array| {
        let volumes = array.volumes().filter(|volume| query.covers(volume));
        Ok(page(
            volumes,
            after,
            limit,
            |volume| volume.spec.id.as_str(),
            shown,
        ))
    };
    admin.read(list).await
}

pub(super) async fn get(admin: &Admin, volume: &str) -> Reply<Volume> {
    let volume = admin.id_of(Named::Volume, volume).await?;
    admin.read(|array| array.volume(&volume).map(shown)).await
}

pub(super) async fn create(admin: &Admin, new: VolumeNew) -> Reply<Volume> {
    let request = CreateVolumeRequest {
        name: new.name,
        capacity_range: new.capacity_bytes.map(range).transpose()?,
        volume_capabilities: vec![capability(new.block, new.access_mode.as_deref())?],
        parameters: new.parameters.into_iter().collect(),
        ..CreateVolumeRequest::default()
    };
    let made = admin.perform(request).await?.volume.unwrap_or_default();
    get(admin, &made.volume_id).await
}

pub(super) async fn change(admin: &Admin, volume: &str, change: VolumeChange) -> Reply<Volume> {
    let volume = admin.id_of(Named::Volume, volume).await?;
    let expansion = change.capacity_bytes.map(|bytes| expansion(&volume, bytes));
    let expansion = expansion.transpose()?;
    if change.mutable_parameters.as_ref().is_some_and(BTreeMap::is_empty) {
        return Err(Invalid::new("mutable_parameters", "must be set").into());
    }
    let modification = change.mutable_parameters.as_ref().map(|parameters| {
        let mutable_parameters = parameters.clone().into_iter().collect();
        ControllerModifyVolumeRequest {
            volume_id: volume.clone(),
            mutable_parameters,
            ..ControllerModifyVolumeRequest::default()
        }
    });
    let growth = match &expansion {
        Some(request) => {
            request.validate()?;
            Some(validate::size_range(request.capacity_range.as_ref())?)
        }
        None => None,
    };
    if let Some(request) = &modification {
        request.validate()?;
    }
    let online = admin.driver.capabilities.has(Capability::VolumeExpansionOnline);
    let validate = |array: &Array| {
        array.volume(&volume)?;
        if let Some(range) = growth {
            array.validate_expand(&volume, range, online)?;
        }
        match &change.mutable_parameters {
            Some(parameters) => array.validate_modify(&volume, parameters),
            None => Ok(()),
        }
    };
    admin.read(validate).await?;
    if let Some(request) = expansion {
        admin.perform(request).await?;
    }
    if let Some(request) = modification {
        admin.perform(request).await?;
    }
    if let Some(health) = change.health {
        admin
            .change(|array| array.set_volume_health(&volume, health))
            .await?;
    }
    get(admin, &volume).await
}

pub(super) async fn delete(admin: &Admin, volume: &str) -> Reply<()> {
    let volume = admin.id_of(Named::Volume, volume).await?;
    admin.read(|array| array.volume(&volume).map(drop)).await?;
    let request = DeleteVolumeRequest {
        volume_id: volume,
        ..DeleteVolumeRequest::default()
    };
    admin.perform(request).await.map(drop)
}

fn expansion(volume: &str, bytes: u64) -> Result<ControllerExpandVolumeRequest, Refusal> {
    Ok(ControllerExpandVolumeRequest {
        volume_id: volume.to_owned(),
        capacity_range: Some(range(bytes)?),
        ..ControllerExpandVolumeRequest::default()
    })
}

fn range(bytes: u64) -> Result<CapacityRange, Refusal> {
    if bytes == 0 {
        let message = "capacityBytes: must be at least 1, or be left out";
        return Err(Refusal::invalid("capacityBytes", message));
    }
    let too_large = |_| Refusal::invalid("capacityBytes", "capacityBytes: no array is so large");
    Ok(CapacityRange {
        required_bytes: i64::try_from(bytes).map_err(too_large)?,
        limit_bytes: 0,
    })
}

pub(super) fn capability(block: bool, mode: Option<&str>) -> Result<VolumeCapability, Refusal> {
    let mode = mode.unwrap_or("SINGLE_NODE_WRITER");
    let unknown = || {
        let known = array::AccessMode::ALL.map(array::AccessMode::name).join(", ");
        Refusal::invalid(
            "accessMode",
            format!("accessMode: unknown access mode \"{mode}\": use one of {known}"),
        )
    };
    let mode = Mode::from_str_name(mode).ok_or_else(unknown)?;
    Ok(VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(if block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume::default())
        }),
    })
}

fn shown(volume: &array::Volume) -> Volume {
    let spec = &volume.spec;
    Volume {
        id: spec.id.to_string(),
        name: spec.name.clone(),
        capacity_bytes: spec.capacity_bytes,
        capabilities: spec.capabilities.iter().map(ToString::to_string).collect(),
        parameters: spec.parameters.clone(),
        source: spec.source.as_ref().map(|source| match source {
            Source::Snapshot(id) => id.to_string(),
            Source::Volume(id) => id.to_string(),
        }),
        pool: spec.pool.to_string(),
        mutable_parameters: volume.qos.clone(),
        health: volume.health.clone(),
        attachments: first(attachments(volume).collect(), usize::MAX, |held| {
            held.node.as_str()
        }),
    }
}

pub(super) fn attachments(volume: &array::Volume) -> impl Iterator<Item = Attachment> {
    volume.attachments.iter().map(|(node, attachment)| Attachment {
        volume: volume.spec.id.to_string(),
        node: node.to_string(),
        number: attachment.number,
        capability: attachment.params.capability.to_string(),
        readonly: attachment.params.readonly,
    })
}

// === impl VolumeQuery ===

impl VolumeQuery {
    fn covers(&self, volume: &array::Volume) -> bool {
        let contains = |text: &String| {
            volume.spec.id.as_str().contains(text.as_str()) || volume.spec.name.contains(text.as_str())
        };
        let held = |node: &String| volume.attachments.contains_key(node.as_str());
        self.search.as_ref().is_none_or(contains)
            && self.node.as_ref().is_none_or(held)
            && self
                .attached
                .is_none_or(|attached| attached != volume.attachments.is_empty())
    }
}
