//! Volume files of an earlier array, or of one that still runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use csi_mock_driver::array::CreateGroupParams;
use csi_mock_driver::driver::{Driver, OpenError, Settings};
use csi_mock_driver::store::volume_files::{ClaimError, FileId};
use csi_proto::v1;
use tempfile::TempDir;
use tonic::Code;

use crate::privilege;
use crate::server::{Server, mk_create};

fn same_array(directory: &Path, settings: &mut Settings) {
    settings.media_dir = Some(directory.join("media"));
    settings.seed = Some(7);
    settings.initial_volumes = 1;
}

async fn create(server: &Server) -> FileId {
    let made = server.controller().await.create_volume(mk_create("a")).await;
    FileId::Volume(made.unwrap().into_inner().volume.unwrap().volume_id)
}

#[tokio::test]
async fn new_volume_is_empty_although_an_earlier_array_used_its_id() {
    let server = Server::start_with(same_array).await;
    let (first, stays) = (create(&server).await, FileId::Volume("vol-0".to_owned()));
    for medium in [&first, &stays] {
        let disk = server.driver().volume_files.ensure(medium, 4096).await.unwrap();
        fs::write(disk, "of the earlier array").unwrap();
    }
    let directory = server.stop().await;

    let server = Server::start_in(directory, same_array).await;
    let media = &server.driver().volume_files;
    // The driver does not respond to calls before that is done.
    server.identity().await.probe(v1::ProbeRequest {}).await.unwrap();
    assert!(!media.exists(&first).unwrap(), "moved aside at the start");
    let aside = media
        .directory()
        .unwrap()
        .join("orphaned/volumes")
        .join(first.id());
    assert_eq!(
        fs::read_to_string(aside.join("disk"))
            .unwrap()
            .trim_end_matches('\0'),
        "of the earlier array"
    );
    assert!(media.exists(&stays).unwrap(), "it is there from the start");
    // Left by a failed deletion.
    media.ensure(&first, 4096).await.unwrap();
    let second = create(&server).await;
    assert_eq!(second, first, "the seed produces the same ids");
    assert!(!media.exists(&second).unwrap());
    server.stop().await;
}

/// A small tmpfs, unmounted when dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount(options: &str) -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        disk.run("mount", &["-t", "tmpfs", "-o", options, "csi-mock-driver-test"]);
        disk
    }

    fn run(&self, program: &str, args: &[&str]) {
        let status = verdict::command(program).args(args).arg(self.0.path()).status();
        assert!(status.unwrap().success(), "{program} {args:?}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.run("umount", &["--lazy"]);
    }
}

#[tokio::test]
async fn group_snapshot_that_fills_the_disk_leaves_no_file() {
    const DISK: usize = 8 << 20;
    if !privilege::is_there() {
        return;
    }
    // For two volumes and one copy.
    let small = SmallDisk::mount("size=28m");
    let server = Server::start_with(|_, settings| {
        settings.media_dir = Some(small.0.path().to_owned());
        settings.initial_volumes = 2;
        settings.array.sizes.default = DISK as u64;
    })
    .await;
    let driver = server.driver();
    for volume in ["vol-0", "vol-1"] {
        let volume = FileId::Volume(volume.to_owned());
        let disk = driver.volume_files.ensure(&volume, DISK as u64).await.unwrap();
        fs::write(disk, vec![7; DISK]).unwrap();
    }
    let group = CreateGroupParams {
        name: "g".to_owned(),
        sources: ["vol-0", "vol-1"].map(str::to_owned).into(),
        parameters: BTreeMap::new(),
    };
    let snapshots = || fs::read_dir(small.0.path().join("snapshots")).unwrap().count();
    let refused = driver.create_group(&group).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert_eq!(snapshots(), 0);

    small.run("mount", &["-o", "remount,size=64m"]);
    driver.create_group(&group).await.unwrap();
    assert_eq!(snapshots(), 2);
    server.stop().await;
}

fn kept(directory: &Path, state: &str) -> Settings {
    Settings {
        state_dir: Some(directory.join(state)),
        media_dir: Some(directory.join("media")),
        ..Settings::default()
    }
}

#[tokio::test]
async fn second_controller_on_a_media_directory_is_refused_and_removes_nothing() {
    let server = Server::start_with(|directory, settings| *settings = kept(directory, "first")).await;
    let first = create(&server).await;
    server.driver().volume_files.ensure(&first, 4096).await.unwrap();
    let second = kept(&server.path("."), "second");
    let in_memory = Settings {
        state_dir: None,
        ..second.clone()
    };
    for other in [&second, &in_memory] {
        let refused = Driver::open(other.clone()).unwrap_err();
        assert!(
            matches!(refused, OpenError::VolumeFiles(ClaimError::InUse { .. })),
            "{refused}"
        );
    }
    let directory = server.stop().await;
    for other in [second, in_memory] {
        let refused = loop {
            let refused = Driver::open(other.clone()).unwrap_err();
            if !matches!(refused, OpenError::VolumeFiles(ClaimError::InUse { .. })) {
                break refused;
            }
            // A child process that another test is starting has a copy of the lock until its exec.
            tokio::task::yield_now().await;
        };
        assert!(
            matches!(refused, OpenError::VolumeFiles(ClaimError::OtherArray { .. })),
            "{refused}"
        );
    }
    let server = Server::start_in(directory, |directory, settings| {
        *settings = kept(directory, "first")
    })
    .await;
    server.identity().await.probe(v1::ProbeRequest {}).await.unwrap();
    assert!(server.driver().volume_files.exists(&first).unwrap());
    server.stop().await;
}
