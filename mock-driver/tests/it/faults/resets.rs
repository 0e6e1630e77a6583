//! The fault proxy in front of a driver that resets the stream of each call, as grpc-go's server does when a deadline
//! expires.

use std::convert::Infallible;
use std::error::Error;
use std::task::{Context, Poll};

use bytes::Bytes;
use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::snapshot_metadata_client::SnapshotMetadataClient;
use futures::stream;
use h2::Reason;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::fixed_reply::serve;
use super::proxy::front;
use crate::server::{connect, line_in};

/// A driver that sends some empty messages and resets the stream.
#[derive(Clone)]
struct Resets {
    messages: usize,
    reason: Reason,
}

impl Service<http::Request<Body>> for Resets {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let empty = || Ok(Frame::data(Bytes::from_static(&[0; 5])));
        let reset = Status::from(h2::Error::from(self.reason));
        let frames = (0..self.messages).map(move |_| empty()).chain([Err(reset)]);
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        let response = http::Response::builder().header("content-type", "application/grpc");
        Box::pin(async move { Ok(response.body(body).expect("must be a response")) })
    }
}

/// How a unary call and a stream end at a client: with a code, and the error code of the reset.
async fn ends(channel: Channel) -> [(Code, Option<Reason>); 2] {
    let unary = ControllerClient::new(channel.clone())
        .list_volumes(v1::ListVolumesRequest::default())
        .await
        .unwrap_err();
    let mut client = SnapshotMetadataClient::new(channel);
    let streamed = async {
        let request = v1::GetMetadataAllocatedRequest::default();
        let mut blocks = client.get_metadata_allocated(request).await?.into_inner();
        while blocks.message().await?.is_some() {}
        Ok::<_, Status>(())
    };
    [unary, streamed.await.unwrap_err()].map(|status| (status.code(), reason(&status)))
}

fn reason(status: &Status) -> Option<Reason> {
    let causes = std::iter::successors(status.source(), |cause| (*cause).source());
    let mut resets = causes.filter_map(|cause| cause.downcast_ref::<h2::Error>());
    resets.find(|error| error.is_reset()).and_then(h2::Error::reason)
}

#[tokio::test]
async fn reset_by_the_driver_reaches_the_client_as_a_reset() {
    for (reason, code) in [
        (Reason::CANCEL, Code::Cancelled),
        (Reason::REFUSED_STREAM, Code::Unavailable),
        (Reason::INTERNAL_ERROR, Code::Internal),
        (Reason::ENHANCE_YOUR_CALM, Code::ResourceExhausted),
    ] {
        for messages in [0, 1] {
            let directory = tempfile::tempdir().unwrap();
            let to = directory.path().join("driver.sock");
            let _behind = serve(&to, Resets { messages, reason });
            let (_front, _serving) = front(directory.path(), &to, &[]);
            let direct = ends(connect(&to).await).await;
            let proxied = ends(connect(&directory.path().join("csi.sock")).await).await;
            assert_eq!(direct, [(code, Some(reason)); 2], "{messages} messages");
            assert_eq!(proxied, direct, "{messages} messages");
        }
    }
}

#[tokio::test]
async fn journal_has_the_code_of_a_reset() {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("driver.sock");
    let reason = Reason::CANCEL;
    let _behind = serve(&to, Resets { messages: 0, reason });
    let (_front, _serving) = front(directory.path(), &to, &[]);
    ends(connect(&directory.path().join("csi.sock")).await).await;
    for method in [
        "/csi.v1.Controller/ListVolumes",
        "/csi.v1.SnapshotMetadata/GetMetadataAllocated",
    ] {
        let is_end = |line: &serde_json::Value| line["event"] == "end" && line["method"] == method;
        let line = line_in(&directory.path().join("journal"), is_end).await;
        assert_eq!(line["code"], "CANCELLED", "{line}");
    }
}
