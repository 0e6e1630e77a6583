//! An OTLP collector that stores the received data.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use csi_e2e::mutex::lock;
use http_body_util::{BodyExt as _, Full};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost_reflect::bytes::Bytes;
use prost_reflect::prost::Message as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::transport::Server;
use tower::service_fn;

/// A running collector; ends when dropped.
pub(super) struct Collector {
    address: String,
    seen: Arc<Mutex<Vec<Bytes>>>,
    _server: JoinSet<()>,
}

// === impl Collector ===

impl Collector {
    pub(super) async fn serve() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("listen for traces")?;
        let address = format!("http://{}", listener.local_addr()?);
        let seen = Arc::<Mutex<Vec<Bytes>>>::default();
        let kept = seen.clone();
        let service = service_fn(move |request: http::Request<Body>| {
            let kept = kept.clone();
            async move {
                if let Ok(body) = request.into_body().collect().await {
                    let mut kept = lock(&kept);
                    kept.push(body.to_bytes());
                }
                // An empty message is a success.
                let mut response = http::Response::new(Body::new(Full::from(vec![0; 5])));
                let headers = response.headers_mut();
                headers.insert("content-type", http::HeaderValue::from_static("application/grpc"));
                headers.insert("grpc-status", http::HeaderValue::from_static("0"));
                Ok::<_, Infallible>(response)
            }
        });
        let mut server = JoinSet::new();
        server.spawn(async move {
            let served = Server::builder()
                .serve_with_incoming(service, TcpListenerStream::new(listener))
                .await;
            if let Err(error) = served {
                tracing::warn!(%error, "the collector ended");
            }
        });
        Ok(Self {
            address,
            seen,
            _server: server,
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// All received bytes.
    pub(super) fn seen(&self) -> Vec<u8> {
        self.requests().concat()
    }

    /// The received spans.
    pub(super) fn spans(&self) -> Result<Vec<Span>> {
        let mut spans = Vec::new();
        for request in self.requests() {
            // gRPC prefixes a message with a flag and its length; a unary call has one message.
            let message = request.get(5..).context("the request has no message")?;
            let request = ExportTraceServiceRequest::decode(message).context("the request is not OTLP")?;
            let scopes = request.resource_spans.into_iter().flat_map(|by| by.scope_spans);
            spans.extend(scopes.flat_map(|scope| scope.spans));
        }
        Ok(spans)
    }

    fn requests(&self) -> Vec<Bytes> {
        lock(&self.seen).clone()
    }
}
