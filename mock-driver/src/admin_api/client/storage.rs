//! Requests for snapshots, group snapshots, pools and storage health.

use http::Method;

use super::super::resource::{
    GroupSnapshot, GroupSnapshotNew, Page, Pool, PoolChange, Snapshot, SnapshotNew, Storage, StorageChange,
    StorageHealthIssue,
};
use super::{Client, Error, part};

impl Client {
    /// Lists snapshots; the query has the parameters of `GET /api/v1/snapshots`.
    pub async fn snapshots(&self, query: &[(&str, String)]) -> Result<Page<Snapshot>, Error> {
        self.get("/api/v1/snapshots", query).await
    }

    /// Reads a snapshot.
    pub async fn snapshot(&self, snapshot: &str) -> Result<Snapshot, Error> {
        self.get(&format!("/api/v1/snapshots/{}", part(snapshot)), &[])
            .await
    }

    /// Creates a snapshot.
    pub async fn create_snapshot(&self, new: &SnapshotNew) -> Result<Snapshot, Error> {
        self.send(Method::POST, "/api/v1/snapshots", Some(new)).await
    }

    /// Deletes a snapshot.
    pub async fn delete_snapshot(&self, snapshot: &str) -> Result<(), Error> {
        self.delete(&format!("/api/v1/snapshots/{}", part(snapshot)))
            .await
    }

    /// Lists group snapshots; the query has the parameters of `GET /api/v1/group-snapshots`.
    pub async fn group_snapshots(&self, query: &[(&str, String)]) -> Result<Page<GroupSnapshot>, Error> {
        self.get("/api/v1/group-snapshots", query).await
    }

    /// Reads a group snapshot.
    pub async fn group_snapshot(&self, group: &str) -> Result<GroupSnapshot, Error> {
        self.get(&format!("/api/v1/group-snapshots/{}", part(group)), &[])
            .await
    }

    /// Creates a group snapshot.
    pub async fn create_group_snapshot(&self, new: &GroupSnapshotNew) -> Result<GroupSnapshot, Error> {
        self.send(Method::POST, "/api/v1/group-snapshots", Some(new))
            .await
    }

    /// Deletes a group snapshot with its snapshots.
    pub async fn delete_group_snapshot(&self, group: &str) -> Result<(), Error> {
        self.delete(&format!("/api/v1/group-snapshots/{}", part(group)))
            .await
    }

    /// Lists the storage pools with their usage.
    pub async fn pools(&self) -> Result<Vec<Pool>, Error> {
        self.get("/api/v1/pools", &[]).await
    }

    /// Reads a pool.
    pub async fn pool(&self, pool: &str) -> Result<Pool, Error> {
        self.get(&format!("/api/v1/pools/{}", part(pool)), &[]).await
    }

    /// Resizes a pool.
    pub async fn resize_pool(&self, pool: &str, capacity_bytes: u64) -> Result<Pool, Error> {
        let path = format!("/api/v1/pools/{}", part(pool));
        self.send(Method::PATCH, &path, Some(&PoolChange { capacity_bytes }))
            .await
    }

    /// Reads the health issues of the storage of nodes.
    pub async fn storage(&self) -> Result<Storage, Error> {
        self.get("/api/v1/storage", &[]).await
    }

    /// Sets the health issues of the storage of all nodes; none means healthy.
    pub async fn set_storage_health(&self, health: Vec<StorageHealthIssue>) -> Result<Storage, Error> {
        self.send(Method::PATCH, "/api/v1/storage", Some(&StorageChange { health }))
            .await
    }
}
