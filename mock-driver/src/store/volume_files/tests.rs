use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::*;

const MIB: u64 = 1 << 20;

fn volume(id: &str) -> FileId {
    FileId::Volume(id.to_owned())
}

fn snapshot(id: &str) -> FileId {
    FileId::Snapshot(id.to_owned())
}

fn write(disk: &Path, offset: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(disk).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

fn read(disk: &Path, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    File::open(disk)
        .unwrap()
        .read_exact_at(&mut bytes, offset)
        .unwrap();
    bytes
}

fn extent(offset: u64, length: u64) -> Extent {
    Extent { offset, length }
}

#[tokio::test]
async fn private_media_cost_nothing_until_needed_and_leave_nothing() {
    let volume_files = VolumeFiles::private();
    let directory = volume_files.directory().unwrap();
    let disk = volume_files.ensure(&volume("a"), 64 * MIB).await.unwrap();
    let meta = fs::metadata(&disk).unwrap();
    assert_eq!(
        (meta.len(), meta.blocks()),
        (64 * MIB, 0),
        "a hole and nothing else"
    );
    assert!(!volume_files.exists(&volume("b")).unwrap());
    assert_eq!(
        fs::metadata(&directory).unwrap().mode() & 0o077,
        0,
        "other users have no access"
    );
    volume_files.close().unwrap();
    assert!(!directory.exists());
    volume_files.ensure(&volume("a"), MIB).await.unwrap_err();
    volume_files.close().unwrap();
}

#[tokio::test]
async fn media_grow_and_never_shrink() {
    let volume_files = VolumeFiles::private();
    volume_files.grow(&volume("a"), MIB).await.unwrap();
    assert!(
        !volume_files.exists(&volume("a")).unwrap(),
        "grow must not create a file"
    );
    let disk = volume_files.ensure(&volume("a"), 2 * MIB).await.unwrap();
    write(&disk, 0, b"data");
    for (bytes, expected) in [(MIB, 2 * MIB), (3 * MIB, 3 * MIB)] {
        volume_files.grow(&volume("a"), bytes).await.unwrap();
        assert_eq!(fs::metadata(&disk).unwrap().len(), expected);
        volume_files.ensure(&volume("a"), bytes).await.unwrap();
        assert_eq!(fs::metadata(&disk).unwrap().len(), expected);
    }
    assert_eq!(read(&disk, 0, 4), b"data");
}

#[tokio::test]
async fn copy_has_the_bytes_the_holes_and_the_wanted_length() {
    let volume_files = VolumeFiles::private();
    let disk = volume_files.ensure(&volume("a"), 64 * MIB).await.unwrap();
    write(&disk, 5 * MIB + 17, b"in the middle");
    write(&disk, 64 * MIB - 3, b"end");
    volume_files
        .copy(&volume("a"), &snapshot("s"), 64 * MIB)
        .await
        .unwrap();
    write(&disk, 5 * MIB + 17, b"written later");

    let copy = volume_files.disk(&snapshot("s")).unwrap();
    assert_eq!(read(&copy, 5 * MIB + 17, 13), b"in the middle");
    assert_eq!(read(&copy, 64 * MIB - 3, 3), b"end");
    assert!(
        fs::metadata(&copy).unwrap().blocks() * 512 < MIB,
        "holes stay holes"
    );

    volume_files
        .copy(&snapshot("s"), &volume("b"), 100 * MIB)
        .await
        .unwrap();
    let restored = volume_files.disk(&volume("b")).unwrap();
    assert_eq!(fs::metadata(&restored).unwrap().len(), 100 * MIB);
    assert_eq!(read(&restored, 64 * MIB - 3, 5), b"end\0\0");
}

#[tokio::test]
async fn copy_replaces_an_existing_disk_even_by_none() {
    let volume_files = VolumeFiles::private();
    for id in ["a", "b"] {
        let disk = volume_files.ensure(&volume(id), MIB).await.unwrap();
        write(&disk, 0, id.as_bytes());
    }
    volume_files.copy(&volume("a"), &volume("b"), MIB).await.unwrap();
    assert_eq!(read(&volume_files.disk(&volume("b")).unwrap(), 0, 1), b"a");
    volume_files
        .copy(&volume("blank"), &volume("b"), MIB)
        .await
        .unwrap();
    assert!(!volume_files.exists(&volume("b")).unwrap());
    volume_files.delete(&volume("b")).await.unwrap();
    volume_files.delete(&volume("a")).await.unwrap();
    volume_files.delete(&volume("a")).await.unwrap();
    assert!(!volume_files.exists(&volume("a")).unwrap());
}

#[tokio::test]
async fn failed_copy_leaves_nothing_behind() {
    let volume_files = VolumeFiles::private();
    let disk = volume_files.ensure(&volume("a"), MIB).await.unwrap();
    write(&disk, 0, b"data");
    let kept = volume_files.ensure(&volume("b"), MIB).await.unwrap();
    write(&kept, 0, b"kept");
    // No file is that long: the copy fails when its bytes are there.
    for to in [volume("b"), volume("c"), snapshot("s")] {
        volume_files.copy(&volume("a"), &to, u64::MAX).await.unwrap_err();
    }
    let directory = volume_files.directory().unwrap();
    let mut left = tree(&directory);
    left.retain(|name| name.contains("/."));
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(read(&kept, 0, 4), b"kept", "the old file stays");
}

#[tokio::test]
async fn copy_takes_the_files_of_an_emulated_filesystem_along() {
    let volume_files = VolumeFiles::private();
    let tree = volume_files.tree(&volume("a")).unwrap();
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/file"), "text").unwrap();
    std::os::unix::fs::symlink("/nowhere", tree.join("link")).unwrap();
    volume_files.copy(&volume("a"), &volume("b"), MIB).await.unwrap();
    let copied = volume_files.tree(&volume("b")).unwrap();
    assert_eq!(fs::read_to_string(copied.join("sub/file")).unwrap(), "text");
    assert_eq!(fs::read_link(copied.join("link")).unwrap(), Path::new("/nowhere"));
}

#[tokio::test]
async fn extents_cover_written_blocks_only() {
    let volume_files = VolumeFiles::private();
    assert_eq!(volume_files.extents(&volume("a"), 0, 9).await.unwrap(), []);
    let disk = volume_files.ensure(&volume("a"), 8 * MIB).await.unwrap();
    assert_eq!(volume_files.extents(&volume("a"), 0, 9).await.unwrap(), []);
    write(&disk, MIB + 10, b"x");
    write(&disk, 4 * MIB, &[1; 3 * BLOCK as usize]);
    let all = [extent(MIB, BLOCK), extent(4 * MIB, 3 * BLOCK)];
    assert_eq!(volume_files.extents(&volume("a"), 0, 9).await.unwrap(), all);
    assert_eq!(
        volume_files.extents(&volume("a"), 2 * MIB, 9).await.unwrap(),
        all[1..]
    );
    assert_eq!(
        volume_files
            .extents(&volume("a"), 4 * MIB + BLOCK, 9)
            .await
            .unwrap(),
        [extent(4 * MIB + BLOCK, 2 * BLOCK)]
    );
    for limit in 0..2 {
        let first = volume_files.extents(&volume("a"), 0, limit).await.unwrap();
        assert_eq!(first, all[..limit]);
    }
}

#[tokio::test]
async fn delta_has_changed_blocks_and_not_those_rewritten_unchanged() {
    let volume_files = VolumeFiles::private();
    let disk = volume_files.ensure(&volume("a"), 8 * MIB).await.unwrap();
    write(&disk, 0, &[7; 2 * BLOCK as usize]);
    write(&disk, 6 * MIB, b"removed later");
    volume_files
        .copy(&volume("a"), &snapshot("base"), 8 * MIB)
        .await
        .unwrap();
    write(&disk, 0, &[7; BLOCK as usize]);
    write(&disk, BLOCK, b"changed");
    write(&disk, 3 * MIB, b"new");
    write(&disk, 6 * MIB, &[0; BLOCK as usize]);
    volume_files
        .copy(&volume("a"), &snapshot("target"), 8 * MIB)
        .await
        .unwrap();

    let expected = [
        extent(BLOCK, BLOCK),
        extent(3 * MIB, BLOCK),
        extent(6 * MIB, BLOCK),
    ];
    let (base, target) = (snapshot("base"), snapshot("target"));
    assert_eq!(volume_files.delta(&base, &target, 0, 9).await.unwrap(), expected);
    assert_eq!(
        volume_files.delta(&base, &target, 2 * MIB, 9).await.unwrap(),
        expected[1..]
    );
    assert_eq!(
        volume_files.delta(&target, &base, 0, 9).await.unwrap(),
        expected,
        "either way round"
    );
    assert_eq!(
        volume_files.delta(&base, &target, 0, 2).await.unwrap(),
        expected[..2]
    );
    assert_eq!(volume_files.delta(&base, &base, 0, 9).await.unwrap(), []);
    assert_eq!(
        volume_files.delta(&snapshot("blank"), &base, 0, 9).await.unwrap(),
        [extent(0, 2 * BLOCK), extent(6 * MIB, BLOCK)]
    );
}

fn mk_owner(array: &str, is_kept: bool) -> Owner {
    Owner {
        array: array.to_owned(),
        is_kept,
        marked: None,
    }
}

/// All files and directories below a path.
fn tree(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![path.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap().path();
            found.push(entry.strip_prefix(path).unwrap().display().to_string());
            if entry.is_dir() && !entry.is_symlink() {
                left.push(entry);
            }
        }
    }
    found.sort_unstable();
    found
}

