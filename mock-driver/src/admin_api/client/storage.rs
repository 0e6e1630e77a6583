//! Requests about snapshots, groups of them, pools and the health of the storage.

use http::Method;

use super::super::resource::{
    GroupSnapshot, GroupSnapshotNew, Page, Pool, PoolChange, Snapshot, SnapshotNew, Storage, StorageChange,
    StorageHealthIssue,
};
use super::{Client, Error, part};

impl Client {
    /// Snapshots, as the parameters of `GET /api/v1/snapshots` choose them.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn snapshots(&self, query: &[(&str, String)]) -> Result<Page<Snapshot>, Error> {
        self.get("/api/v1/snapshots", query).await
    }

    /// One snapshot.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn snapshot(&self, snapshot: &str) -> Result<Snapshot, Error> {
        self.get(&format!("/api/v1/snapshots/{}", part(snapshot)), &[])
            .await
    }

    /// Takes a snapshot.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn create_snapshot(&self, new: &SnapshotNew) -> Result<Snapshot, Error> {
        self.send(Method::POST, "/api/v1/snapshots", Some(new)).await
    }

    /// Deletes a snapshot.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn delete_snapshot(&self, snapshot: &str) -> Result<(), Error> {
        self.delete(&format!("/api/v1/snapshots/{}", part(snapshot)))
            .await
    }

    /// Groups of snapshots, as the parameters of `GET /api/v1/group-snapshots` choose them.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn group_snapshots(&self, query: &[(&str, String)]) -> Result<Page<GroupSnapshot>, Error> {
        self.get("/api/v1/group-snapshots", query).await
    }

    /// One group of snapshots.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn group_snapshot(&self, group: &str) -> Result<GroupSnapshot, Error> {
        self.get(&format!("/api/v1/group-snapshots/{}", part(group)), &[])
            .await
    }

    /// Takes a group of snapshots.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn create_group_snapshot(&self, new: &GroupSnapshotNew) -> Result<GroupSnapshot, Error> {
        self.send(Method::POST, "/api/v1/group-snapshots", Some(new))
            .await
    }

    /// Deletes a group with its snapshots.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn delete_group_snapshot(&self, group: &str) -> Result<(), Error> {
        self.delete(&format!("/api/v1/group-snapshots/{}", part(group)))
            .await
    }

    /// The pools and how they are filled.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn pools(&self) -> Result<Vec<Pool>, Error> {
        self.get("/api/v1/pools", &[]).await
    }

    /// One pool.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn pool(&self, pool: &str) -> Result<Pool, Error> {
        self.get(&format!("/api/v1/pools/{}", part(pool)), &[]).await
    }

    /// Gives a pool more space or less.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn resize_pool(&self, pool: &str, capacity_bytes: u64) -> Result<Pool, Error> {
        let path = format!("/api/v1/pools/{}", part(pool));
        self.send(Method::PATCH, &path, Some(&PoolChange { capacity_bytes }))
            .await
    }

    /// Health issues of the storage behind nodes.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn storage(&self) -> Result<Storage, Error> {
        self.get("/api/v1/storage", &[]).await
    }

    /// Sets the health issues of the storage behind all nodes; none means healthy.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn set_storage_health(&self, health: Vec<StorageHealthIssue>) -> Result<Storage, Error> {
        self.send(Method::PATCH, "/api/v1/storage", Some(&StorageChange { health }))
            .await
    }
}
