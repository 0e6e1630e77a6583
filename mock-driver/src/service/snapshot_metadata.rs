//! The SnapshotMetadata service: which blocks of a snapshot hold data, and which differ from another
//! snapshot.

use std::sync::Arc;

use csi_proto::v1::snapshot_metadata_server::SnapshotMetadata;
use csi_proto::v1::{
    GetMetadataAllocatedRequest, GetMetadataAllocatedResponse, GetMetadataDeltaRequest,
    GetMetadataDeltaResponse,
};
use futures::stream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use crate::driver::Driver;
use crate::method::Method;

/// The SnapshotMetadata service of a driver.
#[derive(Clone, Debug)]
pub struct SnapshotMetadataService(pub Arc<Driver>);

#[tonic::async_trait]
impl SnapshotMetadata for SnapshotMetadataService {
    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<BoxStream<GetMetadataAllocatedResponse>>, Status> {
        let refusal = self.0.refuse(Method::GetMetadataAllocated.path(), request);
        refusal.map(|reply| reply.map(|reply| Box::pin(stream::iter([Ok(reply)])) as BoxStream<_>))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<BoxStream<GetMetadataDeltaResponse>>, Status> {
        let refusal = self.0.refuse(Method::GetMetadataDelta.path(), request);
        refusal.map(|reply| reply.map(|reply| Box::pin(stream::iter([Ok(reply)])) as BoxStream<_>))
    }
}
