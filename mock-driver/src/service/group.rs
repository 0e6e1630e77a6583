//! The GroupController service: consistent snapshots of several volumes.

use std::collections::BTreeSet;

use csi_proto::v1::group_controller_server::GroupController;
use csi_proto::v1::{
    CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest,
    VolumeGroupSnapshot,
};

use super::controller::shape;
use crate::array::{Array, CreateGroupParams, Members};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, LockMode};
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

answer_calls! {
    GroupController:
    GroupControllerGetCapabilities: group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest) -> GroupControllerGetCapabilitiesResponse,
    CreateVolumeGroupSnapshot: create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest { name: name }) -> CreateVolumeGroupSnapshotResponse,
    DeleteVolumeGroupSnapshot: delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest) -> DeleteVolumeGroupSnapshotResponse,
    GetVolumeGroupSnapshot: get_volume_group_snapshot(GetVolumeGroupSnapshotRequest) -> GetVolumeGroupSnapshotResponse,
}

/// A group snapshot with the snapshot ids of the request.
pub(crate) struct GroupParams {
    group: String,
    snapshots: Vec<String>,
}

impl Rpc for CreateVolumeGroupSnapshotRequest {
    type Params = CreateGroupParams;

    fn keys(&self) -> Vec<(Key, LockMode)> {
        let volumes = self.source_volume_ids.iter().cloned();
        volumes
            .map(|volume| (Key::Volume(volume), LockMode::Shared))
            .chain([(Key::GroupName(self.name.clone()), LockMode::Exclusive)])
            .collect()
    }

    fn validate(&self) -> Result<CreateGroupParams, Invalid> {
        let field = "source_volume_ids";
        let name = validate::name(&self.name)?.to_owned();
        if self.source_volume_ids.is_empty() {
            return Err(Invalid::new(field, "must be set"));
        }
        validate::ids(field, &self.source_volume_ids)?;
        let sources: BTreeSet<String> = self.source_volume_ids.iter().cloned().collect();
        if sources.len() < self.source_volume_ids.len() {
            return Err(Invalid::new(field, "must name each volume once"));
        }
        Ok(CreateGroupParams {
            name,
            sources,
            parameters: validate::map("parameters", &self.parameters)?,
        })
    }

    fn promise(wanted: &Self::Params, array: &mut Array) {
        array.promise_group(wanted);
    }

    async fn execute(wanted: CreateGroupParams, driver: &Driver) -> Result<Self::Reply, Error> {
        let members = driver.create_group(&wanted).await?;
        Ok(Self::Reply {
            group_snapshot: Some(group_snapshot(driver, &members)),
        })
    }
}

impl Rpc for DeleteVolumeGroupSnapshotRequest {
    type Params = GroupParams;

    fn keys(&self) -> Vec<(Key, LockMode)> {
        let snapshots = self.snapshot_ids.iter().cloned();
        snapshots
            .map(|snapshot| (Key::Snapshot(snapshot), LockMode::Exclusive))
            .chain([(Key::Group(self.group_snapshot_id.clone()), LockMode::Exclusive)])
            .collect()
    }

    fn validate(&self) -> Result<GroupParams, Invalid> {
        GroupParams::read(&self.group_snapshot_id, &self.snapshot_ids)
    }

    async fn execute(named: GroupParams, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.delete_group(&named.group, &named.snapshots).await?;
        Ok(Self::Reply {})
    }
}

impl Rpc for GetVolumeGroupSnapshotRequest {
    type Params = GroupParams;

    fn validate(&self) -> Result<GroupParams, Invalid> {
        GroupParams::read(&self.group_snapshot_id, &self.snapshot_ids)
    }

    async fn execute(named: GroupParams, driver: &Driver) -> Result<Self::Reply, Error> {
        let members = driver
            .store
            .read(|array| array.group(&named.group, &named.snapshots))
            .await?;
        Ok(Self::Reply {
            group_snapshot: Some(group_snapshot(driver, &members)),
        })
    }
}

// === impl GroupParams ===

impl GroupParams {
    fn read(group: &str, snapshots: &[String]) -> Result<Self, Invalid> {
        let group = validate::required("group_snapshot_id", group)?.to_owned();
        validate::ids("snapshot_ids", snapshots)?;
        Ok(Self {
            group,
            snapshots: snapshots.to_vec(),
        })
    }
}

fn group_snapshot(driver: &Driver, members: &Members) -> VolumeGroupSnapshot {
    VolumeGroupSnapshot {
        group_snapshot_id: members.group.id.to_string(),
        snapshots: members
            .snapshots
            .iter()
            .map(|snapshot| driver.shape_snapshot(snapshot))
            .collect(),
        creation_time: Some(shape::timestamp(members.group.created)),
        ready_to_use: members.are_ready(),
    }
}
