//! Where an array may be told to be laxer or stricter than CSI asks.

use tonic::Code;

use super::{World, assert_refused};
use crate::server::mk_unpublish;

#[tokio::test]
async fn lax_array_deletes_what_is_in_use() {
    let mut world = World::start_with(|_, settings| {
        settings.array.lax.delete_in_use = true;
        settings.array.attach_limit = Some(1);
        settings.premade = 2;
    })
    .await;
    world.publish("vol-0", "node-0").await.unwrap();
    world.delete("vol-0").await.unwrap();
    world
        .publish("vol-1", "node-0")
        .await
        .expect("the node has room again");
}

#[tokio::test]
async fn strict_array_finds_nothing_to_detach() {
    let mut world = World::start_with(|_, settings| {
        settings.array.lax.unpublish_not_found = true;
        settings.premade = 1;
    })
    .await;
    world.publish("vol-0", "node-0").await.unwrap();
    // (case, volume, node, found)
    #[rustfmt::skip]
    let table = [
        ("volume gone", "gone", "node-0", false),
        ("node gone", "vol-0", "gone", false),
        ("attached", "vol-0", "node-0", true),
        ("not attached any more", "vol-0", "node-0", true),
        ("from all nodes", "vol-0", "", true),
    ];
    for (case, volume, node, found) in table {
        let request = mk_unpublish(volume, node);
        let outcome = world.controller.controller_unpublish_volume(request).await;
        match found {
            true => drop(outcome.expect(case)),
            false => assert_refused(case, outcome, Code::NotFound, &["gone"]),
        }
    }
}
