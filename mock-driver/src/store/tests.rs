use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use futures::future::poll_immediate;
use tempfile::tempdir;

use self::disk::{Disk, Survives};
use super::*;
use crate::array::{Access, AccessMode, Capability, Image, PublishParams};

mod disk;

fn mk_settings() -> Settings {
    Settings {
        nodes: Settings::numbered_nodes(3),
        ..Settings::default()
    }
}

fn volumes(count: u64) -> Initial {
    Initial {
        volumes: count,
        fixture: None,
    }
}

fn mk_hold() -> PublishParams {
    PublishParams {
        capability: Capability {
            access: Access::Block,
            mode: AccessMode::SingleNodeWriter,
        },
        readonly: false,
    }
}

fn open(directory: &Path) -> Result<Store, OpenError> {
    Store::open(Arc::new(Database::open(directory)?), mk_settings(), 1, volumes(4))
}

fn open_on(disk: Disk) -> Result<Store, OpenError> {
    Store::open(Arc::new(Database::on(disk)?), mk_settings(), 1, volumes(4))
}

async fn attach(store: &Store, volume: &str) -> Result<(), Error> {
    store
        .change(|array| array.publish(volume, "node-0", &mk_hold()))
        .await
        .map(drop)
}

async fn detach(store: &Store, volume: &str) -> Result<(), Error> {
    store.change(|array| array.unpublish(volume, None)).await
}

async fn attached(store: &Store) -> Vec<String> {
    let look = |array: &Array| Ok(array.attached_to("node-0").map(ToString::to_string).collect());
    store.read(look).await.unwrap()
}

/// A store with a volume `vol-0` on a disk that has become full, and its database.
pub(crate) fn mk_store_on_a_full_disk() -> (Store, Arc<Database>) {
    let disk = Disk::default();
    let database = Arc::new(Database::on(disk.clone()).unwrap());
    let store = Store::open(database.clone(), mk_settings(), 1, volumes(1)).unwrap();
    disk.fail_after(0, ErrorKind::StorageFull);
    (store, database)
}

/// Changes an array until it fails: its states, and the number of the last one that was acknowledged.
async fn live(store: &Store) -> (Vec<Image>, usize) {
    let mut history = vec![store.peek(Array::image)];
    let mut acknowledged = 0;
    for round in 0..4 {
        let publish = |volume| move |array: &mut Array| array.publish(volume, "node-0", &mk_hold());
        let note = |history: &mut Vec<Image>| history.push(store.peek(Array::image));
        // Two at once, so that a commit may have both or only the first.
        let first = store.change(publish("vol-0"));
        let second = store.change(publish("vol-1"));
        let both = {
            let mut first = std::pin::pin!(first);
            let mut second = std::pin::pin!(second);
            let early = poll_immediate(&mut first).await;
            note(&mut history);
            let other = poll_immediate(&mut second).await;
            note(&mut history);
            let first = match early {
                Some(done) => done,
                None => first.await,
            };
            let second = match other {
                Some(done) => done,
                None => second.await,
            };
            first.and(second)
        };
        if both.is_err() {
            break;
        }
        acknowledged = history.len() - 1;
        let gone = format!("vol-{}", 2 + round % 2);
        let undone = async {
            detach(store, "vol-0").await?;
            note(&mut history);
            detach(store, "vol-1").await?;
            note(&mut history);
            if round < 2 {
                store.change(|array| array.delete_volume(&gone)).await?;
                note(&mut history);
            }
            Ok::<_, Error>(())
        };
        if undone.await.is_err() {
            // The change that was not acknowledged may have been made.
            note(&mut history);
            break;
        }
        acknowledged = history.len() - 1;
    }
    (history, acknowledged)
}

const OUTCOMES: [Survives; 5] = [
    Survives::Nothing,
    Survives::Everything,
    Survives::Some(1),
    Survives::Some(2),
    Survives::Some(3),
];

