use std::fs;
use std::os::unix::fs::FileExt;

use super::super::formatting::prepare;
use super::super::tests::mk_disk;
use super::*;

fn disk_with(writes: &[(u64, &[u8])]) -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let file = File::create(&path).unwrap();
    file.set_len(16 << 20).unwrap();
    for (offset, bytes) in writes {
        file.write_all_at(bytes, *offset).unwrap();
    }
    (directory, path)
}

#[test]
fn disks_are_blank_known_or_unknown_and_never_blank_by_mistake() {
    // (case, what is written where, content)
    type Bytes<'a> = &'a [(u64, &'a [u8])];
    let table: [(&str, Bytes<'_>, Content); 8] = [
        ("nothing", &[], Content::Blank),
        ("zeroes", &[(0, &[0; 8192])], Content::Blank),
        (
            "one byte at the end",
            &[((16 << 20) - 1, &[1])],
            Content::Unknown("data of an unknown kind"),
        ),
        ("xfs", &[(0, b"XFSB")], Content::Known(Filesystem::Xfs)),
        (
            "ext2",
            &[(0x438, &[0x53, 0xEF])],
            Content::Known(Filesystem::Ext2),
        ),
        (
            "ext4",
            &[(0x438, &[0x53, 0xEF]), (0x460, &[0xC2, 2, 0, 0])],
            Content::Known(Filesystem::Ext4),
        ),
        (
            "partition table",
            &[(0x1FE, &[0x55, 0xAA])],
            Content::Unknown("a partition table or boot sector"),
        ),
        (
            "btrfs",
            &[(0x10040, b"_BHRfS_M")],
            Content::Unknown("a btrfs filesystem"),
        ),
    ];
    for (case, writes, expected) in table {
        let (_directory, disk) = disk_with(writes);
        assert_eq!(content(&mk_disk(&disk)).unwrap(), expected, "{case}");
    }
}

#[test]
fn what_mkfs_makes_is_known_again() {
    verdict::require!(verdict::Requirement::Program("mkfs.ext4"));
    for (fs, bytes) in [
        (Filesystem::Ext2, 16 << 20),
        (Filesystem::Ext3, 16 << 20),
        (Filesystem::Ext4, 16 << 20),
        (Filesystem::Xfs, 320 << 20),
    ] {
        if fs == Filesystem::Xfs && !verdict::is_met(verdict::Requirement::Program("mkfs.xfs")) {
            continue;
        }
        let (_directory, path) = disk_with(&[]);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(bytes)
            .unwrap();
        let disk = mk_disk(&path);
        assert_eq!(prepare(&disk, Some(fs)).unwrap(), fs);
        assert!(!disk.formatting.exists());
        assert_eq!(content(&disk).unwrap(), Content::Known(fs));
        assert_eq!(prepare(&disk, None).unwrap(), fs, "what is there is taken");
        let other = if fs == Filesystem::Xfs {
            Filesystem::Ext4
        } else {
            Filesystem::Xfs
        };
        let refused = prepare(&disk, Some(other)).unwrap_err();
        assert!(matches!(refused, Error::OtherFilesystem { .. }), "{refused}");
    }
}

#[test]
fn disk_is_formatted_only_if_blank_or_if_we_were_interrupted() {
    verdict::require!(verdict::Requirement::Program("mkfs.ext4"));
    let (_directory, path) = disk_with(&[(5 << 20, b"other data")]);
    let mut disk = mk_disk(&path);
    let refused = prepare(&disk, None).unwrap_err();
    assert!(matches!(refused, Error::UnknownData { .. }), "{refused}");
    let mut bytes = [0; 10];
    File::open(&path)
        .unwrap()
        .read_exact_at(&mut bytes, 5 << 20)
        .unwrap();
    assert_eq!(&bytes, b"other data", "nothing was touched");

    fs::write(&disk.formatting, "").unwrap();
    assert_eq!(
        prepare(&disk, None).unwrap(),
        Filesystem::Ext4,
        "the rest of an interrupted mkfs"
    );

    let (_blank, path) = disk_with(&[]);
    disk.file = path.clone();
    disk.device = path;
    disk.writable = false;
    let refused = prepare(&disk, None).unwrap_err();
    assert!(matches!(refused, Error::BlankAndReadOnly), "{refused}");
}

/// Does something to a filesystem behind its back.
fn debugfs(disk: &Path, request: &str) {
    let debugfs = Program {
        name: "debugfs",
        package: "e2fsprogs",
    };
    let args = ["-w".as_ref(), "-R".as_ref(), request.as_ref(), disk.as_os_str()];
    debugfs.run(args, &[0]).unwrap();
}

#[test]
fn dirty_filesystem_is_repaired_and_a_damaged_one_is_reported_and_left() {
    verdict::require!(
        verdict::Requirement::Program("mkfs.ext4"),
        verdict::Requirement::Program("debugfs")
    );
    const STATE: u64 = 0x43A;
    let state = |disk: &Path| {
        let mut state = [0; 2];
        File::open(disk)
            .unwrap()
            .read_exact_at(&mut state, STATE)
            .unwrap();
        u16::from_le_bytes(state)
    };
    let (_directory, path) = disk_with(&[]);
    let mut disk = mk_disk(&path);
    prepare(&disk, Some(Filesystem::Ext4)).unwrap();
    assert_eq!(state(&path), 1, "clean");
    debugfs(&path, "mkdir precious");
    debugfs(&path, "set_super_value state 2");
    assert_eq!(state(&path), 2, "has errors");
    disk.writable = false;
    prepare(&disk, None).unwrap();
    assert_eq!(state(&path), 2, "not repaired where nothing may be written");
    disk.writable = true;
    assert_eq!(prepare(&disk, None).unwrap(), Filesystem::Ext4);
    assert_eq!(state(&path), 1, "repaired");

    // Without its root, only an administrator can decide what belongs where.
    debugfs(&path, "clri <2>");
    debugfs(&path, "set_super_value state 2");
    let made = |disk: &Path| {
        let mut uuid = [0; 16];
        File::open(disk).unwrap().read_exact_at(&mut uuid, 0x468).unwrap();
        uuid
    };
    let before = made(&path);
    for _ in 0..2 {
        let damaged = prepare(&disk, None).unwrap_err();
        assert!(matches!(damaged, Error::Damaged(_)), "{damaged}");
    }
    assert_eq!(made(&path), before, "not made again");
}
