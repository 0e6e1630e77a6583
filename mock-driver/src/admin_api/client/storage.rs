//! Requests for snapshots, group snapshots, pools and storage health.

use http::Method;

use super::super::resource::{
    GroupSnapshot, GroupSnapshotNew, Page, Pool, PoolChange, Snapshot, SnapshotNew, Storage, StorageChange,
    StorageHealthIssue,
};
use super::{Client, Error};

impl Client {
    /// Lists snapshots; the query has the parameters of `GET /api/v1/snapshots`.
    pub async fn snapshots(&self, query: &[(&str, String)]) -> Result<Page<Snapshot>, Error> {
        self.get(&["snapshots"], query).await
    }

    /// Reads a snapshot.
    pub async fn snapshot(&self, snapshot: &str) -> Result<Snapshot, Error> {
        self.get(&["snapshots", snapshot], &[]).await
    }

    /// Creates a snapshot.
    pub async fn create_snapshot(&self, new: &SnapshotNew) -> Result<Snapshot, Error> {
        self.send(Method::POST, &["snapshots"], Some(new)).await
    }

    /// Deletes a snapshot.
    pub async fn delete_snapshot(&self, snapshot: &str) -> Result<(), Error> {
        self.delete(&["snapshots", snapshot]).await
    }

    /// Lists group snapshots; the query has the parameters of `GET /api/v1/group-snapshots`.
    pub async fn group_snapshots(&self, query: &[(&str, String)]) -> Result<Page<GroupSnapshot>, Error> {
        self.get(&["group-snapshots"], query).await
    }

    /// Reads a group snapshot.
    pub async fn group_snapshot(&self, group: &str) -> Result<GroupSnapshot, Error> {
        self.get(&["group-snapshots", group], &[]).await
    }

    /// Creates a group snapshot.
    pub async fn create_group_snapshot(&self, new: &GroupSnapshotNew) -> Result<GroupSnapshot, Error> {
        self.send(Method::POST, &["group-snapshots"], Some(new)).await
    }

    /// Deletes a group snapshot with its snapshots.
    pub async fn delete_group_snapshot(&self, group: &str) -> Result<(), Error> {
        self.delete(&["group-snapshots", group]).await
    }

    /// Lists the storage pools with their usage.
    pub async fn pools(&self) -> Result<Vec<Pool>, Error> {
        self.get(&["pools"], &[]).await
    }

    /// Reads a pool.
    pub async fn pool(&self, pool: &str) -> Result<Pool, Error> {
        self.get(&["pools", pool], &[]).await
    }

    /// Resizes a pool.
    pub async fn resize_pool(&self, pool: &str, capacity_bytes: u64) -> Result<Pool, Error> {
        self.send(
            Method::PATCH,
            &["pools", pool],
            Some(&PoolChange { capacity_bytes }),
        )
        .await
    }

    /// Reads the health issues of the storage of nodes.
    pub async fn storage(&self) -> Result<Storage, Error> {
        self.get(&["storage"], &[]).await
    }

    /// Sets the health issues of the storage of all nodes; none means healthy.
    pub async fn set_storage_health(&self, health: Vec<StorageHealthIssue>) -> Result<Storage, Error> {
        self.send(Method::PATCH, &["storage"], Some(&StorageChange { health }))
            .await
    }
}