#[tokio::test]
async fn acknowledged_changes_survive_a_loss_of_power_at_any_write() {
    let beginning = Disk::default();
    drop(open_on(beginning.clone()).unwrap());
    for steps in 0.. {
        let disk = beginning.after_power_loss(Survives::Everything);
        let store = open_on(disk.clone()).unwrap();
        disk.fail_after(steps, ErrorKind::Other);
        let (history, acknowledged) = live(&store).await;
        let is_cut = disk.has_failed();
        for survives in OUTCOMES {
            let after = open_on(disk.after_power_loss(survives)).unwrap();
            let image = after.peek(Array::image);
            let found = history.iter().rposition(|state| *state == image);
            assert!(
                found.is_some_and(|found| found >= acknowledged),
                "power lost after {steps} steps, {survives:?}: {found:?} of {acknowledged}"
            );
        }
        drop(store);
        if !is_cut {
            assert!(steps > 20, "{steps} steps for all of it");
            return;
        }
    }
}

#[tokio::test]
async fn waiting_calls_share_a_commit() {
    let disk = Disk::default();
    let database = Arc::new(Database::on(disk.clone()).unwrap());
    let store = Store::open(database, mk_settings(), 1, volumes(500)).unwrap();
    let before = disk.flushes();
    disk.hold_flushes(true);
    let ids: Vec<String> = (0..500).map(|number| format!("vol-{number}")).collect();
    let mut calls = Box::pin(futures::future::join_all(ids.iter().map(|id| attach(&store, id))));
    assert!(
        poll_immediate(&mut calls).await.is_none(),
        "nothing is durable yet"
    );
    disk.hold_flushes(false);
    for done in calls.as_mut().await {
        done.unwrap();
    }
    drop(calls);
    let flushes = disk.flushes() - before;
    assert!(flushes < 20, "{flushes} flushes");
    // Not what the store writes when it is dropped: all of it was durable before the answers.
    let disk = disk.after_power_loss(Survives::Nothing);
    let after = Store::open(
        Arc::new(Database::on(disk).unwrap()),
        mk_settings(),
        1,
        volumes(500),
    )
    .unwrap();
    assert_eq!(attached(&after).await.len(), 500);
}

#[tokio::test]
async fn file_does_not_grow_with_the_number_of_changes() {
    let disk = Disk::default();
    let store = open_on(disk.clone()).unwrap();
    for _ in 0..20 {
        attach(&store, "vol-0").await.unwrap();
        detach(&store, "vol-0").await.unwrap();
    }
    let early = disk.len();
    for _ in 0..500 {
        attach(&store, "vol-0").await.unwrap();
        detach(&store, "vol-0").await.unwrap();
    }
    assert!(disk.len() <= 2 * early, "{early} bytes, then {}", disk.len());
}

#[tokio::test]
async fn damage_is_refused_with_the_name_of_the_file() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("state.redb");
    let store = open(directory.path()).unwrap();
    attach(&store, "vol-0").await.unwrap();
    drop(store);
    let good = fs::read(&path).unwrap();
    let offset = |text: &[u8]| good.windows(text.len()).rposition(|found| found == text).unwrap();
    let access_mode = offset(b"SINGLE_NODE_WRITER");
    let mut row = good.clone();
    row[access_mode] = b'X';
    // The row is as valid as before: only its checksum tells.
    let mut value = good.clone();
    let node = good[..access_mode]
        .windows(6)
        .rposition(|found| found == b"node-0")
        .unwrap();
    value[node + 5] = b'1';
    let table = [
        ("a byte of a row", row),
        ("another value in a row", value),
        ("not a database", b"garbage".repeat(100)),
        ("cut off", good[..good.len() / 2].to_vec()),
    ];
    for (case, content) in table {
        fs::write(&path, &content).unwrap();
        let refused = open(directory.path()).unwrap_err();
        let text = refused.to_string();
        assert!(matches!(refused, OpenError::Damaged { .. }), "{case}: {text}");
        assert!(text.contains("state.redb"), "{case}: {text}");
    }
    fs::write(&path, good).unwrap();
    assert_eq!(attached(&open(directory.path()).unwrap()).await, ["vol-0"]);
}

