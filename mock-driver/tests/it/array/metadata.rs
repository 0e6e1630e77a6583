//! The SnapshotMetadata service.

use std::fs;
use std::os::unix::fs::FileExt;

use csi_mock_driver::store::volume_files::FileId;
use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use csi_proto::v1::{BlockMetadata, BlockMetadataType, GetMetadataAllocatedRequest, GetMetadataDeltaRequest};
use tonic::{Code, Status};

use super::{MIB, World, assert_refused};

const BLOCK: i64 = 4096;

type Runs = Vec<(i64, i64)>;

fn runs(blocks: &[BlockMetadata]) -> Runs {
    blocks
        .iter()
        .map(|block| (block.byte_offset / BLOCK, block.size_bytes / BLOCK))
        .collect()
}

impl World {
    /// Writes blocks of the volume like a process on a node.
    async fn write(&self, volume: &str, blocks: &[u64], byte: u8) {
        let medium = FileId::Volume(volume.to_owned());
        let disk = self
            .server
            .driver()
            .volume_files
            .ensure(&medium, 10 << 20)
            .await
            .unwrap();
        let disk = fs::OpenOptions::new().write(true).open(disk).unwrap();
        for block in blocks {
            disk.write_all_at(&[byte; 4096], block * 4096).unwrap();
        }
        disk.sync_all().unwrap();
    }

    /// The messages of a stream, in blocks.
    async fn allocated(&self, snapshot: &str, offset: i64, max_results: i32) -> Result<Vec<Runs>, Status> {
        let mut client = SnapshotMetadataClient::new(self.server.channel().await);
        let request = GetMetadataAllocatedRequest {
            snapshot_id: snapshot.to_owned(),
            starting_offset: offset,
            max_results,
            ..Default::default()
        };
        let mut stream = client.get_metadata_allocated(request).await?.into_inner();
        let mut messages = Vec::new();
        while let Some(message) = stream.message().await? {
            assert_eq!(message.volume_capacity_bytes, 10 * MIB);
            messages.push(runs(&message.block_metadata));
        }
        Ok(messages)
    }

    async fn delta(&self, base: &str, target: &str, offset: i64) -> Result<Vec<Runs>, Status> {
        let mut client = SnapshotMetadataClient::new(self.server.channel().await);
        let request = GetMetadataDeltaRequest {
            base_snapshot_id: base.to_owned(),
            target_snapshot_id: target.to_owned(),
            starting_offset: offset,
            ..Default::default()
        };
        let mut stream = client.get_metadata_delta(request).await?.into_inner();
        let mut messages = Vec::new();
        while let Some(message) = stream.message().await? {
            assert_eq!(message.block_metadata_type(), BlockMetadataType::VariableLength);
            messages.push(runs(&message.block_metadata));
        }
        Ok(messages)
    }
}

#[tokio::test]
async fn written_and_changed_blocks_are_reported() {
    let mut world = World::start().await;
    let a = world.volume("a").await;
    let empty = world.snapshot("empty", &a).await;
    assert_eq!(
        world.allocated(&empty, 0, 0).await.unwrap(),
        [vec![]],
        "one message with the size"
    );
    world.write(&a, &[0, 1, 2, 100], 1).await;
    let first = world.snapshot("first", &a).await;
    world.write(&a, &[2, 200], 2).await;
    let second = world.snapshot("second", &a).await;

    assert_eq!(
        world.allocated(&first, 0, 0).await.unwrap(),
        [vec![(0, 3), (100, 1)]]
    );
    assert_eq!(
        world.allocated(&second, 0, 2).await.unwrap(),
        [vec![(0, 3), (100, 1)], vec![(200, 1)]]
    );
    assert_eq!(
        world.allocated(&second, 50 * BLOCK, 0).await.unwrap(),
        [vec![(100, 1), (200, 1)]]
    );
    assert_eq!(
        world.delta(&first, &second, 0).await.unwrap(),
        [vec![(2, 1), (200, 1)]]
    );
    assert_eq!(
        world.delta(&first, &second, 3 * BLOCK).await.unwrap(),
        [vec![(200, 1)]]
    );
    assert_eq!(world.delta(&second, &second, 0).await.unwrap(), [vec![]]);
    assert_eq!(
        world.delta(&empty, &first, 0).await.unwrap(),
        [vec![(0, 3), (100, 1)]]
    );
}