#[tokio::test]
async fn sweep_moves_orphans_aside_and_removes_unfinished_copies() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("media");
    let volume_files = VolumeFiles::kept(path.clone());
    for id in ["known", "orphan"] {
        volume_files.ensure(&volume(id), MIB).await.unwrap();
    }
    write(&volume_files.disk(&volume("orphan")).unwrap(), 0, b"precious");
    fs::create_dir(path.join("volumes/.new-x")).unwrap();
    fs::create_dir(path.join("volumes/.hidden")).unwrap();
    let known = vec![volume("known")];
    let swept = volume_files.sweep(known.clone()).await.unwrap();
    assert_eq!(swept, SweepReport::default(), "not claimed, so not ours");

    fs::write(path.join("media.json"), r#"{"format":1,"array":"a","kept":true}"#).unwrap();
    volume_files.claim(&mk_owner("a", true), &[], None).unwrap();
    let counts = |unfinished, orphaned| SweepReport { unfinished, orphaned };
    assert_eq!(volume_files.sweep(known.clone()).await.unwrap(), counts(1, 2));
    assert_eq!(volume_files.sweep(known.clone()).await.unwrap(), counts(0, 0));
    assert!(volume_files.exists(&volume("known")).unwrap());
    assert_eq!(
        read(&path.join("orphaned/volumes/orphan/disk"), 0, 8),
        b"precious"
    );

    // Another one of the same name is kept beside it, and a link is moved, not followed.
    volume_files.ensure(&volume("orphan"), MIB).await.unwrap();
    fs::create_dir(directory.path().join("elsewhere")).unwrap();
    fs::write(directory.path().join("elsewhere/file"), "of others").unwrap();
    std::os::unix::fs::symlink(directory.path().join("elsewhere"), path.join("volumes/.new-link")).unwrap();
    std::os::unix::fs::symlink(directory.path().join("elsewhere"), path.join("volumes/link")).unwrap();
    assert_eq!(volume_files.sweep(known).await.unwrap(), counts(1, 2));
    assert!(path.join("orphaned/volumes/orphan.1/disk").exists());
    assert!(path.join("orphaned/volumes/link").is_symlink());
    assert!(directory.path().join("elsewhere/file").exists());
    volume_files.close().unwrap();
    assert!(volume_files.exists(&volume("known")).unwrap(), "kept media stay");
}

