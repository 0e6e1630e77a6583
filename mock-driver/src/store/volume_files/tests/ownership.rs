//! Directories of media: claims, markers and leftovers.

use super::*;

fn mk_owner(array: &str, is_kept: bool) -> Owner {
    Owner {
        array: array.to_owned(),
        is_kept,
        marked: None,
    }
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
    volume_files.claim(&mk_owner("a", true), None).unwrap();
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
        "devices/cameras/photo.jpg",
        "devices/notes.txt",
        "ephemeral/notes.txt",
        "ephemeral/x/photo.jpg",
        "ephemeral/node-0/x/photo.jpg",
        "staging/release/file",
        "staging/a/b/file",
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
            .claim(&mk_owner("a", true), Some(&path.join("state")))
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
fn directory_is_claimed_if_it_has_no_volumes() {
    for left in [
        vec![],
        vec!["lost+found"],
        vec!["devices/node-0", "staging/x", "ephemeral/y"],
        vec![
            "staging/node-0/csi-1",
            "ephemeral/node-0/csi-1/tree",
            "ephemeral/node-0/.old-x",
        ],
        vec!["state/snapshot.json"],
        vec!["media.json.new"],
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for left in &left {
            fs::create_dir_all(path.join(left)).unwrap();
        }
        let owner = mk_owner("a", true);
        let claim = || {
            let volume_files = VolumeFiles::kept(path.to_owned());
            volume_files
                .claim(&owner, Some(&path.join("state")))
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
        .claim(&mk_owner("a", true), Some(directory.path()))
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
        volume_files.claim(before, None).unwrap();
        volume_files.close().unwrap();
        fs::create_dir_all(directory.path().join("volumes/x")).unwrap();
        match volume_files.claim(after, None) {
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

#[tokio::test]
async fn persistent_array_moves_files_of_an_array_in_memory_aside_once() {
    let directory = tempfile::tempdir().unwrap();
    let volume_files = VolumeFiles::kept(directory.path().to_owned());
    let (memory, owner) = (mk_owner("a", false), mk_owner("b", true));
    volume_files.claim(&memory, None).unwrap();
    volume_files.ensure(&volume("known"), MIB).await.unwrap();
    volume_files.close().unwrap();

    volume_files.claim(&owner, None).unwrap();
    assert!(!volume_files.exists(&volume("known")).unwrap());
    assert!(directory.path().join("orphaned/volumes/known/disk").exists());
    volume_files.ensure(&volume("known"), MIB).await.unwrap();
    volume_files.close().unwrap();

    volume_files.claim(&owner, None).unwrap();
    assert!(volume_files.exists(&volume("known")).unwrap());
}

#[test]
fn directory_without_files_of_the_array_has_no_leftovers_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let photo = directory.path().join("volumes/.old-photos/1.jpg");
    fs::create_dir_all(photo.parent().unwrap()).unwrap();
    fs::write(&photo, "of others").unwrap();
    let volume_files = VolumeFiles::kept(directory.path().to_owned());
    let refused = volume_files.claim(&mk_owner("a", true), None);
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
        VolumeFiles::kept(path.to_owned()).claim(&owner, None)
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
    in_memory.claim(&mk_owner("b", false), None).unwrap();
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
    volume_files.claim(&mk_owner("a", true), None).unwrap();
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
            .claim(&mk_owner("a", true), None)
            .expect_err(text.unwrap_or("a link"));
    }
}
