//! Export of finished spans with OpenTelemetry's batch processor and OTLP exporter.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use opentelemetry::trace::{Event, Status};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{ExporterBuildError, RetryPolicy, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanExporter, SpanProcessor,
};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::id::UidGenerator;
use crate::report::{self, chain};

/// Maximum delay of a batch.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Maximum spans of a request: about 500 kB, below the 4 MB that collectors accept.
const BATCH_SPANS: usize = 512;
/// Maximum finished spans in the queue: some seconds of a burst, at about 1 kB each.
const QUEUE_SPANS: usize = 4096;
/// Timeout of a request; then its spans are dropped.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the last export at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum bytes of a text, as in a VolumeAttachment's status. The SDK has no limit.
const TEXT_BYTES: usize = 1024;
/// Maximum events of a span, for attempts that repeat a request often.
const EVENTS: u32 = 32;

/// A collector's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    url: String,
    /// Root certificates in PEM, instead of the system's.
    certificate: Option<PathBuf>,
}

/// Invalid settings.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum ExportError {
    #[error("cannot read the certificate file of the OTLP collector {0:?}")]
    Certificate(PathBuf, #[source] io::Error),
    #[error("cannot send traces to the OTLP collector")]
    Build(#[from] ExporterBuildError),
}

/// Exports finished spans in the background until [`Exporter::run`] ends.
#[derive(Debug)]
pub struct Exporter(SdkTracerProvider);

/// Limits the texts of finished spans and the number of queued spans.
#[derive(Debug)]
struct BoundedProcessor<P> {
    inner: P,
    queue: Arc<Queue>,
}

/// Logs the first failed and the first successful export.
#[derive(Debug)]
struct ReportingExporter<E> {
    inner: E,
    queue: Arc<Queue>,
    failing: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    /// Spans in the processor.
    spans: AtomicUsize,
    /// Spans dropped since the last successful export.
    dropped: AtomicU64,
}

// === impl Endpoint ===

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(address: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "{:?} is not the address of an OTLP/gRPC collector: give it as in http://collector:4317 or \
                 https://collector:4317",
                report::address(address)
            )
        };
        let url = if address.contains("://") {
            address.to_owned()
        } else {
            format!("http://{address}")
        };
        let uri: http::Uri = url.parse().map_err(|_| wrong())?;
        let known = matches!(uri.scheme_str(), Some("http" | "https"));
        let plain = uri
            .authority()
            .is_some_and(|authority| !authority.host().is_empty() && !authority.as_str().contains('@'));
        // gRPC's method is the path; only OTLP over HTTP has a path of its own.
        if !known || !plain || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong());
        }
        Ok(Self {
            url,
            certificate: None,
        })
    }
}

impl Endpoint {
    /// Trusts the root certificates in this file, and no others.
    #[must_use]
    pub fn trusting(self, certificate: Option<PathBuf>) -> Self {
        Self { certificate, ..self }
    }

    /// Without a certificate file the system's root certificates, or in an image without them those that are linked in.
    fn tls(&self) -> Result<ClientTlsConfig, ExportError> {
        let tls = ClientTlsConfig::new();
        let Some(path) = &self.certificate else {
            return Ok(match rustls_native_certs::load_native_certs().certs.is_empty() {
                true => tls.with_webpki_roots(),
                false => tls.with_native_roots(),
            });
        };
        let pem = std::fs::read(path).map_err(|source| ExportError::Certificate(path.clone(), source))?;
        Ok(tls.ca_certificate(Certificate::from_pem(pem)))
    }
}

// === impl Exporter ===

impl Exporter {
    /// Connects with the first export.
    pub(super) fn new(endpoint: &Endpoint) -> Result<Self, ExportError> {
        let mut exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&endpoint.url)
            .with_timeout(REQUEST_TIMEOUT)
            .with_retry_policy(RetryPolicy::disabled());
        if endpoint.url.starts_with("https:") {
            exporter = exporter.with_tls_config(endpoint.tls()?);
        }
        let queue = Arc::new(Queue::default());
        let exporter = ReportingExporter {
            inner: exporter.build()?,
            queue: queue.clone(),
            failing: AtomicBool::new(false),
        };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE_SPANS)
            .with_max_export_batch_size(BATCH_SPANS)
            .with_scheduled_delay(BATCH_DELAY)
            .build();
        // It exports in its own thread, over a connection of this runtime.
        let inner = BatchSpanProcessor::builder(exporter)
            .with_batch_config(config)
            .build();
        Ok(Self(provider(BoundedProcessor { inner, queue })))
    }

    pub(super) fn provider(&self) -> &SdkTracerProvider {
        &self.0
    }

    /// Waits for `stop`, then exports the queued spans for at most two seconds.
    pub async fn run(self, stop: CancellationToken) {
        stop.cancelled().await;
        let (done_tx, done) = oneshot::channel();
        // The shutdown blocks its thread until this one has polled the connection (opentelemetry-rust#2583).
        thread::spawn(move || {
            let result = self.0.shutdown_with_timeout(SHUTDOWN_TIMEOUT);
            done_tx.send(result).ok();
        });
        match timeout(SHUTDOWN_TIMEOUT, done).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => {
                tracing::warn!(error = chain(&error), "shutdown before all traces were exported");
            }
            Ok(Err(_)) | Err(_) => tracing::warn!("shutdown before all traces were exported"),
        }
    }
}

