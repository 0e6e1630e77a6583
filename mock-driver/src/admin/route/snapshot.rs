//! Snapshots.

use axum::extract::{Path, State};
use csi_proto::v1::DeleteSnapshotRequest;
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{limit, page};
use crate::admin::problem::Refusal;
use crate::admin::request::{Json, Query};
use crate::admin::resource::{Page, Problem, Snapshot};
use crate::admin::server::Admin;
use crate::backend;

/// Which snapshots.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SnapshotQuery {
    /// Those whose id or name contains this text.
    search: Option<String>,
    /// Those of this volume.
    source: Option<String>,
    /// Those of this group.
    group: Option<String>,
    /// Those after this id.
    after: Option<String>,
    /// At most so many; 100 unless told otherwise, never more than 1000.
    limit: Option<usize>,
}

/// The snapshots, sorted by id. Those of a group name it.
#[utoipa::path(get, path = "/snapshots", tag = "snapshots", params(SnapshotQuery),
    responses((status = 200, body = Page<Snapshot>), (status = "default", body = Problem)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    Query(query): Query<SnapshotQuery>,
) -> Result<Json<Page<Snapshot>>, Refusal> {
    let limit = limit(query.limit);
    let snapshots = admin.driver.store.read(|array| {
        let all = array.snapshots().map(|snapshot| shown(snapshot));
        let meant = all.filter(|snapshot| {
            let contains = |text: &String| snapshot.id.contains(text) || snapshot.name.contains(text);
            query.search.as_ref().is_none_or(contains)
                && query
                    .source
                    .as_ref()
                    .is_none_or(|source| *source == snapshot.source)
                && (query.group.is_none() || query.group == snapshot.group)
        });
        let is_later = |snapshot: &Snapshot| query.after.as_ref().is_none_or(|after| snapshot.id > *after);
        Ok(page(
            meant,
            limit,
            is_later,
            |snapshot| snapshot,
            |snapshot| snapshot.id.clone(),
        ))
    });
    Ok(Json(snapshots.await?))
}

/// Deletes a snapshot, though not one of a group.
#[utoipa::path(delete, path = "/snapshots/{snapshot}", tag = "snapshots", params(("snapshot" = String, Path, description = "Its id.")),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    Path(snapshot): Path<String>,
) -> Result<StatusCode, Refusal> {
    let known = admin
        .driver
        .store
        .read(|array| array.snapshot(&snapshot).map(drop));
    known.await?;
    let request = DeleteSnapshotRequest {
        snapshot_id: snapshot,
        ..DeleteSnapshotRequest::default()
    };
    admin.perform(request).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn shown(snapshot: &backend::Snapshot) -> Snapshot {
    Snapshot {
        id: snapshot.id.to_string(),
        name: snapshot.name.clone(),
        source: snapshot.source.to_string(),
        size_bytes: snapshot.size_bytes,
        group: snapshot.group.as_ref().map(ToString::to_string),
    }
}
