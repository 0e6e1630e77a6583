use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::*;

const MIB: u64 = 1 << 20;

fn volume(id: &str) -> Medium {
    Medium::Volume(id.to_owned())
}

fn snapshot(id: &str) -> Medium {
    Medium::Snapshot(id.to_owned())
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
    let media = Media::private();
    let directory = media.directory().unwrap();
    let disk = media.ensure(&volume("a"), 64 * MIB).await.unwrap();
    let meta = fs::metadata(&disk).unwrap();
    assert_eq!(
        (meta.len(), meta.blocks()),
        (64 * MIB, 0),
        "a hole and nothing else"
    );
    assert!(!media.exists(&volume("b")).unwrap());
    assert_eq!(
        fs::metadata(&directory).unwrap().mode() & 0o077,
        0,
        "nobody else looks in"
    );
    media.close().unwrap();
    assert!(!directory.exists());
    media.ensure(&volume("a"), MIB).await.unwrap_err();
    media.close().unwrap();
}

#[tokio::test]
async fn media_grow_and_never_shrink() {
    let media = Media::private();
    media.grow(&volume("a"), MIB).await.unwrap();
    assert!(!media.exists(&volume("a")).unwrap(), "nobody needed it yet");
    let disk = media.ensure(&volume("a"), 2 * MIB).await.unwrap();
    write(&disk, 0, b"data");
    for (bytes, expected) in [(MIB, 2 * MIB), (3 * MIB, 3 * MIB)] {
        media.grow(&volume("a"), bytes).await.unwrap();
        assert_eq!(fs::metadata(&disk).unwrap().len(), expected);
        media.ensure(&volume("a"), bytes).await.unwrap();
        assert_eq!(fs::metadata(&disk).unwrap().len(), expected);
    }
    assert_eq!(read(&disk, 0, 4), b"data");
}

#[tokio::test]
async fn copy_has_the_bytes_the_holes_and_the_wanted_length() {
    let media = Media::private();
    let disk = media.ensure(&volume("a"), 64 * MIB).await.unwrap();
    write(&disk, 5 * MIB + 17, b"in the middle");
    write(&disk, 64 * MIB - 3, b"end");
    media.copy(&volume("a"), &snapshot("s"), 64 * MIB).await.unwrap();
    write(&disk, 5 * MIB + 17, b"written later");

    let copy = media.disk(&snapshot("s")).unwrap();
    assert_eq!(read(&copy, 5 * MIB + 17, 13), b"in the middle");
    assert_eq!(read(&copy, 64 * MIB - 3, 3), b"end");
    assert!(
        fs::metadata(&copy).unwrap().blocks() * 512 < MIB,
        "holes stay holes"
    );

    media.copy(&snapshot("s"), &volume("b"), 100 * MIB).await.unwrap();
    let restored = media.disk(&volume("b")).unwrap();
    assert_eq!(fs::metadata(&restored).unwrap().len(), 100 * MIB);
    assert_eq!(read(&restored, 64 * MIB - 3, 5), b"end\0\0");
}

#[tokio::test]
async fn copy_replaces_what_was_there_even_by_nothing() {
    let media = Media::private();
    for id in ["a", "b"] {
        let disk = media.ensure(&volume(id), MIB).await.unwrap();
        write(&disk, 0, id.as_bytes());
    }
    media.copy(&volume("a"), &volume("b"), MIB).await.unwrap();
    assert_eq!(read(&media.disk(&volume("b")).unwrap(), 0, 1), b"a");
    media.copy(&volume("blank"), &volume("b"), MIB).await.unwrap();
    assert!(!media.exists(&volume("b")).unwrap());
    media.delete(&volume("b")).await.unwrap();
    media.delete(&volume("a")).await.unwrap();
    media.delete(&volume("a")).await.unwrap();
    assert!(!media.exists(&volume("a")).unwrap());
}