#[test]
fn directory_with_foreign_files_is_refused_and_left_as_it_is() {
    for foreign in [
        "notes.txt",
        "volumes/backup/file",
        "snapshots/monday",
        "volumes/known2/disk",
        "state.d/file",
        "media",
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let file = path.join(foreign);
        fs::create_dir_all(path.join("volumes/known")).unwrap();
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "of others").unwrap();
        fs::create_dir(path.join("state")).unwrap();
        let before = tree(path);
        let refused = VolumeFiles::kept(path.to_owned())
            .claim(
                &mk_owner("a", true),
                &[volume("known")],
                Some(&path.join("state")),
            )
            .unwrap_err();
        assert!(
            matches!(refused, ClaimError::Unmarked { .. }),
            "{foreign}: {refused}"
        );
        let message = refused.to_string();
        assert!(
            message.contains("--media-dir") && message.contains("empty directory"),
            "{message}"
        );
        assert_eq!(tree(path), before, "{foreign}");
    }
}

#[test]
fn directory_is_claimed_if_it_is_empty_or_as_an_earlier_version_left_it() {
    for left in [
        vec![],
        vec!["lost+found"],
        vec!["devices/node-0", "staging/x", "ephemeral/y"],
        vec![
            "volumes/known",
            "snapshots/taken",
            "volumes/.new-b",
            "snapshots/.old-c",
        ],
        vec!["state/snapshot.json"],
        vec!["media.json.new"],
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for left in &left {
            fs::create_dir_all(path.join(left)).unwrap();
        }
        let known = [volume("known"), snapshot("taken")];
        let owner = mk_owner("a", true);
        let claim = || {
            let volume_files = VolumeFiles::kept(path.to_owned());
            volume_files
                .claim(&owner, &known, Some(&path.join("state")))
                .map(|_| volume_files)
        };
        if left.contains(&"media.json.new") {
            // Half of a marker, as a crash leaves it.
            fs::remove_dir(path.join("media.json.new")).unwrap();
            fs::write(path.join("media.json.new"), "{").unwrap();
        }
        let volume_files = claim().unwrap();
        assert!(
            matches!(claim().unwrap_err(), ClaimError::InUse { .. }),
            "{left:?}"
        );
        volume_files.close().unwrap();
        claim().unwrap();
    }
}

