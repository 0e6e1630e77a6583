//! Snapshots.

use axum::extract::State;
use csi_proto::v1::{CreateSnapshotRequest, DeleteSnapshotRequest};
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::admin::page::page;
use crate::admin::request::{Created, Deleted, Json, Path, Query, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{Page, Problem, Snapshot, SnapshotNew};
use crate::array::{self, Array, Named};
use crate::journal;

/// Filter of snapshots.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SnapshotQuery {
    /// Items whose id or name contains this text.
    search: Option<String>,
    /// Those of this volume.
    source: Option<String>,
    /// Snapshots of this group.
    group: Option<String>,
    /// Continue after this id.
    after: Option<String>,
    /// Maximum number of items, 1 to 1000. Default: 100.
    limit: Option<usize>,
}

/// Lists snapshots, sorted by id.
#[utoipa::path(get, path = "/snapshots", tag = "snapshots", params(SnapshotQuery),
    responses((status = 200, body = Page<Snapshot>), (status = "default", body = Problem)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    Query(query): Query<SnapshotQuery>,
) -> Reply<Page<Snapshot>> {
    let mut query = query;
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

/// Reads a snapshot.
#[utoipa::path(get, path = "/snapshots/{snapshot}", tag = "snapshots", params(("snapshot" = String, Path, description = "Its id or name.")),
    responses((status = 200, body = Snapshot), (status = "default", body = Problem)))]
pub(super) async fn get(State(admin): State<Admin>, Path(snapshot): Path<String>) -> Reply<Snapshot> {
    let snapshot = admin.id_of(Named::Snapshot, &snapshot).await?;
    admin.read(|array| Ok(shown(array.snapshot(&snapshot)?))).await
}

/// Creates a snapshot; idempotent by name, as CreateSnapshot.
#[utoipa::path(post, path = "/snapshots", tag = "snapshots", request_body = SnapshotNew,
    responses((status = 201, body = Snapshot), (status = "default", body = Problem)))]
pub(super) async fn create(State(admin): State<Admin>, Json(new): Json<SnapshotNew>) -> Created<Snapshot> {
    let source = admin.id_of(Named::Volume, &new.source).await?;
    let request = CreateSnapshotRequest {
        name: new.name,
        source_volume_id: source,
        parameters: new.parameters.into_iter().collect(),
        ..CreateSnapshotRequest::default()
    };
    let made = admin.perform(request).await?.snapshot.unwrap_or_default();
    let shown = get(State(admin), Path(made.snapshot_id)).await?;
    Ok((StatusCode::CREATED, shown))
}

/// Deletes a snapshot that is not part of a group.
#[utoipa::path(delete, path = "/snapshots/{snapshot}", tag = "snapshots", params(("snapshot" = String, Path, description = "Its id or name.")),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn delete(State(admin): State<Admin>, Path(snapshot): Path<String>) -> Deleted {
    let snapshot = admin.id_of(Named::Snapshot, &snapshot).await?;
    admin.read(|array| array.snapshot(&snapshot).map(drop)).await?;
    let request = DeleteSnapshotRequest {
        snapshot_id: snapshot,
        ..DeleteSnapshotRequest::default()
    };
    admin.perform(request).await?;
    Ok(StatusCode::NO_CONTENT)
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
