//! Storage pools.

use axum::extract::State;

use crate::admin::page::first;
use crate::admin::request::{Json, Path, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{Pool, PoolChange, Problem};
use crate::array::{Array, PoolUsage};

/// Lists the storage pools with their usage, sorted by name.
#[utoipa::path(get, path = "/pools", tag = "storage",
    responses((status = 200, body = Vec<Pool>), (status = "default", body = Problem)))]
pub(super) async fn list(State(admin): State<Admin>) -> Reply<Vec<Pool>> {
    let list = |array: &Array| {
        let pools = array.pools().map(shown).collect();
        Ok(first(pools, usize::MAX, |pool| pool.name.as_str()))
    };
    admin.read(list).await
}

/// Reads a pool.
#[utoipa::path(get, path = "/pools/{pool}", tag = "storage", params(("pool" = String, Path, description = "Its name.")),
    responses((status = 200, body = Pool), (status = "default", body = Problem)))]
pub(super) async fn get(State(admin): State<Admin>, Path(pool): Path<String>) -> Reply<Pool> {
    admin.read(|array| array.pool(&pool).map(shown)).await
}

/// Resizes a pool; not below its allocated bytes.
/// GetCapacity reports the new size immediately.
#[utoipa::path(patch, path = "/pools/{pool}", tag = "storage", params(("pool" = String, Path, description = "Its name.")),
    request_body = PoolChange, responses((status = 200, body = Pool), (status = "default", body = Problem)))]
pub(super) async fn change(
    State(admin): State<Admin>,
    Path(pool): Path<String>,
    Json(change): Json<PoolChange>,
) -> Reply<Pool> {
    admin
        .change(|array| array.resize_pool(&pool, change.capacity_bytes))
        .await?;
    get(State(admin), Path(pool)).await
}

fn shown(filling: PoolUsage<'_>) -> Pool {
    Pool {
        name: filling.pool.name.to_string(),
        capacity_bytes: filling.pool.capacity,
        used_bytes: filling.used,
        available_bytes: filling.left(),
        topology: filling.pool.segments.as_map().clone(),
    }
}
