//! Attachments.

use axum::extract::State;
use csi_proto::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;

use super::volume;
use crate::admin::page::page;
use crate::admin::problem::Refusal;
use crate::admin::request::{Deleted, Json, Path, Query, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{Attach, Attachment, Page, Problem};
use crate::array::{Array, Named};

/// Filter of attachments.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AttachmentQuery {
    /// Those of this volume, by its id or name.
    volume: Option<String>,
    /// Attachments to this node.
    node: Option<String>,
    /// Continue after this value of `next`, or after this volume id.
    after: Option<String>,
    /// Maximum number of items, 1 to 1000. Default: 100.
    limit: Option<usize>,
}

/// Lists attachments, sorted by volume and node.
#[utoipa::path(get, path = "/attachments", tag = "attachments", params(AttachmentQuery),
    responses((status = 200, body = Page<Attachment>), (status = "default", body = Problem)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    Query(query): Query<AttachmentQuery>,
) -> Reply<Page<Attachment>> {
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

/// Attaches a volume out of band. The array enforces attach limits, access modes and registered nodes.
#[utoipa::path(put, path = "/attachments/{volume}/{node}", tag = "attachments",
    params(("volume" = String, Path, description = "The volume's id or name."), ("node" = String, Path, description = "The node's id.")),
    request_body = Attach, responses((status = 200, body = Attachment), (status = "default", body = Problem)))]
pub(super) async fn attach(
    State(admin): State<Admin>,
    Path((volume, node)): Path<(String, String)>,
    Json(attach): Json<Attach>,
) -> Reply<Attachment> {
    let volume = admin.id_of(Named::Volume, &volume).await?;
    let request = ControllerPublishVolumeRequest {
        volume_id: volume.clone(),
        node_id: node.clone(),
        volume_capability: Some(volume::capability(attach.block, attach.access_mode.as_deref())?),
        readonly: attach.readonly,
        ..ControllerPublishVolumeRequest::default()
    };
    admin.perform(request).await?;
    find(&admin, &volume, &node).await
}

/// Detaches a volume out of band: the attacher does not see it.
#[utoipa::path(delete, path = "/attachments/{volume}/{node}", tag = "attachments",
    params(("volume" = String, Path, description = "The volume's id or name."), ("node" = String, Path, description = "The node's id.")),
    responses((status = 204), (status = "default", body = Problem)))]
pub(super) async fn detach(
    State(admin): State<Admin>,
    Path((volume, node)): Path<(String, String)>,
) -> Deleted {
    let volume = admin.id_of(Named::Volume, &volume).await?;
    find(&admin, &volume, &node).await?;
    let request = ControllerUnpublishVolumeRequest {
        volume_id: volume,
        node_id: node,
        ..ControllerUnpublishVolumeRequest::default()
    };
    admin.perform(request).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn find(admin: &Admin, id: &str, node: &str) -> Reply<Attachment> {
    let find = |array: &Array| {
        let held = array.volume(id)?;
        Ok(volume::attachments(held).find(|attachment| attachment.node == node))
    };
    let Json(found) = admin.read(find).await?;
    let found = found.ok_or_else(|| Refusal::not_found("attachment", &format!("{id} on {node}")));
    found.map(Json)
}
