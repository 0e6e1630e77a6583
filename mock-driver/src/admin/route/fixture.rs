//! The state between tests.

use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::query::ResetQuery;
use crate::array::{Array, Image};

pub(super) async fn export(admin: &Admin) -> Reply<Image> {
    admin.read(|array: &Array| Ok(array.image())).await
}

pub(super) async fn import(admin: &Admin, image: Image) -> Reply<()> {
    admin.driver.import(image).await?;
    admin.touch();
    Ok(())
}

pub(super) async fn reset(admin: &Admin, query: ResetQuery) -> Reply<()> {
    Ok(admin.driver.reset(query.force.unwrap_or(false)).await?)
}
