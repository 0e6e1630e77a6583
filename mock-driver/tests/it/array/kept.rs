//! Persistence of every kind of change.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{iter, thread};

use csi_mock_driver::array::{
    Access, AccessMode, Array, Capability, CreateGroupParams, CreateSnapshotParams, CreateVolumeParams, Done,
    Error, HealthIssue, NodeSettings, PublishParams, Settings, Severity, SizeRange, Source,
    StorageHealthIssue, StorageSeverity, Timing,
};
use csi_mock_driver::store::{Database, Initial, OpenError, Store};
use jiff::Timestamp;

const MIB: u64 = 1 << 20;

pub(super) type Step = Box<dyn FnOnce(&mut Array) -> Result<Done<()>, Error>>;

fn settings() -> Settings {
    Settings {
        nodes: Settings::numbered_nodes(3),
        ..Settings::default()
    }
}

fn initial() -> Initial {
    Initial {
        volumes: 2,
        fixture: None,
    }
}

/// Retries: a child process that another test is starting has a copy of our lock until its exec, for which there is no
/// event.
pub(super) fn try_open(directory: &Path) -> Result<Store, OpenError> {
    let database = || Database::open(directory).map(Arc::new);
    let opened = || match database().and_then(|database| Store::open(database, settings(), 7, initial())) {
        Err(OpenError::InUse { .. }) => {
            thread::sleep(Duration::from_millis(1));
            None
        }
        opened => Some(opened),
    };
    let opened = iter::repeat_with(opened).take(10_000).find_map(|opened| opened);
    opened.expect("the lock must become free")
}

pub(super) fn open(directory: &Path) -> Store {
    try_open(directory).unwrap()
}

fn capability() -> Capability {
    Capability {
        access: Access::Block,
        mode: AccessMode::SingleNodeWriter,
    }
}

fn timing() -> Timing {
    Timing {
        now: Timestamp::from_nanosecond(1_700_000_000_123_456_789).unwrap(),
        delay: Duration::from_secs(1),
    }
}

fn mk_wanted(name: &str, source: Option<Source>) -> CreateVolumeParams {
    CreateVolumeParams {
        name: name.to_owned(),
        size: SizeRange {
            required: 0,
            limit: 0,
        },
        capabilities: vec![capability()],
        parameters: BTreeMap::from([("tier".to_owned(), "gold".to_owned())]),
        mutable_parameters: BTreeMap::from([("iops".to_owned(), "5".to_owned())]),
        source,
        requirement: None,
    }
}

fn mk_snapshot(name: &str) -> CreateSnapshotParams {
    CreateSnapshotParams {
        name: name.to_owned(),
        source: "vol-0".to_owned(),
        parameters: BTreeMap::from([("class".to_owned(), "a".to_owned())]),
        requirement: None,
    }
}

fn quiet<T>(done: Result<Done<T>, Error>) -> Result<Done<()>, Error> {
    done.map(|done| Done {
        reply: (),
        rows: done.rows,
    })
}

fn step(act: impl FnOnce(&mut Array) -> Result<Done<()>, Error> + 'static) -> Step {
    Box::new(act)
}

fn group_id(array: &Array) -> (String, Vec<String>) {
    let group = array.groups().next().expect("a group must be there");
    let members = group.members.values().map(ToString::to_string).collect();
    (group.id.to_string(), members)
}

fn snapshot_id(array: &Array) -> String {
    let mut single = array.snapshots().filter(|snapshot| snapshot.group.is_none());
    single.next().expect("a snapshot must be there").id.to_string()
}

pub(super) fn mk_publish_params() -> PublishParams {
    PublishParams {
        capability: capability(),
        readonly: true,
    }
}

fn mk_health_issue() -> HealthIssue {
    HealthIssue {
        status: Severity::DataLoss,
        reason: "R".to_owned(),
        message: "m".to_owned(),
    }
}

fn mk_storage_health_issue() -> StorageHealthIssue {
    StorageHealthIssue {
        status: StorageSeverity::Unreachable,
        reason: "R".to_owned(),
        message: "m".to_owned(),
        capability: Some(capability()),
    }
}

fn mk_node() -> NodeSettings {
    NodeSettings {
        limit: Some(7),
        advertised: Some(9),
        segments: Some([("zone", "z")].into_iter().collect()),
        ..NodeSettings::default()
    }
}

fn mk_group() -> CreateGroupParams {
    CreateGroupParams {
        name: "g".to_owned(),
        sources: ["vol-0", "vol-1"].map(str::to_owned).into(),
        parameters: BTreeMap::new(),
    }
}

