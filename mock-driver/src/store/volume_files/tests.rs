use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use tokio::task::JoinSet;

use super::*;

mod ownership;

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
    assert_eq!(volume_files.extents(None, &volume("a"), 0, 9).await.unwrap(), []);
    let disk = volume_files.ensure(&volume("a"), 8 * MIB).await.unwrap();
    assert_eq!(volume_files.extents(None, &volume("a"), 0, 9).await.unwrap(), []);
    write(&disk, MIB + 10, b"x");
    write(&disk, 4 * MIB, &[1; 3 * BLOCK as usize]);
    let all = [extent(MIB, BLOCK), extent(4 * MIB, 3 * BLOCK)];
    assert_eq!(volume_files.extents(None, &volume("a"), 0, 9).await.unwrap(), all);
    assert_eq!(
        volume_files
            .extents(None, &volume("a"), 2 * MIB, 9)
            .await
            .unwrap(),
        all[1..]
    );
    assert_eq!(
        volume_files
            .extents(None, &volume("a"), 4 * MIB + BLOCK, 9)
            .await
            .unwrap(),
        [extent(4 * MIB + BLOCK, 2 * BLOCK)]
    );
    for limit in 0..2 {
        let first = volume_files.extents(None, &volume("a"), 0, limit).await.unwrap();
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
    assert_eq!(
        volume_files.extents(Some(&base), &target, 0, 9).await.unwrap(),
        expected
    );
    assert_eq!(
        volume_files
            .extents(Some(&base), &target, 2 * MIB, 9)
            .await
            .unwrap(),
        expected[1..]
    );
    assert_eq!(
        volume_files.extents(Some(&target), &base, 0, 9).await.unwrap(),
        expected,
        "either way round"
    );
    assert_eq!(
        volume_files.extents(Some(&base), &target, 0, 2).await.unwrap(),
        expected[..2]
    );
    assert_eq!(volume_files.extents(Some(&base), &base, 0, 9).await.unwrap(), []);
    assert_eq!(
        volume_files
            .extents(Some(&snapshot("blank")), &base, 0, 9)
            .await
            .unwrap(),
        [extent(0, 2 * BLOCK), extent(6 * MIB, BLOCK)]
    );
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
            copy::replace(&from, &to, 0, false, &CancellationToken::new()).unwrap();
            assert_eq!(fs::read_to_string(to.join("tree/folder/stays")).unwrap(), "text");
        }
    });
}

#[tokio::test]
async fn copied_files_keep_owner_mode_times_attributes_and_hard_links() {
    let volume_files = VolumeFiles::private();
    let tree = volume_files.tree(&volume("a")).unwrap();
    let folder = tree.join("folder");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("file"), "text").unwrap();
    fs::hard_link(folder.join("file"), tree.join("same")).unwrap();
    symlink("file", folder.join("link")).unwrap();
    let fifo = folder.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from(0o640), 0).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let old = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let names = ["folder/file", "folder/link", "folder/fifo", "folder", "."];
    for (number, name) in names.iter().enumerate() {
        let path = tree.join(name);
        if is_root {
            lchown(&path, Some(1000 + number as u32), Some(2000)).unwrap();
        }
        if path.is_dir() || path.is_file() && !path.is_symlink() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o2750)).unwrap();
        }
    }
    let attribute = rustix::fs::setxattr(folder.join("file"), "user.note", b"kept", XattrFlags::empty());
    for name in names {
        let time = Timespec {
            tv_sec: 1_000_000_000,
            tv_nsec: 123_456_789,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(CWD, tree.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    let count = volume_files.copy(&volume("a"), &snapshot("s"), 0).await.unwrap();
    assert_eq!(count, 4, "the file's bytes, once");

    let copy = volume_files.tree(&snapshot("s")).unwrap();
    for name in names {
        let (expected, found) = (tree.join(name), copy.join(name));
        let (expected, found) = (
            fs::symlink_metadata(expected).unwrap(),
            fs::symlink_metadata(found).unwrap(),
        );
        let shape = |meta: &fs::Metadata| (meta.mode(), meta.uid(), meta.gid(), meta.nlink());
        assert_eq!(shape(&found), shape(&expected), "{name}");
        assert_eq!(found.modified().unwrap(), old, "{name}");
    }
    assert_eq!(
        fs::read_link(copy.join("folder/link")).unwrap(),
        Path::new("file")
    );
    let inode = |name: &str| fs::metadata(copy.join(name)).unwrap().ino();
    assert_eq!(inode("same"), inode("folder/file"));
    if attribute.is_ok() {
        let mut value = [0; 16];
        let length = rustix::fs::getxattr(copy.join("same"), "user.note", &mut value).unwrap();
        assert_eq!(&value[..length], b"kept");
    }
    volume_files.close().unwrap();
}

/// Starts work that goes on until it is stopped, and waits until it runs.
async fn start_endless(volume_files: &VolumeFiles) -> JoinSet<Result<(), PathError>> {
    let (tx, mut running) = tokio::sync::mpsc::unbounded_channel();
    let volume_files = volume_files.clone();
    let mut calls = JoinSet::new();
    calls.spawn(async move {
        let act = move |stop: &CancellationToken| {
            tx.send(()).unwrap();
            while !stop.is_cancelled() {
                std::thread::yield_now();
            }
            Ok(())
        };
        volume_files.blocking(act).await
    });
    running.recv().await.unwrap();
    calls
}

#[tokio::test]
async fn work_is_stopped_when_its_caller_leaves_or_the_driver_ends() {
    let volume_files = VolumeFiles::private();
    start_endless(&volume_files).await.abort_all();
    volume_files.work.close();
    let ended = tokio::time::timeout(Duration::from_secs(20), volume_files.work.wait());
    ended.await.expect("work must be stopped");
    let mut calls = start_endless(&volume_files).await;
    volume_files.finish().await;
    calls.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn directory_stays_locked_until_work_has_ended() {
    let directory = tempfile::tempdir().unwrap();
    let volume_files = VolumeFiles::kept(directory.path().to_owned());
    let owner = Owner {
        array: "a".to_owned(),
        is_kept: true,
        marked: None,
    };
    volume_files.claim(&owner, None).unwrap();
    let stop = volume_files.stop.clone();
    let work = volume_files.work.clone();
    let mut calls = start_endless(&volume_files).await;
    // The driver has ended without waiting for the work.
    drop(volume_files);
    let next = VolumeFiles::kept(directory.path().to_owned());
    let is_in_use = matches!(next.claim(&owner, None), Err(ClaimError::InUse { .. }));
    stop.cancel();
    calls.join_next().await.unwrap().unwrap().unwrap();
    work.close();
    work.wait().await;
    assert!(is_in_use);
    next.claim(&owner, None).unwrap();
}

#[test]
fn stopped_scans_fail() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    fs::write(&disk, [7; 8192]).unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    extent::allocated(&disk, 0, 1, &stop).unwrap_err();
    extent::changed(Path::new("/none"), &disk, 0, 1, &stop).unwrap_err();
    is_blank(&disk, &stop).unwrap_err();
}
