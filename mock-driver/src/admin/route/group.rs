use csi_proto::v1::{CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest};

use super::snapshot;
use crate::admin::page::page;
use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::query::GroupQuery;
use crate::admin_api::resource::{GroupSnapshot, GroupSnapshotNew, Page};
use crate::array::{Array, Group, Members, Named};
use crate::journal;

pub(super) async fn list(admin: &Admin, query: GroupQuery) -> Reply<Page<GroupSnapshot>> {
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

pub(super) async fn get(admin: &Admin, group: &str) -> Reply<GroupSnapshot> {
    let group = admin.id_of(Named::Group, group).await?;
    admin.read(|array| Ok(shown(&array.group(&group, &[])?))).await
}

pub(super) async fn create(admin: &Admin, new: GroupSnapshotNew) -> Reply<GroupSnapshot> {
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
    get(admin, &made.group_snapshot_id).await
}

pub(super) async fn delete(admin: &Admin, group: &str) -> Reply<()> {
    let group = admin.id_of(Named::Group, group).await?;
    let snapshots = admin.read(|array| array.group(&group, &[])).await?.snapshots;
    let request = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group,
        snapshot_ids: snapshots.iter().map(|snapshot| snapshot.id.to_string()).collect(),
        ..DeleteVolumeGroupSnapshotRequest::default()
    };
    admin.perform(request).await.map(drop)
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
