use std::fs;
use std::path::Path;

use tempfile::{TempDir, tempdir};

use super::log::LogFile;
use super::*;
use crate::array::{Access, AccessMode, Capability, PublishParams};

fn mk_settings() -> Settings {
    Settings {
        nodes: Settings::numbered_nodes(3),
        ..Settings::default()
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
    Store::open(directory.to_owned(), mk_settings(), 1, 4)
}

async fn attach(store: &Store, volume: &str) -> Result<(), Error> {
    store
        .change(|array| array.publish(volume, "node-0", &mk_hold()))
        .await
        .map(drop)
}

async fn attached(store: &Store) -> Vec<String> {
    let look = |array: &Array| Ok(array.attached_to("node-0").map(ToString::to_string).collect());
    store.read(look).await.unwrap()
}

/// A store with a volume `vol-0` and a log to a device that is always full.
pub(crate) fn mk_store_on_a_full_disk() -> Store {
    mk_store_on(fs::OpenOptions::new().write(true).open("/dev/full").unwrap())
}

fn mk_store_on(file: fs::File) -> Store {
    let lock = tempfile::tempfile().unwrap();
    let mut array = Array::new(mk_settings(), 1);
    array.premake(1);
    let log = Log::start(LogFile {
        file,
        lock,
        directory: std::path::PathBuf::from("/nowhere"),
        seq: 0,
    });
    Store {
        array: Mutex::new(array),
        log: Some(log),
        past: Mutex::default(),
        wanted_past: Arc::default(),
        directory: None,
        loss: Mutex::default(),
    }
}

/// A directory in which `vol-0` and `vol-1` were attached, and the log of that.
async fn mk_directory() -> (TempDir, String) {
    let directory = tempdir().unwrap();
    let store = open(directory.path()).unwrap();
    attach(&store, "vol-0").await.unwrap();
    attach(&store, "vol-1").await.unwrap();
    drop(store);
    let log = fs::read_to_string(directory.path().join("changes.jsonl")).unwrap();
    assert_eq!(log.lines().count(), 2);
    (directory, log)
}

#[tokio::test]
async fn log_cut_off_anywhere_brings_back_the_whole_lines() {
    let (directory, log) = mk_directory().await;
    let state = |file: &str| directory.path().join(file);
    let snapshot = fs::read(state("snapshot.json")).unwrap();
    let first_line = log.find('\n').unwrap() + 1;
    let middle = first_line + log.len() / 4;
    for cut in [
        0,
        1,
        first_line - 1,
        first_line,
        first_line + 1,
        middle,
        log.len() - 1,
        log.len(),
    ] {
        fs::write(state("snapshot.json"), &snapshot).unwrap();
        fs::write(state("changes.jsonl"), &log[..cut]).unwrap();
        let store = open(directory.path()).unwrap();
        let expected: &[&str] = match cut {
            cut if cut == log.len() => &["vol-0", "vol-1"],
            cut if cut >= first_line => &["vol-0"],
            _ => &[],
        };
        assert_eq!(attached(&store).await, expected, "cut at {cut}");
        // What comes after the cut is numbered on and can be read again.
        attach(&store, "vol-2").await.unwrap();
        drop(store);
        let store = open(directory.path()).unwrap();
        assert!(
            attached(&store).await.contains(&"vol-2".to_owned()),
            "cut at {cut}"
        );
    }
}

#[tokio::test]
async fn crash_between_new_snapshot_and_emptied_log_applies_nothing_twice() {
    let (directory, log) = mk_directory().await;
    let store = open(directory.path()).unwrap();
    let expected = store.read(|array| Ok(array.image())).await.unwrap();
    drop(store);
    // The snapshot is the new one, the log still the old one.
    fs::write(directory.path().join("changes.jsonl"), log).unwrap();
    // And a snapshot that was being written when the process died.
    fs::write(directory.path().join("snapshot.json.new"), "{\"format\":").unwrap();
    let store = open(directory.path()).unwrap();
    assert_eq!(store.read(|array| Ok(array.image())).await.unwrap(), expected);
    attach(&store, "vol-2").await.unwrap();
    drop(store);
    assert_eq!(
        attached(&open(directory.path()).unwrap()).await,
        ["vol-0", "vol-1", "vol-2"]
    );
}

#[tokio::test]
async fn damage_is_told_by_file_and_line_and_nothing_is_overwritten() {
    let (directory, log) = mk_directory().await;
    let (first, second) = log.split_at(log.find('\n').unwrap() + 1);
    let later = second.replace("\"seq\":2", "\"seq\":3");
    // (case, file, content, words of the error)
    let table = [
        (
            "garbage in the middle",
            "changes.jsonl",
            format!("{first}garbage\n{second}"),
            "line 2",
        ),
        (
            "a change is missing",
            "changes.jsonl",
            format!("{first}{later}"),
            "change 3",
        ),
        (
            "garbage as snapshot",
            "snapshot.json",
            "garbage".to_owned(),
            "not a snapshot",
        ),
        (
            "snapshot of the future",
            "snapshot.json",
            fs::read_to_string(directory.path().join("snapshot.json"))
                .unwrap()
                .replace("\"format\":2", "\"format\":3"),
            "format 3",
        ),
    ];
    for (case, file, content, words) in table {
        let path = directory.path().join(file);
        let good = fs::read(&path).unwrap();
        fs::write(&path, &content).unwrap();
        let error = open(directory.path()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, OpenError::Damaged { .. }), "{case}: {text}");
        assert!(text.contains(file) && text.contains(words), "{case}: {text}");
        assert_eq!(fs::read_to_string(&path).unwrap(), content, "{case}");
        fs::write(&path, good).unwrap();
    }
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
    let store = mk_store_on_a_full_disk();
    assert!(attached(&store).await.is_empty(), "nothing is open yet");
    let error = attach(&store, "vol-0").await.unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
    let look = store.read(|array| Ok(array.image())).await;
    assert!(
        matches!(look, Err(Error::Lost(_))),
        "what cannot be kept is not shown either"
    );
    assert_eq!(store.failed().await.kind(), io::ErrorKind::StorageFull);
}

