use csi_proto::v1::{CreateSnapshotRequest, DeleteSnapshotRequest};

use crate::admin::page::page;
use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::query::SnapshotQuery;
use crate::admin_api::resource::{Page, Snapshot, SnapshotNew};
use crate::array::{self, Array, Named};
use crate::journal;

pub(super) async fn list(admin: &Admin, mut query: SnapshotQuery) -> Reply<Page<Snapshot>> {
    if let Some(source) = &query.source {
        query.source = Some(admin.id_of(Named::Volume, source).await?);
    }
    let (after, limit) = (query.after.as_deref(), query.limit);
    let list = |array: &Array| {
        let snapshots = array.snapshots().filter(|snapshot| query.covers(snapshot));
        Ok(page(
            snapshots,
            after,
            limit,
            |snapshot| snapshot.id.as_str(),
            |snapshot| shown(snapshot),
        ))
    };
    admin.read(list).await
}

pub(super) async fn get(admin: &Admin, snapshot: &str) -> Reply<Snapshot> {
    let snapshot = admin.id_of(Named::Snapshot, snapshot).await?;
    admin.read(|array| Ok(shown(array.snapshot(&snapshot)?))).await
}

pub(super) async fn create(admin: &Admin, new: SnapshotNew) -> Reply<Snapshot> {
    let source = admin.id_of(Named::Volume, &new.source).await?;
    let request = CreateSnapshotRequest {
        name: new.name,
        source_volume_id: source,
        parameters: new.parameters.into_iter().collect(),
        ..CreateSnapshotRequest::default()
    };
    let made = admin.perform(request).await?.snapshot.unwrap_or_default();
    get(admin, &made.snapshot_id).await
}

pub(super) async fn delete(admin: &Admin, snapshot: &str) -> Reply<()> {
    let snapshot = admin.id_of(Named::Snapshot, snapshot).await?;
    admin.read(|array| array.snapshot(&snapshot).map(drop)).await?;
    let request = DeleteSnapshotRequest {
        snapshot_id: snapshot,
        ..DeleteSnapshotRequest::default()
    };
    admin.perform(request).await.map(drop)
}

pub(super) fn shown(snapshot: &array::Snapshot) -> Snapshot {
    Snapshot {
        id: snapshot.id.to_string(),
        name: snapshot.name.clone(),
        source: snapshot.source.to_string(),
        size_bytes: snapshot.size_bytes,
        created: journal::text(snapshot.created),
        ready: snapshot.is_ready(),
        pool: snapshot.pool.to_string(),
        parameters: snapshot.parameters.clone(),
        group: snapshot.group.as_ref().map(ToString::to_string),
    }
}

// === impl SnapshotQuery ===

impl SnapshotQuery {
    fn covers(&self, snapshot: &array::Snapshot) -> bool {
        let contains =
            |text: &String| snapshot.id.as_str().contains(text.as_str()) || snapshot.name.contains(text);
        let is_member = |group: &String| {
            let own = snapshot.group.as_ref();
            own.is_some_and(|own| own.as_str() == group)
        };
        self.search.as_ref().is_none_or(contains)
            && self
                .source
                .as_ref()
                .is_none_or(|source| source == snapshot.source.as_str())
            && self.group.as_ref().is_none_or(is_member)
    }
}
