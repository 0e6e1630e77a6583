//! Export of traces to a collector over a real connection.

use std::time::Duration;

use csi_attacher::trace::{self, Endpoint, Exporter};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::Registry;
use tracing_subscriber::layer::SubscriberExt as _;

/// Timeout for prompt events, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(20);

struct Collector {
    /// Never responds.
    hangs: bool,
    seen_tx: mpsc::UnboundedSender<ExportTraceServiceRequest>,
}

struct Fixture {
    exporter: JoinHandle<()>,
    stop: CancellationToken,
    _traced: DefaultGuard,
}

// === impl Fixture ===

impl Fixture {
    /// Exports the traces of this thread to `endpoint`.
    fn new(endpoint: &Endpoint) -> Self {
        let (layer, exporter) = trace::to(endpoint).expect("an exporter");
        let traced = tracing::subscriber::set_default(Registry::default().with(layer));
        let stop = CancellationToken::new();
        Self {
            exporter: start(exporter, stop.clone()),
            stop,
            _traced: traced,
        }
    }

    /// Stops the exporter and returns the duration of its shutdown.
    async fn end(self) -> Duration {
        let begin = Instant::now();
        self.stop.cancel();
        timeout(SOON, self.exporter)
            .await
            .expect("the exporter must end")
            .expect("without a panic");
        begin.elapsed()
    }
}

#[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
fn start(exporter: Exporter, stop: CancellationToken) -> JoinHandle<()> {
    tokio::spawn(exporter.run(stop))
}

// === impl Collector ===

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.seen_tx.send(request.into_inner()).expect("the test listens");
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Starts a collector; returns its port and the requests that it receives.
async fn collector(
    hangs: bool,
    tls: Option<ServerTlsConfig>,
) -> (u16, mpsc::UnboundedReceiver<ExportTraceServiceRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("a bound port").port();
    let (seen_tx, seen) = mpsc::unbounded_channel();
    let mut server = Server::builder();
    if let Some(tls) = tls {
        server = server.tls_config(tls).expect("a certificate");
    }
    let service = TraceServiceServer::new(Collector { hangs, seen_tx });
    #[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
    tokio::spawn(async move {
        let incoming = TcpListenerStream::new(listener);
        server.serve_with_incoming(service, incoming).await.ok();
    });
    (port, seen)
}

fn endpoint(scheme: &str, port: u16) -> Endpoint {
    format!("{scheme}://127.0.0.1:{port}")
        .parse()
        .expect("an address")
}

fn attempt(name: &str) {
    drop(tracing::info_span!(target: "csi_attacher::controller", "attach", va = name));
}

fn spans(request: ExportTraceServiceRequest) -> Vec<Span> {
    let mut resources = request.resource_spans;
    let resource = resources.remove(0);
    assert_eq!(resources, []);
    let resource_text = format!("{:?}", resource.resource);
    assert!(
        resource_text.contains("service.name") && resource_text.contains("csi-attacher"),
        "{resource_text}"
    );
    resource
        .scope_spans
        .into_iter()
        .flat_map(|scope| scope.spans)
        .collect()
}

#[tokio::test]
async fn exports_spans_while_running_and_the_rest_at_shutdown() {
    let (port, mut seen) = collector(false, None).await;
    let fixture = Fixture::new(&endpoint("http", port));
    attempt("first");
    let first = timeout(SOON, seen.recv())
        .await
        .expect("soon")
        .expect("a request");
    assert_eq!(spans(first).len(), 1);
    for _ in 0..1000 {
        attempt("later");
    }
    fixture.end().await;
    let mut later = 0;
    while let Ok(request) = seen.try_recv() {
        later += spans(request).len();
    }
    assert_eq!(later, 1000);
}

#[tokio::test]
async fn exports_spans_over_tls_with_a_private_ca() {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .and_then(|params| params.signed_by(&key, &authority))
        .expect("a certificate");
    let identity = Identity::from_pem(certificate.pem(), key.serialize_pem());
    let (port, mut seen) = collector(false, Some(ServerTlsConfig::new().identity(identity))).await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("ca.pem");
    std::fs::write(&file, authority.pem()).expect("a file");

    let fixture = Fixture::new(&endpoint("https", port).trusting(Some(file)));
    attempt("secret");
    fixture.end().await;
    let request = seen.try_recv().expect("a request");
    assert_eq!(spans(request).len(), 1);
}

#[tokio::test]
async fn shutdown_does_not_wait_for_an_unreachable_collector() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        listener.local_addr().expect("a bound port").port()
    };
    let fixture = Fixture::new(&endpoint("http", port));
    for _ in 0..10_000 {
        attempt("lost");
    }
    fixture.end().await;
}

/// On a current-thread runtime like the sidecar's: opentelemetry-rust#2583.
#[tokio::test]
async fn shutdown_does_not_wait_for_the_export_timeout_if_the_collector_hangs() {
    let (port, mut seen) = collector(true, None).await;
    let fixture = Fixture::new(&endpoint("http", port));
    attempt("lost");
    // One export hangs before the shutdown begins, and another span is pending.
    timeout(SOON, seen.recv())
        .await
        .expect("soon")
        .expect("a request");
    attempt("lost");
    let took = fixture.end().await;
    // Without a limit it would wait for the timeouts of both requests, 5 s each.
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// The log of the program in an image without root certificates, up to the error of its kubeconfig, which is missing.
fn log_without_system_roots(certificate: &str) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("missing");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_csi-attacher"))
        .env("SSL_CERT_FILE", &missing)
        .env("SSL_CERT_DIR", &missing)
        .env("OTEL_EXPORTER_OTLP_CERTIFICATE", certificate)
        .arg("--otlp-endpoint=https://collector.invalid:4317")
        .arg(format!("--csi-address={}", missing.display()))
        .arg(format!("--kubeconfig={}", missing.display()))
        .output()
        .expect("the program runs");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn starts_without_system_root_certificates() {
    for certificate in ["", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
        let log = log_without_system_roots(certificate);
        assert!(log.contains("kubeconfig"), "{log}");
        for unexpected in ["native certs", "no traces are exported"] {
            assert!(!log.contains(unexpected), "{unexpected} is in\n{log}");
        }
    }
}

#[test]
fn starts_without_traces_if_their_settings_are_invalid() {
    let log = log_without_system_roots("/missing/ca.pem");
    assert!(log.contains("no traces are exported"), "{log}");
    assert!(log.contains("/missing/ca.pem"), "{log}");
    assert!(log.contains("kubeconfig"), "{log}");
}
