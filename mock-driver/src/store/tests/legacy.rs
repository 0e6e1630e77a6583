//! Directories of earlier versions.

use super::*;

const SNAPSHOT: &str = "snapshot.json";
const CHANGES: &str = "changes.jsonl";

/// The snapshot of a new array, and the log of attaching `vol-0` and `vol-1`, as an earlier version wrote them.
fn mk_files() -> (String, String) {
    let mut array = Array::new(mk_settings(), 1);
    array.premake(4);
    let image = serde_json::to_string(&array.image()).unwrap();
    let snapshot = format!("{{\"format\":2,\"seq\":0,\"image\":{image}}}\n");
    let mut log = String::new();
    for (number, volume) in [(1, "vol-0"), (2, "vol-1")] {
        let change = array.publish(volume, "node-0", &mk_hold()).unwrap().change;
        let change = serde_json::to_string(&change.unwrap()).unwrap();
        log += &format!("{{\"seq\":{number},\"change\":{change}}}\n");
    }
    (snapshot, log)
}

fn write(directory: &Path, snapshot: &str, log: &[u8]) {
    fs::write(directory.join(SNAPSHOT), snapshot).unwrap();
    fs::write(directory.join(CHANGES), log).unwrap();
}

/// A directory with a migrated state from which `vol-0` was detached, and with the files of the earlier version; returns
/// their log.
async fn mk_directory_with_both() -> (TempDir, String) {
    let (snapshot, log) = mk_files();
    let directory = tempdir().unwrap();
    write(directory.path(), &snapshot, log.as_bytes());
    let store = open(directory.path()).unwrap();
    detach(&store, "vol-0").await.unwrap();
    drop(store);
    write(directory.path(), &snapshot, log.as_bytes());
    (directory, log)
}

#[tokio::test]
async fn log_cut_off_or_zero_filled_anywhere_restores_the_whole_lines() {
    let (snapshot, log) = mk_files();
    let first_line = log.find('\n').unwrap() + 1;
    let log = log.as_bytes();
    for cut in 0..=log.len() {
        let expected: &[&str] = match cut {
            cut if cut == log.len() => &["vol-0", "vol-1"],
            cut if cut >= first_line => &["vol-0"],
            _ => &[],
        };
        // Zeros up to the length, and zeros before a page that was flushed.
        let zeros = vec![0; log.len() - cut];
        let before_more = [&zeros, &b"}}}\n{\"seq\":9}\n"[..]].concat();
        let tails = [&[][..], &zeros, &before_more];
        let count = if cut == log.len() { 1 } else { tails.len() };
        let directory = tempdir().unwrap();
        for tail in &tails[..count] {
            write(directory.path(), &snapshot, &[&log[..cut], tail].concat());
            let legacy = Legacy::read(directory.path()).unwrap().unwrap();
            assert_eq!(
                legacy.changes.len(),
                expected.len(),
                "cut at {cut}, {} bytes more",
                tail.len()
            );
        }
        if cut % 50 != 0 && cut != first_line && cut != log.len() {
            continue;
        }
        let store = open(directory.path()).unwrap();
        assert_eq!(attached(&store).await, expected, "cut at {cut}");
        attach(&store, "vol-2").await.unwrap();
        drop(store);
        let store = open(directory.path()).unwrap();
        assert!(
            attached(&store).await.contains(&"vol-2".to_owned()),
            "cut at {cut}"
        );
        assert!(!directory.path().join(SNAPSHOT).exists() && !directory.path().join(CHANGES).exists());
    }
}

#[tokio::test]
async fn changes_that_the_snapshot_has_are_passed_over() {
    let (snapshot, log) = mk_files();
    let directory = tempdir().unwrap();
    let later = snapshot.replace("\"seq\":0", "\"seq\":1");
    write(directory.path(), &later, log.as_bytes());
    fs::write(directory.path().join("snapshot.json.new"), "{\"format\":").unwrap();
    assert_eq!(attached(&open(directory.path()).unwrap()).await, ["vol-1"]);
}

#[tokio::test]
async fn migration_that_was_cut_off_before_the_files_were_removed_is_finished() {
    let (directory, _) = mk_directory_with_both().await;
    let database = Database::open(directory.path()).unwrap();
    let pending = Rows::from([((META, MIGRATION.to_owned()), Some(json(&true)))]);
    database.replace(&[], pending).unwrap();
    drop(database);
    assert_eq!(attached(&open(directory.path()).unwrap()).await, ["vol-1"]);
    assert!(!directory.path().join(CHANGES).exists());
    drop(open(directory.path()).unwrap());
}

