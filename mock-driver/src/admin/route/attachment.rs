use csi_proto::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};

use super::volume;
use crate::admin::page::page;
use crate::admin::problem::Refusal;
use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::query::AttachmentQuery;
use crate::admin_api::resource::{Attach, Attachment, Page};
use crate::array::{Array, Named};

pub(super) async fn list(admin: &Admin, query: AttachmentQuery) -> Reply<Page<Attachment>> {
    let wanted = match &query.volume {
        Some(volume) => Some(admin.id_of(Named::Volume, volume).await?),
        None => None,
    };
    // Ids contain no newline, so the cursor is unambiguous. A cursor without a node follows all attachments of its volume.
    let after = query.after.map(|after| match after.contains('\n') {
        true => after,
        false => format!("{after}\n{}", char::MAX),
    });
    let list = |array: &Array| {
        let is = |wanted: &Option<String>, id: &String| wanted.as_ref().is_none_or(|wanted| wanted == id);
        let meant = |held: &Attachment| is(&wanted, &held.volume) && is(&query.node, &held.node);
        let attachments = array.volumes().flat_map(volume::attachments).filter(meant);
        let with_cursor = attachments.map(|held| (format!("{}\n{}", held.volume, held.node), held));
        Ok(page(
            with_cursor,
            after.as_deref(),
            query.limit,
            |(cursor, _)| cursor.as_str(),
            |(_, held)| held,
        ))
    };
    admin.read(list).await
}

pub(super) async fn attach(admin: &Admin, volume: &str, node: &str, attach: Attach) -> Reply<Attachment> {
    let volume = admin.id_of(Named::Volume, volume).await?;
    let request = ControllerPublishVolumeRequest {
        volume_id: volume.clone(),
        node_id: node.to_owned(),
        volume_capability: Some(volume::capability(attach.block, attach.access_mode.as_deref())?),
        readonly: attach.readonly,
        ..ControllerPublishVolumeRequest::default()
    };
    admin.perform(request).await?;
    find(admin, &volume, node).await
}

pub(super) async fn detach(admin: &Admin, volume: &str, node: &str) -> Reply<()> {
    let volume_id = admin.id_of(Named::Volume, volume).await?;
    find(admin, &volume_id, node).await?;
    let request = ControllerUnpublishVolumeRequest {
        volume_id,
        node_id: node.to_owned(),
        ..ControllerUnpublishVolumeRequest::default()
    };
    admin.perform(request).await.map(drop)
}

async fn find(admin: &Admin, id: &str, node: &str) -> Reply<Attachment> {
    let find = |array: &Array| {
        let held = array.volume(id)?;
        Ok(volume::attachments(held).find(|attachment| attachment.node == node))
    };
    let found = admin.read(find).await?;
    found.ok_or_else(|| Refusal::not_found("attachment", &format!("{id} on {node}")))
}
