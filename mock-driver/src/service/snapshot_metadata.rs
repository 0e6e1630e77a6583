//! The SnapshotMetadata service: the allocated blocks of a snapshot, and those that differ from another snapshot.
//!
//! The extents are looked up page by page while the client reads the messages: a volume of 1 TiB in which every second block
//! is allocated has 134 million. The pipeline and its faults see the first page. The snapshot is locked for each page only: a client that reads slowly does not delay its
//! deletion, after which the stream ends with NOT_FOUND. A client resumes an interrupted stream with another call and
//! an offset; the driver keeps no state for it.

use std::ops::Range;
use std::sync::Arc;

use csi_proto::v1::snapshot_metadata_server::SnapshotMetadata;
use csi_proto::v1::{
    BlockMetadata, BlockMetadataType, GetMetadataAllocatedRequest, GetMetadataAllocatedResponse,
    GetMetadataDeltaRequest, GetMetadataDeltaResponse,
};
use futures::{Stream, StreamExt, TryStreamExt, future, stream};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::DriverService;
use super::controller::shape;
use crate::array::{Array, Snapshot};
use crate::driver::Driver;
use crate::driver::error::Error;
use crate::driver::locks::{Key, LockMode, Scope};
use crate::rpc::method::Method;
use crate::rpc::validate::{self, Invalid};
use crate::service::call::{Rpc, RpcRequest};
use crate::store::volume_files::{Extent, FileId};

/// Maximum number of blocks per message unless the request asks for fewer: far below the message size limits of clients.
/// Also the number of extents per page.
const MESSAGE_BLOCKS: usize = 10_000;

#[derive(Clone)]
pub(crate) struct Span {
    base: Option<String>,
    target: String,
    offset: i64,
}

/// Implements the service and its RPCs, which differ in the requested part only.
macro_rules! snapshot_metadata {
    ($($method:ident($request:ident) -> $reply:ident, $rpc:ident, $span:expr;)+) => {
        #[tonic::async_trait]
        impl SnapshotMetadata for DriverService {
            $(async fn $method(
                &self,
                request: Request<$request>,
            ) -> Result<Response<BoxStream<$reply>>, Status> {
                let max_results = request.get_ref().max_results;
                let span = request.get_ref().validate();
                let messages = |first: &$reply| {
                    let header = $reply {
                        block_metadata: Vec::new(),
                        ..*first
                    };
                    let first = first.block_metadata.clone();
                    let messages = messages(self.0.clone(), span, first, max_results);
                    messages.map_ok(move |block_metadata| $reply { block_metadata, ..header })
                };
                self.0.answer_in_messages(request, messages).await
            })+
        }

        $(impl RpcRequest for $request {
            /// The first page, with adjacent blocks merged.
            type Reply = $reply;

            const METHOD: Method = Method::$rpc;
        }

        impl Rpc for $request {
            type Params = Span;

            fn validate(&self) -> Result<Span, Invalid> {
                validate::count("max_results", self.max_results)?;
                let span: fn(&Self) -> Result<Span, Invalid> = $span;
                span(self)
            }

            async fn execute(span: Span, driver: &Driver) -> Result<$reply, Error> {
                let (snapshot, block_metadata) = span.find(driver).await?;
                Ok($reply {
                    block_metadata_type: BlockMetadataType::VariableLength.into(),
                    volume_capacity_bytes: shape::bytes(snapshot.size_bytes),
                    block_metadata,
                })
            }
        })+
    };
}

snapshot_metadata! {
    get_metadata_allocated(GetMetadataAllocatedRequest) -> GetMetadataAllocatedResponse,
        GetMetadataAllocated, |request| Ok(Span {
            base: None,
            target: validate::required("snapshot_id", &request.snapshot_id)?.to_owned(),
            offset: request.starting_offset,
        });
    get_metadata_delta(GetMetadataDeltaRequest) -> GetMetadataDeltaResponse,
        GetMetadataDelta, |request| Ok(Span {
            base: Some(validate::required("base_snapshot_id", &request.base_snapshot_id)?.to_owned()),
            target: validate::required("target_snapshot_id", &request.target_snapshot_id)?.to_owned(),
            offset: request.starting_offset,
        });
}