#[test]
fn state_directory_may_be_the_media_directory() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("snapshot.json"), "{}").unwrap();
    let volume_files = VolumeFiles::kept(
        directory
            .path()
            .join("../")
            .join(directory.path().file_name().unwrap()),
    );
    volume_files
        .claim(&mk_owner("a", true), &[], Some(directory.path()))
        .unwrap();
}

#[test]
fn directory_of_a_kept_array_is_refused_to_others() {
    let (first, second) = (mk_owner("a", true), mk_owner("b", true));
    let (memory, other_memory) = (mk_owner("c", false), mk_owner("d", false));
    for (before, after, is_taken) in [
        (&first, &first, true),
        (&first, &second, false),
        (&first, &memory, false),
        (&memory, &memory, true),
        (&memory, &other_memory, true),
        (&memory, &first, true),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let volume_files = VolumeFiles::kept(directory.path().to_owned());
        volume_files.claim(before, &[], None).unwrap();
        volume_files.close().unwrap();
        fs::create_dir_all(directory.path().join("volumes/x")).unwrap();
        match volume_files.claim(after, &[], None) {
            Ok(_) => assert!(is_taken, "{before:?} {after:?}"),
            Err(error) => {
                assert!(
                    !is_taken && matches!(error, ClaimError::OtherArray { .. }),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn directory_without_files_of_the_array_has_no_leftovers_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let photo = directory.path().join("volumes/.old-photos/1.jpg");
    fs::create_dir_all(photo.parent().unwrap()).unwrap();
    fs::write(&photo, "of others").unwrap();
    let volume_files = VolumeFiles::kept(directory.path().to_owned());
    let refused = volume_files.claim(&mk_owner("a", true), &[volume("known")], None);
    assert!(matches!(refused, Err(ClaimError::Unmarked { .. })), "{refused:?}");
    assert!(photo.exists());
}

#[test]
fn directory_that_has_lost_its_marker_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("media");
    let claim = |marked: &Option<String>, path: &Path| {
        let owner = Owner {
            marked: marked.clone(),
            ..mk_owner("a", true)
        };
        VolumeFiles::kept(path.to_owned()).claim(&owner, &[volume("known")], None)
    };
    let marked = claim(&None, &path).unwrap();
    assert_eq!(marked.as_deref(), path.to_str());
    claim(&marked, &path).unwrap();
    // As a mount point is without its filesystem.
    fs::rename(&path, directory.path().join("elsewhere")).unwrap();
    fs::create_dir(&path).unwrap();
    let lost = claim(&marked, &path).unwrap_err();
    assert!(matches!(lost, ClaimError::MarkerLost { .. }), "{lost}");
    assert!(!path.join("media.json").exists());
    let with_slash = format!("{}/", path.display());
    let lost = claim(&marked, Path::new(&with_slash)).unwrap_err();
    assert!(matches!(lost, ClaimError::MarkerLost { .. }), "{lost}");
    // An array in memory has used the mount point.
    let in_memory = VolumeFiles::kept(path.clone());
    in_memory.claim(&mk_owner("b", false), &[], None).unwrap();
    drop(in_memory);
    let lost = claim(&marked, &path).unwrap_err();
    assert!(matches!(lost, ClaimError::MarkerLost { .. }), "{lost}");
    claim(&marked, &directory.path().join("elsewhere")).unwrap();
    claim(&marked, &directory.path().join("new")).unwrap();
}

/// A node process that gets no identity takes it for an array without a media directory.
#[test]
fn claimed_marker_that_is_damaged_or_missing_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let volume_files = VolumeFiles::kept(directory.path().to_owned());
    assert_eq!(volume_files.claimed_by().unwrap(), None);
    volume_files.claim(&mk_owner("a", true), &[], None).unwrap();
    assert_eq!(volume_files.claimed_by().unwrap().as_deref(), Some("a"));
    let marker = directory.path().join("media.json");
    fs::write(&marker, "{").unwrap();
    let error = volume_files.claimed_by().unwrap_err();
    assert!(matches!(error, ClaimError::Damaged { .. }), "{error}");
    fs::remove_file(&marker).unwrap();
    let error = volume_files.claimed_by().unwrap_err();
    assert!(matches!(error, ClaimError::MarkerLost { .. }), "{error}");
}

#[test]
fn damaged_or_linked_marker_is_refused() {
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    fs::write(elsewhere.path(), r#"{"format":1,"array":"a","kept":true}"#).unwrap();
    let texts = [
        "",
        "{}",
        r#"{"format":2,"array":"a","kept":true}"#,
        r#"{"format":1,"array":"a","kept":true,"x":1}"#,
    ];
    for text in texts.map(Some).into_iter().chain([None]) {
        let directory = tempfile::tempdir().unwrap();
        let marker = directory.path().join("media.json");
        match text {
            Some(text) => fs::write(marker, text).unwrap(),
            None => std::os::unix::fs::symlink(elsewhere.path(), marker).unwrap(),
        }
        let volume_files = VolumeFiles::kept(directory.path().to_owned());
        volume_files
            .claim(&mk_owner("a", true), &[], None)
            .expect_err(text.unwrap_or("a link"));
    }
}

#[test]
fn copy_passes_over_files_that_are_removed_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    let folder = from.join("tree/folder");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("stays"), "text").unwrap();
    std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            for round in 0..2000 {
                let made = folder.join((round % 7).to_string());
                fs::create_dir_all(&made).unwrap();
                fs::write(made.join("file"), "text").unwrap();
                std::os::unix::fs::symlink("file", made.join("link")).unwrap();
                fs::remove_dir_all(&made).unwrap();
            }
        });
        while !user.is_finished() {
            copy::replace(&from, &to, 0, false).unwrap();
            assert_eq!(fs::read_to_string(to.join("tree/folder/stays")).unwrap(), "text");
        }
    });
}
