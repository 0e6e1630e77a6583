//! The array's services: snapshots, groups, copies, capacity, topology, health and changes of volumes. One row or one line
//! for each cell of the specification's error tables.

mod capacity;
mod change;
mod copies;
mod groups;
mod headline;
mod health;
mod kept;
mod leftovers;
mod metadata;
mod model;
mod secrets;
mod snapshots;
mod strictness;
mod topology;

use std::path::Path;

use csi_mock_driver::driver::Settings;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::group_controller_client::GroupControllerClient;
use csi_proto::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use csi_proto::v1::{self, Snapshot, Volume, VolumeContentSource};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::server::{Server, mk_create, mk_delete, mk_publish};

const MIB: i64 = 1 << 20;

/// A driver and its clients.
struct World {
    server: Server,
    controller: ControllerClient<Channel>,
    groups: GroupControllerClient<Channel>,
}

// === impl World ===

impl World {
    async fn start() -> Self {
        Self::start_with(|_, _| {}).await
    }

    async fn start_with(change: impl FnOnce(&Path, &mut Settings)) -> Self {
        let server = Server::start_with(change).await;
        Self {
            controller: server.controller().await,
            groups: GroupControllerClient::new(server.channel().await),
            server,
        }
    }

    /// Restarts the driver in the same directory.
    async fn again(self, change: impl FnOnce(&Path, &mut Settings)) -> Self {
        let directory = self.server.stop().await;
        let server = Server::start_in(directory, change).await;
        Self {
            controller: server.controller().await,
            groups: GroupControllerClient::new(server.channel().await),
            server,
        }
    }

    async fn create(&mut self, request: v1::CreateVolumeRequest) -> Result<Volume, Status> {
        let reply = self.controller.create_volume(request).await?.into_inner();
        Ok(reply.volume.unwrap())
    }

    /// A volume of 10 MiB, by its id.
    async fn volume(&mut self, name: &str) -> String {
        self.create(mk_volume(name)).await.unwrap().volume_id
    }

    async fn delete(&mut self, volume: &str) -> Result<(), Status> {
        self.controller.delete_volume(mk_delete(volume)).await.map(drop)
    }

    async fn publish(&mut self, volume: &str, node: &str) -> Result<(), Status> {
        let request = mk_publish(volume, node);
        self.controller.controller_publish_volume(request).await.map(drop)
    }

    async fn take(&mut self, request: v1::CreateSnapshotRequest) -> Result<Snapshot, Status> {
        let reply = self.controller.create_snapshot(request).await?.into_inner();
        Ok(reply.snapshot.unwrap())
    }

    /// A snapshot, by its id.
    async fn snapshot(&mut self, name: &str, source: &str) -> String {
        self.take(mk_snapshot(name, source)).await.unwrap().snapshot_id
    }

    async fn drop_snapshot(&mut self, snapshot: &str) -> Result<(), Status> {
        let request = v1::DeleteSnapshotRequest {
            snapshot_id: snapshot.to_owned(),
            ..Default::default()
        };
        self.controller.delete_snapshot(request).await.map(drop)
    }

    async fn list(&mut self, request: v1::ListSnapshotsRequest) -> Result<(Vec<String>, String), Status> {
        let reply = self.controller.list_snapshots(request).await?.into_inner();
        let id = |entry: v1::list_snapshots_response::Entry| entry.snapshot.unwrap().snapshot_id;
        Ok((reply.entries.into_iter().map(id).collect(), reply.next_token))
    }

    async fn group(&mut self, name: &str, sources: &[&str]) -> Result<v1::VolumeGroupSnapshot, Status> {
        let request = mk_group(name, sources);
        let reply = self.groups.create_volume_group_snapshot(request).await?;
        Ok(reply.into_inner().group_snapshot.unwrap())
    }

    async fn drop_group(&mut self, group: &str, snapshots: &[String]) -> Result<(), Status> {
        let request = v1::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.to_owned(),
            snapshot_ids: snapshots.to_vec(),
            ..Default::default()
        };
        self.groups.delete_volume_group_snapshot(request).await.map(drop)
    }

    async fn expand(&mut self, volume: &str, required: i64, limit: i64) -> Result<i64, Status> {
        let request = mk_expand(volume, required, limit);
        let reply = self.controller.controller_expand_volume(request).await?;
        Ok(reply.into_inner().capacity_bytes)
    }
}

fn mk_volume(name: &str) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        capacity_range: mk_range(10 * MIB, 0),
        ..mk_create(name)
    }
}

fn mk_range(required_bytes: i64, limit_bytes: i64) -> Option<v1::CapacityRange> {
    Some(v1::CapacityRange {
        required_bytes,
        limit_bytes,
    })
}

fn mk_snapshot(name: &str, source: &str) -> v1::CreateSnapshotRequest {
    v1::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: source.to_owned(),
        ..Default::default()
    }
}

fn mk_group(name: &str, sources: &[&str]) -> v1::CreateVolumeGroupSnapshotRequest {
    v1::CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: sources.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

fn mk_expand(volume: &str, required: i64, limit: i64) -> v1::ControllerExpandVolumeRequest {
    v1::ControllerExpandVolumeRequest {
        volume_id: volume.to_owned(),
        capacity_range: mk_range(required, limit),
        ..Default::default()
    }
}

fn from_snapshot(snapshot: &str) -> Option<VolumeContentSource> {
    let snapshot_id = snapshot.to_owned();
    Some(VolumeContentSource {
        r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id })),
    })
}

fn from_volume(volume: &str) -> Option<VolumeContentSource> {
    let volume_id = volume.to_owned();
    Some(VolumeContentSource {
        r#type: Some(Type::Volume(VolumeSource { volume_id })),
    })
}

fn mk_topology(zone: &str) -> v1::Topology {
    v1::Topology {
        segments: [("zone".to_owned(), zone.to_owned())].into(),
    }
}

/// Asserts that a call was refused with the code and a message that contains all of `words`.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(case: &str, outcome: Result<T, Status>, code: Code, words: &[&str]) {
    let status = outcome.expect_err(case);
    assert_eq!(status.code(), code, "{case}: {status}");
    assert!(status.details().is_empty(), "{case}: {status}");
    for word in words {
        assert!(
            status.message().contains(word),
            "{case}: {word:?} is not in {status}"
        );
    }
}