#[tokio::test]
async fn copy_takes_the_files_of_an_emulated_filesystem_along() {
    let media = Media::private();
    let tree = media.tree(&volume("a")).unwrap();
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/file"), "text").unwrap();
    std::os::unix::fs::symlink("/nowhere", tree.join("link")).unwrap();
    media.copy(&volume("a"), &volume("b"), MIB).await.unwrap();
    let copied = media.tree(&volume("b")).unwrap();
    assert_eq!(fs::read_to_string(copied.join("sub/file")).unwrap(), "text");
    assert_eq!(fs::read_link(copied.join("link")).unwrap(), Path::new("/nowhere"));
}

#[tokio::test]
async fn extents_are_what_was_written() {
    let media = Media::private();
    assert_eq!(media.extents(&volume("a"), 0).await.unwrap(), []);
    let disk = media.ensure(&volume("a"), 8 * MIB).await.unwrap();
    assert_eq!(media.extents(&volume("a"), 0).await.unwrap(), []);
    write(&disk, MIB + 10, b"x");
    write(&disk, 4 * MIB, &[1; 3 * BLOCK as usize]);
    let all = [extent(MIB, BLOCK), extent(4 * MIB, 3 * BLOCK)];
    assert_eq!(media.extents(&volume("a"), 0).await.unwrap(), all);
    assert_eq!(media.extents(&volume("a"), 2 * MIB).await.unwrap(), all[1..]);
    assert_eq!(
        media.extents(&volume("a"), 4 * MIB + BLOCK).await.unwrap(),
        [extent(4 * MIB + BLOCK, 2 * BLOCK)]
    );
}

#[tokio::test]
async fn delta_is_what_differs_and_not_what_was_only_rewritten() {
    let media = Media::private();
    let disk = media.ensure(&volume("a"), 8 * MIB).await.unwrap();
    write(&disk, 0, &[7; 2 * BLOCK as usize]);
    write(&disk, 6 * MIB, b"removed later");
    media
        .copy(&volume("a"), &snapshot("base"), 8 * MIB)
        .await
        .unwrap();
    write(&disk, 0, &[7; BLOCK as usize]);
    write(&disk, BLOCK, b"changed");
    write(&disk, 3 * MIB, b"new");
    write(&disk, 6 * MIB, &[0; BLOCK as usize]);
    media
        .copy(&volume("a"), &snapshot("target"), 8 * MIB)
        .await
        .unwrap();

    let expected = [
        extent(BLOCK, BLOCK),
        extent(3 * MIB, BLOCK),
        extent(6 * MIB, BLOCK),
    ];
    let (base, target) = (snapshot("base"), snapshot("target"));
    assert_eq!(media.delta(&base, &target, 0).await.unwrap(), expected);
    assert_eq!(media.delta(&base, &target, 2 * MIB).await.unwrap(), expected[1..]);
    assert_eq!(
        media.delta(&target, &base, 0).await.unwrap(),
        expected,
        "either way round"
    );
    assert_eq!(media.delta(&base, &base, 0).await.unwrap(), []);
    assert_eq!(
        media.delta(&snapshot("blank"), &base, 0).await.unwrap(),
        [extent(0, 2 * BLOCK), extent(6 * MIB, BLOCK)]
    );
}

#[tokio::test]
async fn sweep_removes_what_a_crash_left_and_keeps_what_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let media = Media::kept(directory.path().join("media"));
    assert_eq!(media.sweep(vec![]).await.unwrap(), 0, "there is nothing yet");
    for id in ["known", "orphan"] {
        media.ensure(&volume(id), MIB).await.unwrap();
    }
    media.ensure(&snapshot("orphan"), MIB).await.unwrap();
    fs::create_dir(directory.path().join("media/volumes/.new-x")).unwrap();
    assert_eq!(media.sweep(vec![volume("known")]).await.unwrap(), 3);
    assert!(media.exists(&volume("known")).unwrap());
    assert!(!media.exists(&volume("orphan")).unwrap());
    assert!(!directory.path().join("media/volumes/.new-x").exists());
    media.close().unwrap();
    assert!(media.exists(&volume("known")).unwrap(), "kept media stay");
}