#[tokio::test]
async fn state_that_an_earlier_version_wrote_after_the_migration_is_refused() {
    let (directory, log) = mk_directory_with_both().await;
    for _ in 0..2 {
        let refused = open(directory.path()).unwrap_err();
        assert!(matches!(refused, OpenError::TwoStates { .. }), "{refused}");
        let text = refused.to_string();
        for words in ["state.redb", SNAPSHOT, "move one of them away"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    assert_eq!(fs::read_to_string(directory.path().join(CHANGES)).unwrap(), log);
    fs::rename(
        directory.path().join("state.redb"),
        directory.path().join("state.redb.away"),
    )
    .unwrap();
    assert_eq!(
        attached(&open(directory.path()).unwrap()).await,
        ["vol-0", "vol-1"]
    );
}

#[tokio::test]
async fn foreign_file_beside_a_database_keeps_its_name() {
    let directory = tempdir().unwrap();
    drop(open(directory.path()).unwrap());
    let foreign = directory.path().join(SNAPSHOT);
    fs::write(&foreign, "of others").unwrap();
    drop(open(directory.path()).unwrap());
    assert_eq!(fs::read_to_string(foreign).unwrap(), "of others");
}

#[tokio::test]
async fn identity_and_loss_are_taken_over() {
    let (snapshot, log) = mk_files();
    for (loss, expected) in [
        (r#"{"loses":"everything"}"#.to_owned(), vec![]),
        (r#"{"loses":"attachments"}"#.to_owned(), vec![]),
        (format!(r#"{{"loses":"changes","backup":{snapshot}}}"#), vec![]),
    ] {
        let directory = tempdir().unwrap();
        write(directory.path(), &snapshot, log.as_bytes());
        fs::write(directory.path().join("array.json"), r#"{"id":"abc"}"#).unwrap();
        fs::write(directory.path().join("loss.json"), &loss).unwrap();
        for _ in 0..2 {
            let store = open(directory.path()).unwrap();
            assert_eq!(store.identity(7).unwrap().as_deref(), Some("abc"));
            assert_eq!(attached(&store).await, Vec::<String>::clone(&expected), "{loss}");
            assert!(!directory.path().join("loss.json").exists());
            attach(&store, "vol-3").await.unwrap();
            detach(&store, "vol-3").await.unwrap();
        }
    }
}

#[tokio::test]
async fn damage_is_refused_by_file_and_line_and_nothing_is_overwritten() {
    let (snapshot, log) = mk_files();
    let (first, second) = log.split_at(log.find('\n').unwrap() + 1);
    let later = second.replace("\"seq\":2", "\"seq\":3");
    let is_json = "is not a loss";
    // (case, file, content, words of the error)
    let table = [
        (
            "garbage in the middle",
            CHANGES,
            format!("{first}garbage\n{second}"),
            "line 2",
        ),
        (
            "a change is missing",
            CHANGES,
            format!("{first}{later}"),
            "change 3",
        ),
        (
            "garbage as snapshot",
            SNAPSHOT,
            "garbage".to_owned(),
            "not a snapshot",
        ),
        (
            "snapshot of the future",
            SNAPSHOT,
            snapshot.replace("\"format\":2", "\"format\":3"),
            "format 3",
        ),
        ("loss of nothing", "loss.json", "{}".to_owned(), is_json),
        (
            "another loss",
            "loss.json",
            r#"{"loses":"sleep"}"#.to_owned(),
            is_json,
        ),
        ("half a loss", "loss.json", String::new(), is_json),
        (
            "no backup",
            "loss.json",
            r#"{"loses":"changes"}"#.to_owned(),
            "a backup",
        ),
    ];
    for (case, file, content, words) in table {
        let directory = tempdir().unwrap();
        write(directory.path(), &snapshot, log.as_bytes());
        let path = directory.path().join(file);
        fs::write(&path, &content).unwrap();
        let error = open(directory.path()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, OpenError::Damaged { .. }), "{case}: {text}");
        assert!(text.contains(file) && text.contains(words), "{case}: {text}");
        assert_eq!(fs::read_to_string(&path).unwrap(), content, "{case}");
        // Nothing was taken over, so a repaired file counts.
        write(directory.path(), &snapshot, log.as_bytes());
        fs::remove_file(directory.path().join("loss.json")).ok();
        let repaired = open(directory.path()).unwrap();
        assert_eq!(attached(&repaired).await, ["vol-0", "vol-1"], "{case}");
    }
}
