//! The driver's memory while it streams the block metadata of a full volume of 1 TiB.

use std::fs::{self, File};
use std::path::PathBuf;

use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use csi_proto::v1::{CapacityRange, CreateSnapshotRequest, GetMetadataAllocatedRequest};
use verdict::Requirement;

use crate::program::{Program, command};
use crate::server::mk_create;

const TIB: i64 = 1 << 40;
const BLOCK: i64 = 4096;

/// All 268 million entries take more than 4 GiB, a message with 10,000 of them 160 KiB.
const MAX_GROWTH: u64 = 64 << 20;

/// If the driver collected all entries, it would do so before the first message.
const MESSAGES: i64 = 100;

/// A mounted ramfs. Its SEEK_HOLE finds no hole in a sparse file, so the file is a full volume without using memory.
struct Ramfs(PathBuf);

// === impl Ramfs ===

impl Ramfs {
    fn mount(target: PathBuf) -> Self {
        fs::create_dir(&target).unwrap();
        run("mount", &["-t", "ramfs", "none", target.to_str().unwrap()]);
        Self(target)
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        run("umount", &["--lazy", self.0.to_str().unwrap()]);
    }
}

fn run(program: &str, args: &[&str]) {
    let output = verdict::command(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

#[tokio::test]
async fn memory_for_the_metadata_of_a_full_volume_is_bounded() {
    verdict::require!(Requirement::LoopDevices, Requirement::Program("prlimit"));
    let directory = tempfile::tempdir().unwrap();
    let media = Ramfs::mount(directory.path().join("media"));
    let flags = [
        format!("--media-dir={}", media.0.display()),
        format!("--pool=pool-0={}", 4 * TIB),
        "--snapshot-metadata-blocks=fixed".to_owned(),
    ];
    let socket = directory.path().join("csi.sock");
    let driver = command(&socket);
    // The limit of the address space makes a driver that collects all entries fail before the host runs out of memory.
    let mut limited = verdict::command("prlimit");
    limited
        .arg("--as=2147483648")
        .arg(driver.get_program())
        .args(driver.get_args())
        .args(flags);
    let program = Program::run(limited, &socket).await;
    let mut controller = program.controller().await;
    let volume = csi_proto::v1::CreateVolumeRequest {
        capacity_range: Some(CapacityRange {
            required_bytes: TIB,
            limit_bytes: 0,
        }),
        ..mk_create("full")
    };
    let volume = controller.create_volume(volume).await.unwrap().into_inner();
    let snapshot = CreateSnapshotRequest {
        name: "full".to_owned(),
        source_volume_id: volume.volume.unwrap().volume_id,
        ..CreateSnapshotRequest::default()
    };
    let snapshot = controller.create_snapshot(snapshot).await.unwrap().into_inner();
    let snapshot_id = snapshot.snapshot.unwrap().snapshot_id;
    let snapshot = media.0.join("snapshots").join(&snapshot_id);
    fs::create_dir_all(&snapshot).unwrap();
    let disk = File::create(snapshot.join("disk")).unwrap();
    disk.set_len(TIB.unsigned_abs()).unwrap();

    let before = program.peak_memory();
    let mut client = SnapshotMetadataClient::new(program.channel().await);
    // From the start, and the last block.
    for (offset, messages) in [(0, MESSAGES), (TIB - BLOCK, 1)] {
        let request = GetMetadataAllocatedRequest {
            snapshot_id: snapshot_id.clone(),
            starting_offset: offset,
            ..GetMetadataAllocatedRequest::default()
        };
        let mut stream = client.get_metadata_allocated(request).await.unwrap().into_inner();
        let mut next = offset;
        for _ in 0..messages {
            let message = stream.message().await.unwrap().unwrap();
            assert_eq!(message.volume_capacity_bytes, TIB);
            for block in message.block_metadata {
                assert_eq!((block.byte_offset, block.size_bytes), (next, BLOCK));
                next += BLOCK;
            }
        }
        let seen = (next - offset) / BLOCK;
        assert_eq!(seen, if messages == 1 { 1 } else { messages * 10_000 });
    }
    let growth = program.peak_memory() - before;
    assert!(growth < MAX_GROWTH, "{growth} bytes more than {before}");
}
