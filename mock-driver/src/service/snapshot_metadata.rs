//! The SnapshotMetadata service: which blocks of a snapshot hold data, and which differ from another
//! snapshot.
//!
//! The blocks are found at once and then sent in messages of the size asked for. A stream that breaks is
//! taken up again by another call with another offset; nothing is kept for it here.

use std::ops::Range;
use std::sync::Arc;

use csi_proto::v1::snapshot_metadata_server::SnapshotMetadata;
use csi_proto::v1::{
    BlockMetadata, BlockMetadataType, GetMetadataAllocatedRequest, GetMetadataAllocatedResponse,
    GetMetadataDeltaRequest, GetMetadataDeltaResponse,
};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::controller::shape;
use crate::backend::{Array, Snapshot};
use crate::busy::{Share, Subject};
use crate::call::Rpc;
use crate::conduct::BlockRuns;
use crate::driver::Driver;
use crate::error::Error;
use crate::media::{BLOCK, Extent, Medium};
use crate::method::Method;
use crate::request::{self, Invalid};

/// The most blocks in one message unless the caller asks for fewer: far below what clients take.
const MESSAGE_BLOCKS: usize = 10_000;

/// The SnapshotMetadata service of a driver.
#[derive(Clone, Debug)]
pub struct SnapshotMetadataService(pub Arc<Driver>);

/// The blocks somebody asks for.
pub(crate) struct Span {
    base: Option<String>,
    target: String,
    offset: i64,
}

#[tonic::async_trait]
impl SnapshotMetadata for SnapshotMetadataService {
    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<BoxStream<GetMetadataAllocatedResponse>>, Status> {
        let max_results = request.get_ref().max_results;
        let messages = move |whole: &GetMetadataAllocatedResponse| {
            let message = |blocks| GetMetadataAllocatedResponse {
                block_metadata_type: whole.block_metadata_type,
                volume_capacity_bytes: whole.volume_capacity_bytes,
                block_metadata: blocks,
            };
            let parts = in_messages(&whole.block_metadata, max_results);
            parts.into_iter().map(message).collect()
        };
        self.0.answer_in_messages(request, messages).await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<BoxStream<GetMetadataDeltaResponse>>, Status> {
        let max_results = request.get_ref().max_results;
        let messages = move |whole: &GetMetadataDeltaResponse| {
            let message = |blocks| GetMetadataDeltaResponse {
                block_metadata_type: whole.block_metadata_type,
                volume_capacity_bytes: whole.volume_capacity_bytes,
                block_metadata: blocks,
            };
            let parts = in_messages(&whole.block_metadata, max_results);
            parts.into_iter().map(message).collect()
        };
        self.0.answer_in_messages(request, messages).await
    }
}

impl Rpc for GetMetadataAllocatedRequest {
    const METHOD: Method = Method::GetMetadataAllocated;
    /// All messages of the stream in one.
    type Reply = GetMetadataAllocatedResponse;
    type Plan = Span;

    fn check(&self) -> Result<Span, Invalid> {
        request::secrets(&self.secrets)?;
        request::count("max_results", self.max_results)?;
        Ok(Span {
            base: None,
            target: request::required("snapshot_id", &self.snapshot_id)?.to_owned(),
            offset: self.starting_offset,
        })
    }

    async fn act(span: Span, driver: &Driver) -> Result<Self::Reply, Error> {
        let (snapshot, blocks) = span.find(driver).await?;
        Ok(GetMetadataAllocatedResponse {
            block_metadata_type: kind(driver.conduct.block_runs).into(),
            volume_capacity_bytes: shape::bytes(snapshot.size_bytes),
            block_metadata: blocks,
        })
    }
}

impl Rpc for GetMetadataDeltaRequest {
    const METHOD: Method = Method::GetMetadataDelta;
    /// All messages of the stream in one.
    type Reply = GetMetadataDeltaResponse;
    type Plan = Span;

    fn check(&self) -> Result<Span, Invalid> {
        request::secrets(&self.secrets)?;
        request::count("max_results", self.max_results)?;
        Ok(Span {
            base: Some(request::required("base_snapshot_id", &self.base_snapshot_id)?.to_owned()),
            target: request::required("target_snapshot_id", &self.target_snapshot_id)?.to_owned(),
            offset: self.starting_offset,
        })
    }

