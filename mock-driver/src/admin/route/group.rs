//! Group snapshots.

use axum::extract::State;
use csi_proto::v1::{CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest};
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::snapshot;
use crate::admin::page::page;
use crate::admin::request::{Created, Deleted, Json, Path, Query, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{GroupSnapshot, GroupSnapshotNew, Page, Problem};
use crate::array::{Array, Group, Members, Named};
use crate::journal;

/// Filter of group snapshots.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct GroupQuery {
    /// Items whose id or name contains this text.
    search: Option<String>,
    /// Groups with a snapshot of this source volume.
    source: Option<String>,
    /// Continue after this id.
    after: Option<String>,
    /// Maximum number of items, 1 to 1000. Default: 100.
    limit: Option<usize>,
}

/// Lists group snapshots, sorted by id, each with its snapshots.
#[utoipa::path(get, path = "/group-snapshots", tag = "snapshots", params(GroupQuery),
    responses((status = 200, body = Page<GroupSnapshot>), (status = "default", body = Problem)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    Query(query): Query<GroupQuery>,
) -> Reply<Page<GroupSnapshot>> {
    let (after, limit) = (query.after.as_deref(), query.limit);
    let list = |array: &Array| {
        let groups = array.groups().filter(|group| query.covers(group));
        Ok(page(
            groups,
            after,
            limit,
            |group| group.id.as_str(),
            |group| shown(&array.members(group)),
        ))
    };
    admin.read(list).await
}

/// Reads a group snapshot with its snapshots.
#[utoipa::path(get, path = "/group-snapshots/{group}", tag = "snapshots", params(("group" = String, Path, description = "Its id or name.")),
    responses((status = 200, body = GroupSnapshot), (status = "default", body = Problem)))]
pub(super) async fn get(State(admin): State<Admin>, Path(group): Path<String>) -> Reply<GroupSnapshot> {
    let group = admin.id_of(Named::Group, &group).await?;
    admin.read(|array| Ok(shown(&array.group(&group, &[])?))).await
}

/// Creates a group snapshot; idempotent by name, as CreateVolumeGroupSnapshot.
#[utoipa::path(post, path = "/group-snapshots", tag = "snapshots", request_body = GroupSnapshotNew,
    responses((status = 201, body = GroupSnapshot), (status = "default", body = Problem)))]
pub(super) async fn create(
    State(admin): State<Admin>,
    Json(new): Json<GroupSnapshotNew>,
) -> Created<GroupSnapshot> {
    let mut sources = Vec::new();
    for source in &new.sources {
        sources.push(admin.id_of(Named::Volume, source).await?);
    }
    let request = CreateVolumeGroupSnapshotRequest {
        name: new.name,
        source_volume_ids: sources,
        parameters: new.parameters.into_iter().collect(),
        ..CreateVolumeGroupSnapshotRequest::default()
    };
    let made = admin.perform(request).await?.group_snapshot.unwrap_or_default();
    let shown = get(State(admin), Path(made.group_snapshot_id)).await?;
    Ok((StatusCode::CREATED, shown))
}

/// Deletes a group snapshot with its snapshots, unless volumes depend on one of them.
#[utoipa::path(delete, path = "/group-snapshots/{group}", tag = "snapshots", params(("group" = String, Path, description = "Its id or name.")),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn delete(State(admin): State<Admin>, Path(group): Path<String>) -> Deleted {
    let group = admin.id_of(Named::Group, &group).await?;
    let known = admin.driver.store.read(|array| array.group(&group, &[]));
    let snapshots = known.await?.snapshots;
    let request = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group,
        snapshot_ids: snapshots.iter().map(|snapshot| snapshot.id.to_string()).collect(),
        ..DeleteVolumeGroupSnapshotRequest::default()
    };
    admin.perform(request).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn shown(members: &Members) -> GroupSnapshot {
    let group = &members.group;
    GroupSnapshot {
        id: group.id.to_string(),
        name: group.name.clone(),
        created: journal::text(group.created),
        ready: members.are_ready(),
        parameters: group.parameters.clone(),
        snapshots: members
            .snapshots
            .iter()
            .map(|snapshot| snapshot::shown(snapshot))
            .collect(),
    }
}

// === impl GroupQuery ===

impl GroupQuery {
    fn covers(&self, group: &Group) -> bool {
        let contains = |text: &String| group.id.as_str().contains(text.as_str()) || group.name.contains(text);
        let has = |volume: &String| group.members.contains_key(volume.as_str());
        self.search.as_ref().is_none_or(contains) && self.source.as_ref().is_none_or(has)
    }
}
