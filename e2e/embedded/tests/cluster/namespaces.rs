//! The controllers of namespaces and of their ServiceAccounts.

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::DeleteParams;
use serde_json::json;

use crate::world::World;

async fn until_restored(world: &World) {
    let accounts = world.namespaced::<ServiceAccount>();
    let restored = || async { accounts.get_opt("default").await.unwrap().is_some() };
    world.until("ServiceAccount", restored).await;
}

#[tokio::test(start_paused = true)]
async fn deleted_default_service_account_is_restored() {
    let mut world = World::start().await;
    let accounts = world.namespaced::<ServiceAccount>();
    accounts
        .delete("default", &DeleteParams::default())
        .await
        .unwrap();
    until_restored(&world).await;
    world.cluster.crash_controllers();
    accounts
        .delete("default", &DeleteParams::default())
        .await
        .unwrap();
    world.cluster.restart_controllers();
    until_restored(&world).await;
}

#[tokio::test(start_paused = true)]
async fn deleted_namespace_with_a_default_service_account_is_gone() {
    let world = World::start().await;
    world
        .create::<Namespace>(json!({"metadata": {"name": "n"}}))
        .await;
    let namespaces = world.all::<Namespace>();
    namespaces.delete("n", &DeleteParams::default()).await.unwrap();
    let is_gone = || async { namespaces.get_opt("n").await.unwrap().is_none() };
    world.until("end of the namespace", is_gone).await;
}
