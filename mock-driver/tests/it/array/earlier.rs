//! State directories of format 2: a snapshot, a log of changes, and a file for each record of the node.

use std::fs;
use std::path::Path;

use csi_mock_driver::array::Array;
use csi_mock_driver::driver::{Driver, Settings};
use serde_json::Value;

use crate::server::Server;

/// The state of a driver killed by SIGKILL after its second start, with changes of most kinds before and after that start.
/// `expected.json` is its admin API's last response.
const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/array/state-format-2");

/// Copies the directory of an earlier driver.
pub(super) fn copy_state(to: &Path) {
    fs::create_dir_all(to.join("node")).unwrap();
    for part in ["", "node"] {
        for entry in fs::read_dir(Path::new(DIRECTORY).join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && !path.ends_with("expected.json") {
                fs::copy(&path, to.join(part).join(path.file_name().unwrap())).unwrap();
            }
        }
    }
}

fn sorted<T: serde::Serialize>(items: &[T]) -> Value {
    let mut items: Vec<Value> = items
        .iter()
        .map(|item| serde_json::to_value(item).unwrap())
        .collect();
    items.sort_by_key(Value::to_string);
    items.into()
}

#[tokio::test]
async fn state_of_format_2_is_migrated() {
    let expected = fs::read_to_string(Path::new(DIRECTORY).join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let of = |kind: &str| {
        let kind = &expected[kind];
        sorted(kind.get("items").unwrap_or(kind).as_array().unwrap())
    };
    let directory = tempfile::tempdir().unwrap();
    copy_state(&directory.path().join("state"));
    // The first start migrates, the second one finds a database.
    let (server, client) = Server::start_administered(|directory, settings| {
        copy_state(&directory.join("state"));
        settings.state_dir = Some(directory.join("state"));
        settings.array.pools[0].segments = [("mock.csi.local/zone", "zone-0")].into_iter().collect();
    })
    .await;
    assert_eq!(sorted(&client.volumes(&[]).await.unwrap().items), of("volumes"));
    assert_eq!(
        sorted(&client.snapshots(&[]).await.unwrap().items),
        of("snapshots")
    );
    assert_eq!(
        sorted(&client.group_snapshots(&[]).await.unwrap().items),
        of("group-snapshots")
    );
    assert_eq!(sorted(&client.nodes(&[]).await.unwrap().items), of("nodes"));
    assert_eq!(sorted(&client.pools().await.unwrap()), of("pools"));
    assert_eq!(
        sorted(&client.attachments(&[]).await.unwrap().items),
        of("attachments")
    );
    assert_eq!(
        serde_json::to_value(client.storage().await.unwrap()).unwrap(),
        expected["storage"]
    );
    let image = server.driver().store.peek(Array::image);
    let identity = server.driver().store.identity(0).unwrap();
    assert_eq!(
        identity.as_deref(),
        Some(identity_of(&directory.path().join("state")).as_str())
    );
    for file in ["snapshot.json", "changes.jsonl", "array.json"] {
        assert!(!server.path("state").join(file).exists(), "{file}");
    }
    let server = Server::start_in(server.stop().await, |directory, settings| {
        settings.state_dir = Some(directory.join("state"));
    })
    .await;
    assert_eq!(server.driver().store.peek(Array::image), image);
    assert_eq!(server.driver().store.identity(0).unwrap(), identity);
}

#[tokio::test]
async fn node_records_of_format_2_are_migrated() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    copy_state(&state);
    // The store is opened without serving: a running driver would detect that nothing is mounted at the paths, as after a reboot.
    let (driver, _) = Driver::open(Settings {
        state_dir: Some(state.clone()),
        node_id: Some("node-0".to_owned()),
        ..Settings::default()
    })
    .unwrap();
    assert!(!state.join("node").exists());
    let dump = driver.store.database.as_ref().unwrap().dump().unwrap();
    let records = dump["node_records"].as_object().unwrap();
    let mut count = 0;
    for entry in fs::read_dir(Path::new(DIRECTORY).join("node")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let record: Value = serde_json::from_str(&text).unwrap();
        let path = record["path"].as_str().unwrap();
        assert_eq!(records.get(path), Some(&record), "{path}");
        count += 1;
    }
    assert_eq!((count, records.len()), (4, 4));
}

fn identity_of(directory: &Path) -> String {
    let text = fs::read_to_string(directory.join("array.json")).unwrap();
    let identity: Value = serde_json::from_str(&text).unwrap();
    identity["id"].as_str().unwrap().to_owned()
}
