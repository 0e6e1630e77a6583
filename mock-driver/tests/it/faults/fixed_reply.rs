//! The fault proxy in front of a driver that responds to each call with the same bytes.

use std::convert::Infallible;
use std::path::Path;
use std::task::{Context, Poll};

use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::{self, list_snapshots_response::Entry};
use http::HeaderMap;
use http_body_util::{BodyExt, Full};
use prost::Message;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};

use super::proxy::front;
use crate::server::{connect, line_in, mk_create};

/// More than the proxy's limit.
const LONG: usize = 17 << 20;

/// A driver that responds to all calls with this message.
#[derive(Clone)]
struct FixedReply(Vec<u8>);

impl Service<http::Request<Body>> for FixedReply {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        let length = u32::try_from(self.0.len()).unwrap().to_be_bytes();
        let body = [&[0], &length[..], &self.0].concat();
        Box::pin(async move {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().expect("must be a value"));
            let body = Full::from(body).with_trailers(std::future::ready(Some(Ok(trailers))));
            let response = http::Response::builder().header("content-type", "application/grpc");
            Ok(response.body(Body::new(body)).expect("must be a response"))
        })
    }
}

/// Serves all calls on a socket with this service.
pub(super) fn serve<S>(socket: &Path, service: S) -> JoinSet<()>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let listener = UnixListener::bind(socket).unwrap();
    let incoming = futures::stream::unfold(listener, async |listener| {
        let connection = listener.accept().await.map(|(connection, _)| connection);
        Some((connection, listener))
    });
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let server = tonic::transport::Server::builder();
        server.serve_with_incoming(service, incoming).await.unwrap();
    });
    serving
}

#[tokio::test]
async fn response_without_a_json_form_is_proxied_and_journaled() {
    let directory = tempfile::tempdir().unwrap();
    let snapshot = v1::Snapshot {
        snapshot_id: "snap-0".to_owned(),
        // Milliseconds, where CSI has seconds.
        creation_time: Some(prost_types::Timestamp {
            seconds: 1_700_000_000_000,
            nanos: 0,
        }),
        ..Default::default()
    };
    let reply = v1::ListSnapshotsResponse {
        entries: vec![Entry {
            snapshot: Some(snapshot),
        }],
        ..Default::default()
    };
    let _behind = serve(
        &directory.path().join("driver.sock"),
        FixedReply(reply.encode_to_vec()),
    );
    let (_front, _serving) = front(directory.path(), &directory.path().join("driver.sock"), &[]);
    let mut client = ControllerClient::new(connect(&directory.path().join("csi.sock")).await);
    let passed = client.list_snapshots(v1::ListSnapshotsRequest::default()).await;
    assert_eq!(passed.unwrap().into_inner(), reply);
    let shown = |line: &serde_json::Value| {
        let time = &line["response"]["entries"][0]["snapshot"]["creation_time"];
        line["event"] == "end" && time["seconds"] == 1_700_000_000_000_i64
    };
    line_in(&directory.path().join("journal"), shown).await;
}

#[tokio::test]
async fn messages_beyond_the_limit_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let reply = v1::ListVolumesResponse {
        next_token: "x".repeat(LONG),
        ..Default::default()
    };
    let _behind = serve(
        &directory.path().join("driver.sock"),
        FixedReply(reply.encode_to_vec()),
    );
    let (_front, _serving) = front(directory.path(), &directory.path().join("driver.sock"), &[]);
    let client = ControllerClient::new(connect(&directory.path().join("csi.sock")).await);
    let mut client = client.max_decoding_message_size(2 * LONG);
    let refused = client
        .list_volumes(v1::ListVolumesRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(
        refused.message().contains("reply is longer than the 16 MiB"),
        "{refused}"
    );

    let refused = client
        .create_volume(mk_create(&"x".repeat(LONG)))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(
        refused.message().contains("request is longer than the 16 MiB"),
        "{refused}"
    );
    let is_refused_create = |line: &serde_json::Value| {
        line["event"] == "end"
            && line["method"] == "/csi.v1.Controller/CreateVolume"
            && line["code"] == "RESOURCE_EXHAUSTED"
    };
    line_in(&directory.path().join("journal"), is_refused_create).await;
}