#[tokio::test]
async fn offset_at_the_end_returns_an_empty_message() {
    let mut world = World::start().await;
    let a = world.volume("a").await;
    world.write(&a, &[0, 7], 1).await;
    let snapshot = world.snapshot("s", &a).await;
    let end = 10 * MIB;
    assert_eq!(world.allocated(&snapshot, end, 0).await.unwrap(), [vec![]]);
    assert_eq!(world.delta(&snapshot, &snapshot, end).await.unwrap(), [vec![]]);
}

#[tokio::test]
async fn requests_are_refused_with_the_code_for_the_reason() {
    let mut world = World::start().await;
    let (a, b) = (world.volume("a").await, world.volume("b").await);
    let (of_a, of_b) = (world.snapshot("s", &a).await, world.snapshot("t", &b).await);
    let end = 10 * MIB;
    #[rustfmt::skip]
    let table = [
        ("none", world.allocated("", 0, 0).await, Code::InvalidArgument, "snapshot_id"),
        ("gone", world.allocated("gone", 0, 0).await, Code::NotFound, "gone"),
        ("negative", world.allocated(&of_a, -1, 0).await, Code::OutOfRange, "starting_offset"),
        ("past its end", world.allocated(&of_a, end + 1, 0).await, Code::OutOfRange, "starting_offset"),
        ("negative number", world.allocated(&of_a, 0, -1).await, Code::InvalidArgument, "max_results"),
        ("no base", world.delta("", &of_a, 0).await, Code::InvalidArgument, "base_snapshot_id"),
        ("no target", world.delta(&of_a, "", 0).await, Code::InvalidArgument, "target_snapshot_id"),
        ("base gone", world.delta("gone", &of_a, 0).await, Code::NotFound, "gone"),
        ("target gone", world.delta(&of_a, "gone", 0).await, Code::NotFound, "gone"),
        ("past the end", world.delta(&of_a, &of_a, end + 1).await, Code::OutOfRange, "starting_offset"),
        ("of two volumes", world.delta(&of_b, &of_a, 0).await, Code::InvalidArgument, "base_snapshot_id"),
    ];
    for (case, outcome, code, word) in table {
        assert_refused(case, outcome, code, &[word]);
    }
}

#[tokio::test]
async fn copies_have_the_data_of_their_source() {
    let mut world = World::start().await;
    let a = world.volume("a").await;
    world.write(&a, &[7], 1).await;
    let snapshot = world.snapshot("s", &a).await;
    world.write(&a, &[9], 1).await;
    let source = super::from_snapshot(&snapshot);
    let restore = csi_proto::v1::CreateVolumeRequest {
        volume_content_source: source,
        ..super::mk_volume("b")
    };
    let b = world.create(restore).await.unwrap().volume_id;
    let clone = csi_proto::v1::CreateVolumeRequest {
        volume_content_source: super::from_volume(&a),
        ..super::mk_volume("c")
    };
    let c = world.create(clone).await.unwrap().volume_id;
    world.delete(&a).await.unwrap();
    world.drop_snapshot(&snapshot).await.unwrap();
    let group = world.group("g", &[&b, &c]).await.unwrap();
    let mut found = Vec::new();
    for member in &group.snapshots {
        found.push((
            member.source_volume_id.clone(),
            world.allocated(&member.snapshot_id, 0, 0).await.unwrap(),
        ));
    }
    found.sort();
    let mut expected = vec![(b, vec![vec![(7, 1)]]), (c, vec![vec![(7, 1), (9, 1)]])];
    expected.sort();
    assert_eq!(found, expected);
}