// === impl Span ===

impl Span {
    /// The span after `page`, or `None` if `page` is the last one.
    fn after(self, page: &[BlockMetadata]) -> Option<Self> {
        let last = page.last().filter(|_| page.len() >= MESSAGE_BLOCKS)?;
        Some(Self {
            offset: last.byte_offset + last.size_bytes,
            ..self
        })
    }

    /// The first page.
    async fn find(self, driver: &Driver) -> Result<(Arc<Snapshot>, Vec<BlockMetadata>), Error> {
        let Self { base, target, offset } = self;
        // Locked against deletion: a snapshot that is being deleted must not look like an empty one.
        let both = [Some(&target), base.as_ref()].into_iter().flatten();
        let keys = both.map(|id| (Key::Snapshot(id.clone()), LockMode::Shared));
        let _locked = driver.locks.lock(Scope::Operation, keys.collect()).await?;
        let both = |array: &Array| {
            let base = match &base {
                Some(base) => Some(array.snapshot(base)?.clone()),
                None => None,
            };
            Ok((base, array.snapshot(&target)?.clone()))
        };
        let (base, target) = driver.store.read(both).await?;
        let size = target.size_bytes;
        let offset = u64::try_from(offset)
            .ok()
            // An offset at the end is no error: a client that continues after the last block gets an empty list.
            .filter(|offset| *offset <= size)
            .ok_or(Error::OffsetOutOfRange { offset, size })?;
        let file_id = FileId::Snapshot(target.id.to_string());
        if base.as_ref().is_some_and(|base| base.source != target.source) {
            let reason = "must be a snapshot of the volume that target_snapshot_id was taken of";
            return Err(Invalid::new("base_snapshot_id", reason).into());
        }
        let base = base.map(|base| FileId::Snapshot(base.id.to_string()));
        let files = &driver.volume_files;
        let extents = files
            .extents(base.as_ref(), &file_id, offset, MESSAGE_BLOCKS)
            .await?;
        Ok((target, clip(&extents, offset..size)))
    }
}

/// The extents within a part of the disk, clipped to the part.
fn clip(extents: &[Extent], part: Range<u64>) -> Vec<BlockMetadata> {
    let reaching = extents
        .iter()
        .filter(|extent| extent.end().min(part.end) > part.start.max(extent.offset));
    reaching
        .map(|extent| BlockMetadata {
            byte_offset: shape::bytes(extent.offset),
            size_bytes: shape::bytes(extent.end().min(part.end) - extent.offset),
        })
        .collect()
}

fn messages(
    driver: Arc<Driver>,
    span: Result<Span, Invalid>,
    first: Vec<BlockMetadata>,
    max_results: i32,
) -> impl Stream<Item = Result<Vec<BlockMetadata>, Error>> + Send {
    let rest = span.ok().and_then(|span| span.after(&first));
    let pages = stream::try_unfold(rest, move |rest| {
        let driver = driver.clone();
        async move {
            let Some(span) = rest else { return Ok(None) };
            let (_, page) = span.clone().find(&driver).await?;
            let rest = span.after(&page);
            Ok((!page.is_empty()).then_some((page, rest)))
        }
    });
    let pages = stream::once(future::ready(Ok::<_, Error>(first))).chain(pages);
    let messages = pages.map_ok(move |page| stream::iter(in_messages(page, max_results)).map(Ok));
    messages.try_flatten()
}

/// Splits the blocks of a page into messages. A snapshot without blocks has one message with its size.
fn in_messages(
    extents: Vec<BlockMetadata>,
    max_results: i32,
) -> impl Iterator<Item = Vec<BlockMetadata>> + Send {
    let asked = usize::try_from(max_results).unwrap_or(0);
    let size = if asked == 0 {
        MESSAGE_BLOCKS
    } else {
        asked.min(MESSAGE_BLOCKS)
    };
    let mut blocks = extents.into_iter();
    let mut is_first = true;
    std::iter::from_fn(move || {
        let message: Vec<_> = blocks.by_ref().take(size).collect();
        let is_wanted = is_first || !message.is_empty();
        is_first = false;
        is_wanted.then_some(message)
    })
}

#[cfg(test)]
mod tests;