    async fn act(span: Span, driver: &Driver) -> Result<Self::Reply, Error> {
        let (snapshot, blocks) = span.find(driver).await?;
        Ok(GetMetadataDeltaResponse {
            block_metadata_type: kind(driver.conduct.block_runs).into(),
            volume_capacity_bytes: shape::bytes(snapshot.size_bytes),
            block_metadata: blocks,
        })
    }
}

// === impl Span ===

impl Span {
    async fn find(self, driver: &Driver) -> Result<(Arc<Snapshot>, Vec<BlockMetadata>), Error> {
        let Self { base, target, offset } = self;
        // Their bytes are not taken away while they are looked at, or have gone with them before: a snapshot that
        // is being deleted must not pass for an empty one.
        let both = [Some(&target), base.as_ref()].into_iter().flatten();
        let subjects = both.map(|id| (Subject::Snapshot(id.clone()), Share::Reading));
        let _hands = driver.hands.hold_all(subjects.collect()).await;
        let both = |array: &Array| {
            let base = match &base {
                Some(base) => Some(array.snapshot(base)?.clone()),
                None => None,
            };
            Ok((base, array.snapshot(&target)?.clone()))
        };
        let (base, target) = driver.store.read(both).await?;
        let size = target.size_bytes;
        let runs = driver.conduct.block_runs;
        let end = match runs {
            BlockRuns::Variable => size,
            // All are equally long, so the last one ends behind the last byte of a size that is no multiple.
            BlockRuns::Fixed => size.next_multiple_of(BLOCK),
        };
        let offset = u64::try_from(offset)
            .ok()
            // At the end there is nothing more, which is no mistake: so ends whoever goes on by the last block.
            .filter(|offset| *offset <= end)
            .ok_or(Error::OffsetOutOfRange { offset, size })?;
        let medium = Medium::Snapshot(target.id.to_string());
        let extents = match base {
            None => driver.media.extents(&medium, offset).await?,
            Some(base) if base.source != target.source => {
                let reason = "must be a snapshot of the volume that target_snapshot_id was taken of";
                return Err(Invalid::new("base_snapshot_id", reason).into());
            }
            Some(base) => {
                let base = Medium::Snapshot(base.id.to_string());
                driver.media.delta(&base, &medium, offset).await?
            }
        };
        let blocks = in_blocks(&extents, offset..size, runs);
        Ok((target, blocks))
    }
}

/// What was found that reaches into a part of the disk, one block at a time or neighbours together.
fn in_blocks(extents: &[Extent], part: Range<u64>, runs: BlockRuns) -> Vec<BlockMetadata> {
    let metadata = |offset: u64, length: u64| BlockMetadata {
        byte_offset: shape::bytes(offset),
        size_bytes: shape::bytes(length),
    };
    let mut blocks = Vec::new();
    for extent in extents {
        let end = extent.end().min(part.end);
        if end <= part.start.max(extent.offset) {
            continue;
        }
        match runs {
            BlockRuns::Variable => blocks.push(metadata(extent.offset, end - extent.offset)),
            BlockRuns::Fixed => {
                let step = usize::try_from(BLOCK).unwrap_or(usize::MAX);
                blocks.extend(
                    (extent.offset..end)
                        .step_by(step)
                        .map(|offset| metadata(offset, BLOCK)),
                );
            }
        }
    }
    blocks
}

/// The blocks message by message. A snapshot without any has one message, which tells its size.
fn in_messages(blocks: &[BlockMetadata], max_results: i32) -> Vec<Vec<BlockMetadata>> {
    let asked = usize::try_from(max_results).unwrap_or(0);
    let size = if asked == 0 {
        MESSAGE_BLOCKS
    } else {
        asked.min(MESSAGE_BLOCKS)
    };
    if blocks.is_empty() {
        return vec![Vec::new()];
    }
    blocks.chunks(size).map(<[BlockMetadata]>::to_vec).collect()
}

fn kind(runs: BlockRuns) -> BlockMetadataType {
    match runs {
        BlockRuns::Fixed => BlockMetadataType::FixedLength,
        BlockRuns::Variable => BlockMetadataType::VariableLength,
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::v1::DeleteSnapshotRequest;
    use tokio_test::{assert_pending, task};

    use super::*;
    use crate::backend::WantedSnapshot;
    use crate::call;
    use crate::driver::Settings;

    /// A volume's size is a multiple of 512 and not always of a block.
    #[test]
    fn at_an_end_within_a_block_there_is_nothing_more() {
        let found = [Extent {
            offset: 0,
            length: 3 * BLOCK,
        }];
        let size = 2 * BLOCK + 512;
        let [block, end] = [BLOCK, size].map(shape::bytes);
        // From where, how, and the offsets and lengths.
        type Row<'a> = (u64, BlockRuns, &'a [(i64, i64)]);
        let table: [Row<'_>; 6] = [
            (0, BlockRuns::Variable, &[(0, end)]),
            (size, BlockRuns::Variable, &[]),
            (
                0,
                BlockRuns::Fixed,
                &[(0, block), (block, block), (2 * block, block)],
            ),
            (
                size - 1,
                BlockRuns::Fixed,
                &[(0, block), (block, block), (2 * block, block)],
            ),
            (size, BlockRuns::Fixed, &[]),
            (3 * BLOCK, BlockRuns::Fixed, &[]),
        ];
        for (from, how, expected) in table {
            let blocks = in_blocks(&found, from..size, how);
            let blocks: Vec<_> = blocks
                .iter()
                .map(|block| (block.byte_offset, block.size_bytes))
                .collect();
            assert_eq!(blocks, expected, "from {from}, {how:?}");
        }
    }

    #[tokio::test]
    async fn snapshot_that_is_being_deleted_is_waited_for_and_then_not_found() {
        let settings = Settings {
            premade: 1,
            ..Settings::default()
        };
        let (driver, _) = Driver::open(settings).unwrap();
        let wanted = WantedSnapshot {
            name: "s".to_owned(),
            source: "vol-0".to_owned(),
            parameters: std::collections::BTreeMap::new(),
            requirement: None,
        };
        let id = driver.create_snapshot(&wanted).await.unwrap().id.to_string();
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
        let deleting = driver.hands.hold_all(call::wants(&delete)).await.unwrap();
        let mut one = task::spawn(GetMetadataAllocatedRequest::act(
            allocated.check().unwrap(),
            &driver,
        ));
        let mut both = task::spawn(GetMetadataDeltaRequest::act(delta.check().unwrap(), &driver));
        assert_pending!(one.poll());
        assert_pending!(both.poll());
        driver.delete_snapshot(&id).await.unwrap();
        drop(deleting);
        assert_eq!(one.await.unwrap_err().code(), tonic::Code::NotFound);
        assert_eq!(both.await.unwrap_err().code(), tonic::Code::NotFound);
    }
}