#[tokio::test]
async fn change_that_is_written_but_not_flushed_is_not_confirmed() {
    // A pipe takes what is written and refuses to flush it to anywhere.
    let (_reader, writer) = io::pipe().unwrap();
    let store = mk_store_on(fs::File::from(std::os::fd::OwnedFd::from(writer)));
    let error = attach(&store, "vol-0").await.unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_at_the_same_time_are_all_kept() {
    let directory = tempdir().unwrap();
    let store = Store::open(directory.path().to_owned(), mk_settings(), 1, 500).unwrap();
    let ids: Vec<String> = (0..500).map(|number| format!("vol-{number}")).collect();
    futures::future::join_all(ids.iter().map(|id| attach(&store, id))).await;
    drop(store);
    let mut expected = ids;
    expected.sort();
    assert_eq!(attached(&open(directory.path()).unwrap()).await, expected);
}

#[tokio::test]
async fn a_long_log_is_put_together_while_calls_go_on_and_nothing_is_lost() {
    let directory = tempdir().unwrap();
    let store = open(directory.path()).unwrap().compacting_above(2000);
    let first = fs::read(directory.path().join("snapshot.json")).unwrap();
    let detach = |array: &mut Array| array.unpublish("vol-0", None);
    let (mut longest, mut written) = (0, 0);
    for _ in 0..200 {
        attach(&store, "vol-0").await.unwrap();
        store.change(detach).await.unwrap();
        let length = fs::metadata(directory.path().join("changes.jsonl"))
            .unwrap()
            .len();
        longest = longest.max(length);
        written += 200;
    }
    attach(&store, "vol-1").await.unwrap();
    let seen = store.read(|array| Ok(array.image())).await.unwrap();
    // Beyond the limit come the lines of one turn of the thread, and twice the snapshot.
    assert!(longest < 6000 && longest < written / 4, "{longest} of {written}");
    let snapshot = fs::read(directory.path().join("snapshot.json")).unwrap();
    assert_ne!(snapshot, first);
    drop(store);
    let again = open(directory.path()).unwrap();
    let brought_back = again.read(|array| Ok(array.image())).await.unwrap();
    assert_eq!(brought_back, seen);
}

#[tokio::test]
async fn log_that_the_snapshot_has_already_is_passed_over() {
    let directory = tempdir().unwrap();
    let store = open(directory.path()).unwrap().compacting_above(1);
    attach(&store, "vol-0").await.unwrap();
    let changes = directory.path().join("changes.jsonl");
    let snapshot = directory.path().join("snapshot.json");
    store.close();
    assert_eq!(fs::read(&changes).unwrap(), b"", "put together");
    let seen = store.peek(Array::image);
    drop(store);
    // Killed between the new snapshot and the empty log.
    let line = "{\"seq\":1,\"change\":{\"deleted\":{\"volume\":\"vol-3\"}}}\n";
    let kept = fs::read(&snapshot).unwrap();
    fs::write(&changes, line).unwrap();
    let again = open(directory.path()).unwrap();
    assert_eq!(
        again.peek(Array::image),
        seen,
        "{}",
        String::from_utf8_lossy(&kept)
    );
}

#[tokio::test]
async fn the_past_is_not_told_either_before_it_is_safe() {
    let store = mk_store_on_a_full_disk();
    // A change by whoever does not wait for it.
    drop(
        store
            .change(|array| array.publish("vol-0", "node-0", &mk_hold()))
            .await,
    );
    let look = store.read_past(|array| Ok(array.volumes().len())).await;
    assert!(matches!(look, Err(Error::Lost(_))), "{look:?}");
}
