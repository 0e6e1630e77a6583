//! The routes, made of the table of endpoints, with a file of handlers for each resource.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::{Refusal, json};
use super::request::{Json, Path, Query, RequiredJson};
use super::state::Admin;
use crate::admin_api::endpoints::endpoints;
use crate::admin_api::query::*;
use crate::admin_api::resource::*;
use crate::array::Image;

mod attachment;
mod backend_fault;
mod capability;
mod event;
mod fault;
mod fixture;
mod group;
pub(super) mod info;
mod journal;
mod node;
mod pool;
mod scenario;
mod snapshot;
mod storage;
mod volume;

macro_rules! server {
    ($($of:ident { $($tag:literal { $(
        $(#[$doc:meta])* $vis:vis $method:ident $path:literal $module:ident::$handler:ident $status:literal,
            $name:ident($($part:ident $quoted:literal $about:literal),*)
            $(with $query:ident)? $(sends $body:ident)? $(sets $one:ident { $field:ident: $type:ty })?
            $(text $text:ident $shape:tt)? $(whole $whole:ident $form:tt)? $(-> $reply:ty)? $(as $value:ident $object:ident)?;
    )+ })+ })+) => {
        $(
            pub(super) fn $of() -> OpenApiRouter<Admin> {
                OpenApiRouter::new()$($(.routes(routes!(endpoint::$name)))+)+
            }
        )+

        mod endpoint {
            use super::*;

            $($($(
                $(#[$doc])*
                #[utoipa::path($method, path = $path, tag = $tag,
                    params($($query,)? $(($quoted = String, Path, description = $about)),*),
                    $(request_body = $body,)? $(request_body = $one,)? $(request_body $shape,)? $(request_body $form,)?
                    responses((status = $status $(, body = $reply)? $(, body = $object)?), (status = "default", body = Problem)))]
                pub(super) async fn $name(
                    State(admin): State<Admin>,
                    Path(($($part,)*)): Path<($(given!(String, $part),)*)>,
                    $(Query(query): Query<$query>,)?
                    $(Json(body): Json<$body>,)? $(Json(body): Json<$one>,)? $(Json(body): Json<$text>,)?
                    $(RequiredJson(body): RequiredJson<$whole>,)?
                ) -> Result<Response, Refusal> {
                    let reply = $module::$handler(
                        &admin, $(&$part,)* $(given!(query, $query),)?
                        $(given!(body, $body),)? $(given!(body, $one),)? $(given!(body, $text),)? $(given!(body, $whole),)?
                    ).await?;
                    Ok(answer($status, &reply))
                }
            )+)+)+
        }
    };
}

/// The first of two, for each of the second.
macro_rules! given {
    ($given:ident, $each:ident) => {
        $given
    };
}

endpoints!(server);

/// The routes of streams of events, which are not in the table.
pub(super) fn streams() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(event::calls))
        .routes(routes!(event::changes))
}

fn answer(status: u16, reply: &impl Serialize) -> Response {
    match StatusCode::from_u16(status) {
        Ok(StatusCode::NO_CONTENT) => StatusCode::NO_CONTENT.into_response(),
        status => json(status.unwrap_or_default(), reply),
    }
}