/// A provider that passes finished spans to `processor`.
pub(super) fn provider(processor: impl SpanProcessor + 'static) -> SdkTracerProvider {
    let resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", "csi-attacher"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        ])
        .build();
    SdkTracerProvider::builder()
        .with_id_generator(UidGenerator::default())
        .with_max_events_per_span(EVENTS)
        .with_resource(resource)
        .with_span_processor(processor)
        .build()
}

// === impl BoundedProcessor ===

impl<P: SpanProcessor> SpanProcessor for BoundedProcessor<P> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, mut span: SpanData) {
        if self.queue.spans.fetch_add(1, Ordering::Relaxed) >= QUEUE_SPANS {
            self.queue.spans.fetch_sub(1, Ordering::Relaxed);
            self.queue.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        cut(&mut span);
        self.inner.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Cuts the texts of a span to [`TEXT_BYTES`].
pub(super) fn cut(span: &mut SpanData) {
    fn shorter(text: &str) -> Option<String> {
        (text.len() > TEXT_BYTES).then(|| text[..text.floor_char_boundary(TEXT_BYTES)].to_owned())
    }
    let cut_all = |pairs: &mut [KeyValue]| {
        for pair in pairs {
            if let Value::String(text) = &pair.value
                && let Some(text) = shorter(text.as_str())
            {
                pair.value = Value::String(text.into());
            }
        }
    };
    cut_all(&mut span.attributes);
    for Event { name, attributes, .. } in &mut span.events.events {
        if let Some(text) = shorter(name) {
            *name = text.into();
        }
        cut_all(attributes);
    }
    if let Status::Error { description } = &mut span.status
        && let Some(text) = shorter(description)
    {
        *description = text.into();
    }
}

// === impl ReportingExporter ===

impl<E: SpanExporter> SpanExporter for ReportingExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        self.queue.spans.fetch_sub(count, Ordering::Relaxed);
        let result = self.inner.export(batch).await;
        match &result {
            Ok(()) => {
                if self.failing.swap(false, Ordering::Relaxed) {
                    let dropped = self.queue.dropped.swap(0, Ordering::Relaxed);
                    tracing::info!(dropped, "trace export works again");
                }
            }
            Err(error) => {
                let count = u64::try_from(count).unwrap_or(u64::MAX);
                self.queue.dropped.fetch_add(count, Ordering::Relaxed);
                if !self.failing.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        error = chain(error),
                        "cannot send traces to --otlp-endpoint; dropping them until it answers"
                    );
                }
            }
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Keeps spans and exports none.
    #[derive(Debug, Default)]
    struct Held(Mutex<usize>);

    impl SpanProcessor for Held {
        fn on_start(&self, _: &mut Span, _: &Context) {}

        fn on_end(&self, _: SpanData) {
            *self.0.lock().unwrap() += 1;
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    #[test]
    fn drops_and_counts_spans_beyond_the_queue() {
        use opentelemetry::trace::{Tracer as _, TracerProvider as _};
        let queue = Arc::new(Queue::default());
        let processor = BoundedProcessor {
            inner: Held::default(),
            queue: queue.clone(),
        };
        let tracer = provider(processor).tracer("test");
        for _ in 0..QUEUE_SPANS + 3 {
            drop(tracer.start("attach"));
        }
        assert_eq!(queue.spans.load(Ordering::Relaxed), QUEUE_SPANS);
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn accepts_urls_without_path_and_credentials() {
        for address in ["c:4317", "http://c:4317", "https://c:4317/", "http://[::1]:4317"] {
            assert!(address.parse::<Endpoint>().is_ok(), "{address}");
        }
        for address in [
            "http://",
            "http://c:4318/v1/traces",
            "a b",
            "http://c?x",
            "unix:///run/c.sock",
        ] {
            assert!(address.parse::<Endpoint>().is_err(), "{address}");
        }
        let error = "https://user:hunter2@c:4317".parse::<Endpoint>().unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}
