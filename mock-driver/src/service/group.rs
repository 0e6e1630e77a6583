//! The GroupController service: snapshots of several volumes at one moment.

use std::collections::BTreeSet;
use std::sync::Arc;

use csi_proto::v1::group_controller_server::GroupController;
use csi_proto::v1::group_controller_service_capability::{Rpc as RpcCapability, Type};
use csi_proto::v1::{
    CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse, DeleteVolumeGroupSnapshotRequest,
    DeleteVolumeGroupSnapshotResponse, GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse,
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse,
    GroupControllerServiceCapability, VolumeGroupSnapshot,
};
use tonic::{Request, Response, Status};

use super::controller::shape;
use crate::array::{Members, WantedGroup};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, Share};
use crate::rpc::capabilities::{Capability, Place};
use crate::rpc::method::Method;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

/// The GroupController service of a driver.
#[derive(Clone, Debug)]
pub struct GroupService(pub Arc<Driver>);

#[tonic::async_trait]
impl GroupController for GroupService {
    async fn group_controller_get_capabilities(
        &self,
        request: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<GroupControllerGetCapabilitiesResponse>, Status> {
        self.0.answer(request).await
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<CreateVolumeGroupSnapshotResponse>, Status> {
        self.0.answer(request).await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<DeleteVolumeGroupSnapshotResponse>, Status> {
        self.0.answer(request).await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<GetVolumeGroupSnapshotResponse>, Status> {
        self.0.answer(request).await
    }
}

impl Rpc for GroupControllerGetCapabilitiesRequest {
    const METHOD: Method = Method::GroupControllerGetCapabilities;
    type Reply = GroupControllerGetCapabilitiesResponse;
    type Plan = ();

    fn check(&self) -> Result<(), Invalid> {
        Ok(())
    }

    async fn act((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let told = |capability: Capability| match capability.place() {
            Place::Group(number) => Some(GroupControllerServiceCapability {
                r#type: Some(Type::Rpc(RpcCapability { r#type: number })),
            }),
            Place::Service(_) | Place::Expansion(_) | Place::Controller(_) | Place::Node(_) => None,
        };
        Ok(GroupControllerGetCapabilitiesResponse {
            capabilities: driver.offer.now().iter().filter_map(told).collect(),
        })
    }
}

/// A group somebody names, with the snapshots it is said to have.
pub(crate) struct Named {
    group: String,
    snapshots: Vec<String>,
}

impl Rpc for CreateVolumeGroupSnapshotRequest {
    const METHOD: Method = Method::CreateVolumeGroupSnapshot;
    type Reply = CreateVolumeGroupSnapshotResponse;
    type Plan = WantedGroup;

    fn name(&self) -> &str {
        &self.name
    }

    fn keys(&self) -> Vec<(Key, Share)> {
        let volumes = self.source_volume_ids.iter().cloned();
        volumes
            .map(|volume| (Key::Volume(volume), Share::Reading))
            .chain([(Key::GroupName(self.name.clone()), Share::Whole)])
            .collect()
    }

    fn check(&self) -> Result<WantedGroup, Invalid> {
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
        validate::secrets(&self.secrets)?;
        Ok(WantedGroup {
            name,
            sources,
            parameters: validate::map("parameters", &self.parameters)?,
        })
    }

    async fn act(wanted: WantedGroup, driver: &Driver) -> Result<Self::Reply, Error> {
        let members = driver.create_group(&wanted).await?;
        Ok(CreateVolumeGroupSnapshotResponse {
            group_snapshot: Some(on_the_wire(driver, &members)),
        })
    }
}

impl Rpc for DeleteVolumeGroupSnapshotRequest {
    const METHOD: Method = Method::DeleteVolumeGroupSnapshot;
    type Reply = DeleteVolumeGroupSnapshotResponse;
    type Plan = Named;

    fn keys(&self) -> Vec<(Key, Share)> {
        let snapshots = self.snapshot_ids.iter().cloned();
        snapshots
            .map(|snapshot| (Key::Snapshot(snapshot), Share::Whole))
            .chain([(Key::Group(self.group_snapshot_id.clone()), Share::Whole)])
            .collect()
    }

    fn check(&self) -> Result<Named, Invalid> {
        validate::secrets(&self.secrets)?;
        Named::read(&self.group_snapshot_id, &self.snapshot_ids)
    }

    async fn act(named: Named, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.delete_group(&named.group, &named.snapshots).await?;
        Ok(DeleteVolumeGroupSnapshotResponse {})
    }
}

impl Rpc for GetVolumeGroupSnapshotRequest {
    const METHOD: Method = Method::GetVolumeGroupSnapshot;
    type Reply = GetVolumeGroupSnapshotResponse;
    type Plan = Named;

    fn check(&self) -> Result<Named, Invalid> {
        validate::secrets(&self.secrets)?;
        Named::read(&self.group_snapshot_id, &self.snapshot_ids)
    }

    async fn act(named: Named, driver: &Driver) -> Result<Self::Reply, Error> {
        let members = driver
            .store
            .read(|array| array.group(&named.group, &named.snapshots))
            .await?;
        Ok(GetVolumeGroupSnapshotResponse {
            group_snapshot: Some(on_the_wire(driver, &members)),
        })
    }
}

// === impl Named ===

impl Named {
    fn read(group: &str, snapshots: &[String]) -> Result<Self, Invalid> {
        let group = validate::required("group_snapshot_id", group)?.to_owned();
        validate::ids("snapshot_ids", snapshots)?;
        Ok(Self {
            group,
            snapshots: snapshots.to_vec(),
        })
    }
}

/// A group as CSI shows it.
fn on_the_wire(driver: &Driver, members: &Members) -> VolumeGroupSnapshot {
    let now = driver.clock.moment();
    VolumeGroupSnapshot {
        group_snapshot_id: members.group.id.to_string(),
        snapshots: members
            .snapshots
            .iter()
            .map(|snapshot| driver.shape_snapshot(snapshot, now))
            .collect(),
        creation_time: Some(shape::timestamp(members.group.created)),
        ready_to_use: members.are_ready(now),
    }
}
