//! Traces on their way to a collector, on a real connection.

use std::convert::Infallible;
use std::time::Duration;

use csi_attacher::trace::wire::{EXPORT, ExportRequest, ExportResponse, Span};
use csi_attacher::trace::{self, Endpoint, Exporter};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::Registry;
use tracing_subscriber::layer::SubscriberExt as _;

/// For what must happen soon, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(20);

/// A collector that takes everything, or one that never answers.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Takes,
    Hangs,
}

struct Fixture {
    exporter: JoinHandle<()>,
    stop: CancellationToken,
    _traced: DefaultGuard,
}

// === impl Fixture ===

impl Fixture {
    /// Everything in this thread is traced to `address`.
    fn new(address: &str) -> Self {
        let endpoint: Endpoint = address.parse().expect("the address of a collector");
        let (layer, exporter) = trace::to(&endpoint);
        let traced = tracing::subscriber::set_default(Registry::default().with(layer));
        let stop = CancellationToken::new();
        Self {
            exporter: start(exporter, stop.clone()),
            stop,
            _traced: traced,
        }
    }

    /// Ends the exporter; says how long that took.
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

/// Serves a collector at the address that it returns, and what it gets.
async fn collector(manner: Manner) -> (String, mpsc::UnboundedReceiver<ExportRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("a bound port"));
    let (seen_tx, seen) = mpsc::unbounded_channel();
    let service = service_fn(move |request: http::Request<Body>| {
        let seen_tx = seen_tx.clone();
        async move {
            assert_eq!(request.uri().path(), EXPORT);
            let take = service_fn(move |request: Request<ExportRequest>| {
                let seen_tx = seen_tx.clone();
                async move {
                    if manner == Manner::Hangs {
                        std::future::pending::<()>().await;
                    }
                    seen_tx.send(request.into_inner()).expect("the test listens");
                    Ok::<_, Status>(Response::new(ExportResponse::default()))
                }
            });
            let codec: ProstCodec<ExportResponse, ExportRequest> = ProstCodec::default();
            Ok::<_, Infallible>(tonic::server::Grpc::new(codec).unary(take, request).await)
        }
    });
    #[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
    tokio::spawn(async move {
        Server::builder()
            .serve_with_incoming(service, TcpListenerStream::new(listener))
            .await
            .ok();
    });
    (address, seen)
}

fn attempt(name: &str) {
    drop(tracing::info_span!(target: "csi_attacher::worker", "attach", va = name));
}

fn spans(request: ExportRequest) -> Vec<Span> {
    let mut resources = request.resource_spans;
    let resource = resources.remove(0);
    assert_eq!(resources, []);
    let who = format!("{:?}", resource.resource);
    assert!(
        who.contains("service.name") && who.contains("csi-attacher"),
        "{who}"
    );
    resource
        .scope_spans
        .into_iter()
        .flat_map(|scope| scope.spans)
        .collect()
}

#[tokio::test]
async fn spans_are_sent_while_work_goes_on_and_the_rest_at_its_end() {
    let (address, mut seen) = collector(Manner::Takes).await;
    let fixture = Fixture::new(&address);
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
async fn nobody_waits_for_a_collector_that_is_away() {
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        format!("http://{}", listener.local_addr().expect("a bound port"))
    };
    let fixture = Fixture::new(&nobody);
    for _ in 0..10_000 {
        attempt("lost");
    }
    fixture.end().await;
}

#[tokio::test]
async fn a_collector_that_never_answers_does_not_hold_up_the_end() {
    let (address, _seen) = collector(Manner::Hangs).await;
    let fixture = Fixture::new(&address);
    attempt("lost");
    let took = fixture.end().await;
    assert!(took < Duration::from_secs(10), "{took:?}");
}