#[tokio::test]
async fn database_of_a_later_version_is_refused() {
    let disk = Disk::default();
    let database = Database::on(disk.clone()).unwrap();
    database.set_meta("format", &5).unwrap();
    drop(database);
    let refused = Database::on(disk).unwrap_err();
    assert!(refused.to_string().contains("format 5"), "{refused}");
}

#[tokio::test]
async fn unfinished_new_database_is_made_anew() {
    let directory = tempdir().unwrap();
    fs::write(directory.path().join("state.redb.new"), "half").unwrap();
    drop(open(directory.path()).unwrap());
    assert!(!directory.path().join("state.redb.new").exists());
}

#[tokio::test]
async fn directory_belongs_to_one_store_at_a_time() {
    let directory = tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    assert!(matches!(open(directory.path()), Err(OpenError::InUse { .. })));
    drop(store);
    open(directory.path()).unwrap();
}

#[tokio::test]
async fn change_that_cannot_be_written_is_not_confirmed() {
    let (store, database) = mk_store_on_a_full_disk();
    assert!(attached(&store).await.is_empty(), "nothing is open yet");
    let error = attach(&store, "vol-0").await.unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    let look = store.read(|array| Ok(array.image())).await;
    assert!(
        matches!(look, Err(Error::Lost(_))),
        "what cannot be kept is not shown either"
    );
    assert_eq!(database.failed().await.kind(), ErrorKind::StorageFull);
}

#[tokio::test]
async fn refusal_waits_for_what_it_saw() {
    let disk = Disk::default();
    let store = open_on(disk.clone()).unwrap();
    disk.hold_flushes(true);
    let first = attach(&store, "vol-0");
    let mut first = std::pin::pin!(first);
    assert!(poll_immediate(&mut first).await.is_none());
    // Refused because of the first, which is not durable yet.
    let second = store.change(|array| array.publish("vol-0", "node-1", &mk_hold()));
    let mut second = std::pin::pin!(second);
    assert!(poll_immediate(&mut second).await.is_none());
    let read = store.read(|array| Ok(array.image()));
    let mut read = std::pin::pin!(read);
    assert!(poll_immediate(&mut read).await.is_none());
    disk.hold_flushes(false);
    first.await.unwrap();
    assert!(matches!(second.await, Err(Error::Refused(_))));
    read.await.unwrap();
}

#[tokio::test]
async fn change_that_is_written_but_not_flushed_is_not_confirmed() {
    let disk = Disk::default();
    let store = open_on(disk.clone()).unwrap();
    let untouched = disk.after_power_loss(Survives::Nothing);
    let mut steps = 0;
    // The last step of a commit that fails is its flush.
    loop {
        let disk = untouched.after_power_loss(Survives::Everything);
        let store = open_on(disk.clone()).unwrap();
        let before = disk.flushes();
        disk.fail_after(steps, ErrorKind::Other);
        match attach(&store, "vol-0").await {
            Ok(()) => {
                assert!(disk.flushes() > before && steps > 1);
                break;
            }
            Err(error) => assert!(
                matches!(error, Error::Lost(_)) && disk.flushes() == before,
                "{error}"
            ),
        }
        steps += 1;
    }
    drop(store);
}

#[tokio::test]
async fn past_state_is_not_returned_before_it_is_durable() {
    let (store, _database) = mk_store_on_a_full_disk();
    // A change by a caller that does not wait for it.
    drop(
        store
            .change(|array| array.publish("vol-0", "node-0", &mk_hold()))
            .await,
    );
    let look = store.read_stale(|array| Ok(array.volumes().len())).await;
    assert!(matches!(look, Err(Error::Lost(_))), "{look:?}");
}

#[tokio::test]
async fn panic_of_the_writer_thread_is_a_failure_of_the_database() {
    let disk = Disk::default();
    let database = Arc::new(Database::on(disk.clone()).unwrap());
    let store = Store::open(database.clone(), mk_settings(), 1, volumes(1)).unwrap();
    disk.panic_once();
    attach(&store, "vol-0").await.unwrap_err();
    let failed = tokio::time::timeout(Duration::from_secs(20), database.failed()).await;
    let error = failed.expect("must report the panic");
    assert!(error.to_string().contains("panicked"), "{error}");
}
