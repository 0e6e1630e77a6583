//! Sends finished spans to the collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;
use tower::ServiceExt as _;

use super::wire::{self, KeyValue, Value};
use crate::grpc::readable;
use crate::report::{self, chain};

/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// Spans in one request: some 500 kB, far below the 4 MB that collectors take.
const BATCH: usize = 512;
/// How long a request may take before its spans are given up.
const REQUEST: Duration = Duration::from_secs(5);
/// How long all that is left may take when work is over. Nobody's shutdown should wait for a trace.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// A collector's address.
#[derive(Clone, Debug)]
pub struct Endpoint(tonic::transport::Endpoint);

/// An address that no collector can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the address of an OTLP/gRPC collector in clear text: give it as in http://collector:4317 \
     (for TLS, send to a collector beside you)"
)]
pub struct EndpointError(String);

/// See the module.
#[derive(Debug)]
pub struct Exporter {
    channel: Channel,
    spans: mpsc::Receiver<wire::Span>,
    /// The batch that is being put together.
    gathered: Vec<wire::Span>,
    dropped: Arc<AtomicU64>,
    /// Whether it is known, and was told, that nobody takes our spans.
    failing: bool,
}

// === impl Endpoint ===

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(address: &str) -> Result<Self, Self::Err> {
        let wrong = || EndpointError(report::address(address));
        let with_scheme = if address.contains("://") {
            address.to_owned()
        } else {
            format!("http://{address}")
        };
        let uri: http::Uri = with_scheme.parse().map_err(|_| wrong())?;
        let plain = uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty());
        // The method is the path; a path of its own belongs to OTLP over HTTP.
        if !plain || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong());
        }
        let endpoint = tonic::transport::Endpoint::from(uri)
            .connect_timeout(REQUEST)
            .timeout(REQUEST);
        Ok(Self(endpoint))
    }
}

// === impl Exporter ===

impl Exporter {
    pub(super) fn new(
        Endpoint(endpoint): &Endpoint,
        spans: mpsc::Receiver<wire::Span>,
        dropped: Arc<AtomicU64>,
    ) -> Self {
        Self {
            channel: endpoint.connect_lazy(),
            spans,
            gathered: Vec::new(),
            dropped,
            failing: false,
        }
    }

    /// Sends spans in batches until `stop`, then what is left, for at most two seconds.
    ///
    /// # Cancellation
    ///
    /// Spans that were not sent are lost.
    pub async fn run(mut self, stop: CancellationToken) {
        while let Some(true) = stop.run_until_cancelled(self.gather()).await {
            // A request under way is finished; its own deadline is short.
            self.send().await;
        }
        let rest = async {
            while !self.gathered.is_empty() || !self.spans.is_empty() {
                while self.gathered.len() < BATCH
                    && let Ok(span) = self.spans.try_recv()
                {
                    self.gathered.push(span);
                }
                self.send().await;
            }
        };
        if timeout(LAST_REQUESTS, rest).await.is_err() {
            tracing::warn!("not all traces could be sent before the end");
        }
    }

    /// Gathers the next spans to be sent; false when there will be no more. Cancelling it loses none.
    async fn gather(&mut self) -> bool {
        let Self { spans, gathered, .. } = self;
        if gathered.is_empty() && spans.recv_many(gathered, BATCH).await == 0 {
            return false;
        }
        let deadline = Instant::now() + GATHER;
        while gathered.len() < BATCH {
            let room = BATCH - gathered.len();
            match timeout_at(deadline, spans.recv_many(gathered, room)).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
        }
        true
    }

    async fn send(&mut self) {
        let spans = std::mem::take(&mut self.gathered);
        let count = spans.len();
        let sent = timeout(REQUEST, self.export(spans)).await;
        let failure = match sent {
            Ok(Ok(answer)) => {
                if let Some(partial) = answer
                    .partial_success
                    .filter(|partial| partial.rejected_spans > 0)
                {
                    tracing::debug!(
                        spans = partial.rejected_spans,
                        error = partial.error_message,
                        "the collector did not take all spans"
                    );
                }
                if std::mem::take(&mut self.failing) {
                    let dropped = self.dropped.swap(0, Ordering::Relaxed);
                    tracing::info!(dropped, "traces are sent again");
                }
                return;
            }
            Ok(Err(status)) => chain(&status),
            Err(_) => "no answer in time".to_owned(),
        };
        self.dropped
            .fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(
                error = failure,
                "traces cannot be sent to --otlp-endpoint and are dropped until they can"
            );
        }
    }

    async fn export(&self, spans: Vec<wire::Span>) -> Result<wire::ExportResponse, tonic::Status> {
        let request = wire::ExportRequest {
            resource_spans: vec![wire::ResourceSpans {
                resource: Some(resource()),
                scope_spans: vec![wire::ScopeSpans {
                    scope: Some(wire::Scope {
                        name: "csi-attacher".to_owned(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                    }),
                    spans,
                }],
            }],
        };
        let mut client = Grpc::new(self.channel.clone().map_response(readable));
        client
            .ready()
            .await
            .map_err(|error| tonic::Status::unavailable(chain(&error)))?;
        let codec: ProstCodec<wire::ExportRequest, wire::ExportResponse> = ProstCodec::default();
        let path = PathAndQuery::from_static(wire::EXPORT);
        let answer = client.unary(tonic::Request::new(request), path, codec).await?;
        Ok(answer.into_inner())
    }
}

fn resource() -> wire::Resource {
    let text = |key: &str, value: &str| KeyValue::new(key, Value::Text(value.to_owned()));
    wire::Resource {
        attributes: vec![
            text("service.name", "csi-attacher"),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ],
    }
}
