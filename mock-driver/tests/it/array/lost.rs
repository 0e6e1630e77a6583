//! Injected data loss: lost and kept state.

use std::path::Path;
use std::time::Duration;

use csi_mock_driver::array::{Array, Image, NodeSettings};
use csi_mock_driver::fault::{Loses, Loss};
use csi_mock_driver::store::{Database, Store};
use serde_json::Value;

use super::kept::{mk_publish_params, open, steps};

/// Number of steps before the backend fault begins.
const BEFORE: usize = 10;

fn image(store: &Store) -> Image {
    store.peek(Array::image)
}

fn lose(store: &Store, loses: Option<Loses>) {
    let since = Duration::ZERO;
    store.lose(|| loses.map(|loses| Loss { since, loses })).unwrap();
}

/// Images of an array at its first start, when the backend fault begins, and at its end.
async fn life(directory: &Path, loses: Loses) -> [Image; 3] {
    live(&open(directory), loses).await
}

async fn live(store: &Store, loses: Loses) -> [Image; 3] {
    let first = image(store);
    for (case, step) in steps().into_iter().take(BEFORE) {
        store.change(step).await.expect(case);
    }
    let begun = image(store);
    lose(store, Some(loses));
    for (case, step) in steps().into_iter().skip(BEFORE) {
        store.change(step).await.expect(case);
    }
    let attach = |array: &mut Array| array.publish("vol-1", "node-2", &mk_publish_params());
    store.change(attach).await.unwrap();
    let end = image(store);
    assert!(first != begun && begun != end && attachments(&end) > 0);
    [first, begun, end]
}

/// The loss that the database schedules for the next start.
fn stored_loss(directory: &Path) -> Value {
    let dump = Database::open(directory).unwrap().dump().unwrap();
    dump["meta"]["loss"].clone()
}

fn attachments(image: &Image) -> usize {
    image.volumes.iter().map(|volume| volume.attachments.len()).sum()
}

/// The expected image after the loss.
fn left([first, begun, mut end]: [Image; 3], loses: Loses) -> Image {
    match loses {
        Loses::Everything => first,
        Loses::Changes => begun,
        Loses::Attachments => {
            for volume in &mut end.volumes {
                volume.attachments.clear();
            }
            end
        }
    }
}

const ALL: [Loses; 3] = [Loses::Changes, Loses::Attachments, Loses::Everything];

#[tokio::test]
async fn restart_applies_data_loss_once() {
    for loses in ALL {
        let directory = tempfile::tempdir().unwrap();
        let left = left(life(directory.path(), loses).await, loses);
        let store = open(directory.path());
        assert_eq!(image(&store), left, "{loses:?}");
        store
            .change(|array| Ok(array.set_node("node-7", NodeSettings::default())))
            .await
            .unwrap();
        let kept = image(&store);
        drop(store);
        assert_eq!(image(&open(directory.path())), kept, "{loses:?}: lost once");
    }
}

#[tokio::test]
async fn backend_fault_removed_before_the_restart_loses_nothing() {
    for loses in ALL {
        let directory = tempfile::tempdir().unwrap();
        life(directory.path(), loses).await;
        let stored = stored_loss(directory.path());
        assert_eq!(stored["loses"], format!("{loses:?}").to_lowercase(), "{stored}");

        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path());
        let [_, _, end] = live(&store, loses).await;
        lose(&store, None);
        drop(store);
        assert_eq!(stored_loss(directory.path()), Value::Null, "{loses:?}");
        assert_eq!(image(&open(directory.path())), end, "{loses:?}");

        let store = open(directory.path());
        lose(&store, Some(loses));
        lose(&store, None);
        drop(store);
        assert_eq!(image(&open(directory.path())), end, "{loses:?}");
    }
}
