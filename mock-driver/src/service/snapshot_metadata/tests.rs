use std::fs;
use std::os::unix::fs::FileExt;

use csi_proto::v1::DeleteSnapshotRequest;
use tokio_test::{assert_pending, task};

use super::*;
use crate::array::CreateSnapshotParams;
use crate::driver::Settings;
use crate::store::volume_files::BLOCK;

async fn mk_snapshot(driver: &Driver, name: &str) -> String {
    let wanted = CreateSnapshotParams {
        name: name.to_owned(),
        source: "vol-0".to_owned(),
        parameters: std::collections::BTreeMap::new(),
        requirement: None,
    };
    driver.create_snapshot(&wanted).await.unwrap().id.to_string()
}

/// A volume's size is a multiple of 512 and not always of a block.
#[test]
fn at_an_end_within_a_block_there_is_nothing_more() {
    let found = [Extent {
        offset: 0,
        length: 3 * BLOCK,
    }];
    let size = 2 * BLOCK + 512;
    let end = shape::bytes(size);
    // (from where, offsets and lengths)
    let table: [(u64, &[(i64, i64)]); 3] = [(0, &[(0, end)]), (size - 1, &[(0, end)]), (size, &[])];
    for (from, expected) in table {
        let blocks = clip(&found, from..size).into_iter();
        let blocks: Vec<_> = blocks
            .map(|block| (block.byte_offset, block.size_bytes))
            .collect();
        assert_eq!(blocks, expected, "from {from}");
    }
}

#[tokio::test]
async fn snapshot_that_is_being_deleted_is_waited_for_and_then_not_found() {
    let settings = Settings {
        initial_volumes: 1,
        ..Settings::default()
    };
    let (driver, _) = Driver::open(settings).unwrap();
    let id = mk_snapshot(&driver, "s").await;
    let delete = DeleteSnapshotRequest {
        snapshot_id: id.clone(),
        ..DeleteSnapshotRequest::default()
    };
    let allocated = GetMetadataAllocatedRequest {
        snapshot_id: id.clone(),
        ..GetMetadataAllocatedRequest::default()
    };
    let delta = GetMetadataDeltaRequest {
        base_snapshot_id: id.clone(),
        target_snapshot_id: id.clone(),
        ..GetMetadataDeltaRequest::default()
    };
    // As the call has it that deletes the snapshot, from before the array forgets it until its bytes are gone.
    let deleting = driver.locks.lock(Scope::Operation, delete.keys()).await.unwrap();
    let mut one = task::spawn(GetMetadataAllocatedRequest::execute(
        allocated.validate().unwrap(),
        &driver,
    ));
    let mut both = task::spawn(GetMetadataDeltaRequest::execute(
        delta.validate().unwrap(),
        &driver,
    ));
    assert_pending!(one.poll());
    assert_pending!(both.poll());
    driver.delete_snapshot(&id).await.unwrap();
    drop(deleting);
    assert_eq!(one.await.unwrap_err().code(), tonic::Code::NotFound);
    assert_eq!(both.await.unwrap_err().code(), tonic::Code::NotFound);
}

/// A snapshot in which every second block is allocated, with one block more than fits in a page.
async fn mk_fragmented(driver: &Driver) -> String {
    let source = FileId::Volume("vol-0".to_owned());
    let blocks = MESSAGE_BLOCKS as u64 + 1;
    let disk = driver
        .volume_files
        .ensure(&source, 2 * blocks * BLOCK)
        .await
        .unwrap();
    let disk = fs::OpenOptions::new().write(true).open(disk).unwrap();
    for block in 0..blocks {
        disk.write_all_at(&[1], 2 * block * BLOCK).unwrap();
    }
    mk_snapshot(driver, "fragmented").await
}

#[tokio::test]
async fn fragmented_snapshot_is_read_page_by_page() {
    let mut settings = Settings {
        initial_volumes: 1,
        ..Settings::default()
    };
    settings.array.sizes.default = 1 << 30;
    let (driver, _) = Driver::open(settings).unwrap();
    let blank = mk_snapshot(&driver, "blank").await;
    let target = mk_fragmented(&driver).await;
    let expected = (0..=shape::bytes(MESSAGE_BLOCKS as u64)).map(|block| 2 * block * shape::bytes(BLOCK));
    let expected: Vec<_> = expected.collect();
    for base in [None, Some(blank)] {
        let span = Span {
            base,
            target: target.clone(),
            offset: 0,
        };
        let (_, first) = span.clone().find(&driver).await.unwrap();
        assert_eq!(first.len(), MESSAGE_BLOCKS, "the rest is not in memory yet");
        let all = messages(driver.clone(), Ok(span), first, 3);
        let all: Vec<_> = all.try_collect().await.unwrap();
        assert!(all.iter().all(|message| (1..=3).contains(&message.len())));
        let offsets = all.iter().flatten().map(|block| block.byte_offset);
        assert_eq!(offsets.collect::<Vec<_>>(), expected);
    }

    let span = Span {
        base: None,
        target: target.clone(),
        offset: 0,
    };
    let (_, first) = span.clone().find(&driver).await.unwrap();
    let mut stream = Box::pin(messages(driver.clone(), Ok(span), first, 0));
    assert_eq!(stream.next().await.unwrap().unwrap().len(), MESSAGE_BLOCKS);
    driver.delete_snapshot(&target).await.unwrap();
    let refused = stream.next().await.unwrap().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
    assert!(stream.next().await.is_none());
}
