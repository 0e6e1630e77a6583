//! Metrics, health and status over a real socket.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_attacher::controller::Heartbeat;
use csi_attacher::controller::state::{ControllerState, Event};
use csi_attacher::csi::{ConnectionManager, Socket};
use csi_attacher::http_server::{View, router, server};
use csi_attacher::informer::Change;
use csi_attacher::kube_api::Requests;
use csi_attacher::workqueue::{Backoff, Limits};
use futures::FutureExt as _;
use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Timeout for immediate events, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(10);

struct Served {
    address: SocketAddr,
    view: Arc<View>,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

// === impl Served ===

impl Served {
    async fn new() -> Self {
        let (manager, _connection) =
            ConnectionManager::<Socket>::new("/nowhere".parse().expect("a path"), SOON);
        let view = Arc::new(View {
            calls: manager.calls(),
            requests: Requests::default(),
            heartbeat: Heartbeat::default(),
            elects: false,
            election: Mutex::default(),
            state: Mutex::default(),
            shutdown: CancellationToken::new(),
            started: Instant::now(),
            clock: || Timestamp::UNIX_EPOCH,
            metrics_path: "/metrics".to_owned(),
            serves_statusz: true,
        });
        let stop = CancellationToken::new();
        let listener = server::listen("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        #[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
        let server = tokio::spawn(server::serve(
            listener,
            router(view.clone(), None),
            None,
            stop.clone(),
        ));
        Self {
            address,
            view,
            stop,
            server,
        }
    }

    /// Sends `head` and returns the whole response.
    async fn send(&self, head: &str) -> String {
        let mut stream = TcpStream::connect(self.address)
            .await
            .expect("the server listens");
        stream
            .write_all(head.as_bytes())
            .await
            .expect("the server reads the request");
        let mut response = String::new();
        let read = stream.read_to_string(&mut response);
        tokio::time::timeout(SOON, read)
            .await
            .expect("a complete response in time")
            .expect("a response");
        response
    }

    async fn get(&self, path: &str) -> String {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
            .await
    }
}

fn body(response: &str) -> &str {
    response.split_once("\r\n\r\n").expect("a head and a body").1
}

#[tokio::test]
async fn serves_pages_and_404_for_other_paths() {
    let served = Served::new().await;
    let state = ControllerState::new(
        Limits {
            attach: 7,
            detach: 1,
            volume: 1,
            driver_calls: 0,
            adaptive: true,
        },
        Backoff {
            start: SOON,
            max: SOON,
        },
        1,
        Instant::now().into_std(),
    );
    served.view.work_begins(Arc::new(Mutex::new(state)));

    let metrics = served.get("/metrics").await;
    assert!(metrics.contains("cache-control: no-store\r\n"), "{metrics}");
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
    assert!(
        metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{metrics}"
    );
    assert!(body(&metrics).contains("csi_attacher_lane_limit{lane=\"attach\"} 7\n"));
    assert!(served.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    let ready = served.get("/readyz").await;
    assert!(ready.starts_with("HTTP/1.1 503 "), "{ready}");
    assert!(body(&ready).contains("driver"), "{ready}");
    let status = served.get("/statusz?format=json").await;
    assert!(status.contains("content-type: application/json\r\n"), "{status}");
    let index = served.get("/").await;
    assert!(index.contains("content-type: text/html"), "{index}");
    for path in ["/metrics/", "/healthz/leader-election", "/debug/pprof"] {
        let response = served.get(path).await;
        assert!(response.starts_with("HTTP/1.1 404 "), "{path}: {response}");
    }
    let head = served.send("HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(
        head.starts_with("HTTP/1.1 200 ") && body(&head).is_empty(),
        "{head}"
    );
    let options = served.send("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(options.starts_with("HTTP/1.1 404 "), "{options}");
    let post = served
        .send("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
        .await;
    assert!(post.starts_with("HTTP/1.1 405 "), "{post}");
    assert!(post.ends_with("405 method not allowed\n"), "{post}");
    assert!(post.contains("allow: GET,HEAD\r\n"), "{post}");
}

#[tokio::test]
async fn readyz_names_persistent_volumes_until_they_are_listed() {
    let served = Served::new().await;
    let state = ControllerState::new(
        Limits {
            attach: 1,
            detach: 1,
            volume: 1,
            driver_calls: 0,
            adaptive: true,
        },
        Backoff {
            start: SOON,
            max: SOON,
        },
        1,
        Instant::now().into_std(),
    );
    let state = Arc::new(Mutex::new(state));
    served.view.work_begins(state.clone());
    assert!(served.get("/readyz").await.contains("PersistentVolumes"));
    let listed = Event::Volumes(Change::Replaced);
    state.lock().expect("no test panics with it").handle(listed);
    assert!(!served.get("/readyz").await.contains("PersistentVolumes"));
}

#[tokio::test]
async fn closes_the_connection_of_an_incomplete_request_after_two_seconds() {
    let served = Served::new().await;
    let begin = Instant::now();
    // The limit of a whole connection, 15 s, is longer than `SOON`, so only the header timeout can close it in time.
    let response = served.send("GET /healthz HTTP/1.1\r\nHost: ").await;
    assert!(!response.contains("200"), "{response}");
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(2), "{took:?}");
}

/// Opens more connections than the server keeps; each sends `sent`.
async fn connect_many(served: &Served, sent: &str) -> Vec<TcpStream> {
    let mut connections = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(served.address)
            .await
            .expect("the server listens");
        stream
            .write_all(sent.as_bytes())
            .await
            .expect("the server reads the request");
        connections.push(stream);
    }
    connections
}

#[tokio::test]
async fn serves_a_probe_immediately_despite_idle_connections() {
    let served = Served::new().await;
    for sent in ["", "GET /healthz HTTP/1.1\r\n"] {
        let mut connections = connect_many(&served, sent).await;
        let response = served.get("/healthz").await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        // The probe did not wait until the connections timed out.
        let mut byte = [0];
        let late = connections[60].read(&mut byte).now_or_never();
        assert!(late.is_none(), "{late:?}");
        let early = tokio::time::timeout(SOON, connections[0].read(&mut byte)).await;
        assert!(
            matches!(early, Ok(Ok(0) | Err(_))),
            "the server must close the oldest connection: {early:?}"
        );
    }
}

#[tokio::test]
async fn server_stops_at_shutdown_despite_an_idle_connection() {
    let served = Served::new().await;
    let _idle = TcpStream::connect(served.address)
        .await
        .expect("the server listens");
    served.stop.cancel();
    tokio::time::timeout(SOON, served.server)
        .await
        .expect("in time")
        .expect("no panic");
    assert!(TcpStream::connect(served.address).await.is_err());
}

#[tokio::test]
async fn refuses_an_address_in_use() {
    let taken = server::listen(":0").await.expect("all addresses, any port");
    let port = taken.local_addr().expect("a bound socket").port();
    assert!(server::listen(&format!(":{port}")).await.is_err());
    // Without a host, the server listens on all addresses, including IPv4.
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_ok());
}

#[tokio::test]
async fn listens_on_ipv4_and_ipv6_without_a_host() {
    let listener = server::listen(":0").await.expect("all addresses, any port");
    let port = listener.local_addr().expect("a bound socket").port();
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_ok());
    let has_ipv6 = TcpListener::bind("[::1]:0").await.is_ok();
    assert_eq!(TcpStream::connect(("::1", port)).await.is_ok(), has_ipv6);
}

/// Runs the test above in network namespaces with both values of net.ipv6.bindv6only.
#[test]
fn listens_on_ipv4_and_ipv6_for_both_values_of_bindv6only() {
    verdict::require!(verdict::Requirement::OwnNetwork);
    let test = std::env::current_exe().expect("a test is a program");
    let script = "ip link set lo up && echo \"$1\" >/proc/sys/net/ipv6/bindv6only && \
                  exec \"$0\" --exact http::listens_on_ipv4_and_ipv6_without_a_host";
    for only_v6 in ["0", "1"] {
        let output = verdict::command("unshare")
            .args(["--map-root-user", "--net", "sh", "-ec", script])
            .arg(&test)
            .arg(only_v6)
            .output()
            .expect("unshare");
        assert!(output.status.success(), "bindv6only={only_v6}: {output:?}");
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(report.contains("1 passed"), "the test did not run: {report}");
    }
}
