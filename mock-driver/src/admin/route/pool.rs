use crate::admin::page::first;
use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::resource::{Pool, PoolChange};
use crate::array::{Array, PoolUsage};

pub(super) async fn list(admin: &Admin) -> Reply<Vec<Pool>> {
    let list = |array: &Array| {
        let pools = array.pools().map(shown).collect();
        Ok(first(pools, usize::MAX, |pool| pool.name.as_str()))
    };
    admin.read(list).await
}

pub(super) async fn get(admin: &Admin, pool: &str) -> Reply<Pool> {
    admin.read(|array| array.pool(pool).map(shown)).await
}

pub(super) async fn change(admin: &Admin, pool: &str, change: PoolChange) -> Reply<Pool> {
    admin
        .change(|array| array.resize_pool(pool, change.capacity_bytes))
        .await?;
    get(admin, pool).await
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