/// One step for each kind of change.
pub(super) fn steps() -> Vec<(&'static str, Step)> {
    let mut steps = steps_of_volumes();
    steps.extend(steps_of_copies_and_nodes());
    steps.extend(steps_back());
    steps
}

fn steps_of_volumes() -> Vec<(&'static str, Step)> {
    vec![
        (
            "created",
            step(|array| quiet(array.create_volume(&mk_wanted("a", None)))),
        ),
        (
            "attached",
            step(|array| quiet(array.publish("vol-0", "node-0", &mk_publish_params()))),
        ),
        (
            "expanded",
            step(|array| {
                let range = SizeRange {
                    required: 2048 * MIB,
                    limit: 0,
                };
                quiet(array.expand_volume("vol-1", range, true))
            }),
        ),
        (
            "modified",
            step(|array| {
                array.modify_volume("vol-0", &BTreeMap::from([("tier".to_owned(), "gold".to_owned())]))
            }),
        ),
        (
            "unhealthy",
            step(|array| array.set_volume_health("vol-0", vec![mk_health_issue()])),
        ),
        (
            "storage unhealthy",
            step(|array| array.set_storage_health(Some("node-1"), vec![mk_storage_health_issue()])),
        ),
        (
            "all storage unhealthy",
            step(|array| array.set_storage_health(None, vec![mk_storage_health_issue()])),
        ),
    ]
}

fn steps_of_copies_and_nodes() -> Vec<(&'static str, Step)> {
    vec![
        (
            "snapshot",
            step(|array| {
                let id = array.snapshot_id("s");
                quiet(array.create_snapshot(&mk_snapshot("s"), id, timing()))
            }),
        ),
        (
            "ready",
            step(|array| {
                let id = array.snapshots().next().unwrap().id.clone();
                Ok(array.finish_snapshots(&[id]))
            }),
        ),
        (
            "restored",
            step(|array| {
                let source = Source::Snapshot(snapshot_id(array).into());
                quiet(array.create_volume(&mk_wanted("b", Some(source))))
            }),
        ),
        (
            "group",
            step(|array| {
                let ids = array.group_ids(&mk_group());
                quiet(array.create_group(&mk_group(), ids, timing()))
            }),
        ),
        ("node set", step(|array| Ok(array.set_node("node-2", mk_node())))),
        (
            "node new",
            step(|array| Ok(array.set_node("node-9", NodeSettings::default()))),
        ),
        (
            "node renamed",
            step(|array| array.change_node_id("node-0", "node-zero")),
        ),
        ("node removed", step(|array| array.remove_node("node-1"))),
        ("pool resized", step(|array| array.resize_pool("pool-0", 1 << 40))),
    ]
}

fn steps_back() -> Vec<(&'static str, Step)> {
    vec![
        ("well", step(|array| array.set_volume_health("vol-0", vec![]))),
        (
            "storage well",
            step(|array| array.set_storage_health(None, vec![])),
        ),
        (
            "snapshot deleted",
            step(|array| {
                let id = snapshot_id(array);
                array.delete_snapshot(&id)
            }),
        ),
        (
            "group deleted",
            step(|array| {
                let (id, members) = group_id(array);
                quiet(array.delete_group(&id, &members))
            }),
        ),
        ("detached", step(|array| array.unpublish("vol-0", None))),
        ("deleted", step(|array| array.delete_volume("vol-0"))),
    ]
}

#[tokio::test]
async fn every_kind_of_change_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = open(directory.path());
    for (case, step) in steps() {
        let before = store.peek(Array::image);
        store.change(step).await.expect(case);
        let image = store.peek(Array::image);
        assert_ne!(before, image, "{case} changes something");
        drop(store);
        store = open(directory.path());
        assert_eq!(store.peek(Array::image), image, "{case}");
    }
}

#[tokio::test]
async fn restored_array_continues_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let mut elsewhere = store.peek(Array::clone);
    for (case, step) in steps().into_iter().take(13) {
        store.change(step).await.expect(case);
    }
    drop(store);
    let store = open(directory.path());
    for (_, step) in steps().into_iter().take(13) {
        step(&mut elsewhere).unwrap();
    }
    for (case, step) in steps().into_iter().skip(13) {
        store.change(step).await.expect(case);
    }
    for (_, step) in steps().into_iter().skip(13) {
        step(&mut elsewhere).unwrap();
    }
    assert_eq!(store.peek(Array::image), elsewhere.image());
    let room = |array: &Array| array.capacity_for(None, None).unwrap();
    assert_eq!(store.peek(room), room(&elsewhere));
}
