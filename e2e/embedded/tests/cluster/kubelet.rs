//! kubelet: deadlines of its calls.

use std::collections::BTreeMap;

use crate::world::World;

#[tokio::test(start_paused = true)]
async fn calls_have_the_deadlines_of_kubelet_and_provisioner() {
    let world = World::start().await;
    world.claim("data", "now", "ReadWriteOnce").await;
    world.pod("web", Some("a"), &["data"]).await;
    world.until_running("web").await;
    world.delete_pod("web").await;
    world.until_gone("web").await;
    world.delete_claim("data").await;
    world
        .until("volume deleted", || async {
            world.driver.state().volumes.is_empty()
        })
        .await;
    let expected = BTreeMap::from([
        ("CreateVolume", "10000m".to_owned()),
        ("DeleteVolume", "10000m".to_owned()),
        ("NodeGetInfo", "120000m".to_owned()),
        ("NodePublishVolume", "120000m".to_owned()),
        ("NodeStageVolume", "120000m".to_owned()),
        ("NodeUnpublishVolume", "120000m".to_owned()),
        ("NodeUnstageVolume", "120000m".to_owned()),
    ]);
    assert_eq!(world.driver.state().timeouts, expected);
}
