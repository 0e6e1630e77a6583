//! TLS and authentication of `--http-endpoint`, and health on a port of its own.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use csi_attacher::http_server::{Tls, server};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::logging::write_kubeconfig;

/// Timeout for prompt events, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(30);

fn mk_pair() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate")
}

/// Replaces the files at once, as kubelet does in the volume of a Secret.
fn write(volume: &Path, version: &str, certificate: &str, key: &str) {
    let data = volume.join(version);
    std::fs::create_dir(&data).expect("a directory");
    std::fs::write(data.join("tls.crt"), certificate).expect("the certificate");
    std::fs::write(data.join("tls.key"), key).expect("the key");
    let next = volume.join("..data_tmp");
    symlink(version, &next).expect("a link");
    std::fs::rename(next, volume.join("..data")).expect("the link");
}

fn files(volume: &Path) -> [std::path::PathBuf; 2] {
    ["tls.crt", "tls.key"].map(|file| volume.join("..data").join(file))
}

/// Connects to a server whose certificate must be this one.
async fn connect(
    address: SocketAddr,
    trusted: &CertificateDer<'static>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a certificate");
    let client = ClientConfig::builder().with_root_certificates(roots);
    let client = TlsConnector::from(Arc::new(client.with_no_client_auth()));
    let stream = TcpStream::connect(address).await?;
    let name = "localhost".try_into().expect("a name");
    client.connect(name, stream).await
}

async fn send(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    token: &str,
) -> std::io::Result<String> {
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}

#[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
async fn serve(router: Router, tls: Option<Tls>) -> (SocketAddr, CancellationToken) {
    let listener = server::listen("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket");
    let stop = CancellationToken::new();
    tokio::spawn(server::serve(listener, router, tls.map(Arc::new), stop.clone()));
    (address, stop)
}

/// Lets the time pass after which the server reads the files again.
async fn ten_seconds_later() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(10)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn open_connections_survive_a_new_certificate_and_a_broken_one_is_ignored() {
    let volume = TempDir::new().expect("a directory");
    let [first, second, third] = [mk_pair(), mk_pair(), mk_pair()];
    write(
        volume.path(),
        "1",
        &first.cert.pem(),
        &first.signing_key.serialize_pem(),
    );
    let (arrived, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let waits = {
        let (arrived, go_on) = (arrived.clone(), go_on.clone());
        move || async move {
            arrived.notify_one();
            go_on.notified().await;
            "finished"
        }
    };
    let router = Router::new()
        .route("/", get(async || "ok"))
        .route("/wait", get(waits));
    let tls = Tls::new(Some(files(volume.path()))).expect("a usable pair");
    let (address, _stop) = serve(router, Some(tls)).await;

    let open = connect(address, first.cert.der())
        .await
        .expect("the first certificate");
    let waiting = send(open, "/wait", "");
    let changes = async {
        arrived.notified().await;
        write(
            volume.path(),
            "2",
            &second.cert.pem(),
            &second.signing_key.serialize_pem(),
        );
        ten_seconds_later().await;
        let stream = connect(address, second.cert.der())
            .await
            .expect("the second certificate");
        assert!(send(stream, "/", "").await.expect("a response").ends_with("ok"));
        assert!(connect(address, first.cert.der()).await.is_err());
        go_on.notify_one();
    };
    let (response, ()) = timeout(SOON, async { tokio::join!(waiting, changes) })
        .await
        .expect("in time");
    assert!(
        response
            .expect("the response of the open connection")
            .ends_with("finished")
    );

    // The key of another certificate, no certificate, no files.
    let broken = [
        (third.cert.pem(), first.signing_key.serialize_pem()),
        (String::new(), third.signing_key.serialize_pem()),
        (third.cert.pem(), "no key".to_owned()),
    ];
    for (number, (certificate, key)) in broken.iter().enumerate() {
        write(volume.path(), &format!("broken-{number}"), certificate, key);
        assert!(Tls::new(Some(files(volume.path()))).is_err(), "at the start");
        ten_seconds_later().await;
        assert!(
            connect(address, second.cert.der()).await.is_ok(),
            "broken pair {number}"
        );
    }
    write(
        volume.path(),
        "3",
        &third.cert.pem(),
        &third.signing_key.serialize_pem(),
    );
    ten_seconds_later().await;
    assert!(connect(address, third.cert.der()).await.is_ok());
}

#[tokio::test]
async fn without_files_the_certificate_is_self_signed() {
    let tls = Tls::new(None).expect("a certificate of the process");
    let router = Router::new().route("/", get(async || "ok"));
    let (address, _stop) = serve(router, Some(tls)).await;
    let refused = connect(address, mk_pair().cert.der()).await;
    let error = refused.expect_err("an unknown certificate").to_string();
    assert!(error.contains("invalid peer certificate"), "{error}");
}

/// Knows users by their token; only `prometheus` may get /metrics. The token `token.quoted` is quoted in an error.
async fn review(body: Bytes) -> Response {
    let review: Value = serde_json::from_slice(&body).expect("JSON");
    let spec = &review["spec"];
    let status = match spec["token"].as_str() {
        Some("token.quoted") => return (http::StatusCode::BAD_GATEWAY, body).into_response(),
        Some(user) => json!({ "authenticated": user != "unknown", "user": { "username": user } }),
        None => json!({
            "allowed": spec["user"] == "prometheus" && spec["nonResourceAttributes"]["path"] == "/metrics",
        }),
    };
    let review = json!({ "metadata": {}, "spec": spec, "status": status });
    (http::StatusCode::CREATED, review.to_string()).into_response()
}

/// The program with an API server that reviews tokens, and without a driver.
struct Attacher {
    process: Child,
    pages: SocketAddr,
    probes: SocketAddr,
    certificate: CertificateDer<'static>,
    stop_api_server: CancellationToken,
    dir: TempDir,
}

// === impl Attacher ===

impl Attacher {
    async fn start() -> Self {
        let dir = TempDir::new().expect("a directory");
        let pair = mk_pair();
        let key = pair.signing_key.serialize_pem();
        write(dir.path(), "1", &pair.cert.pem(), &key);
        let reviews = Router::new().fallback(review);
        let (api_server, stop_api_server) = serve(reviews, None).await;
        let kubeconfig = write_kubeconfig(dir.path(), api_server).expect("a kubeconfig");
        let (pages, probes) = (free_address(), free_address());
        let [certificate, key] = files(dir.path());
        let process = Command::new(env!("CARGO_BIN_EXE_csi-attacher"))
            .arg(format!("--csi-address={}/csi.sock", dir.path().display()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--http-endpoint={pages}"))
            .arg(format!("--health-endpoint={probes}"))
            .arg(format!("--http-tls-cert-file={}", certificate.display()))
            .arg(format!("--http-tls-key-file={}", key.display()))
            .args(["--http-auth", "--v=10"])
            .stderr(std::fs::File::create(dir.path().join("log")).expect("a log"))
            .spawn();
        let attacher = Self {
            process: process.expect("the program starts"),
            pages,
            probes,
            certificate: pair.cert.der().clone(),
            stop_api_server,
            dir,
        };
        let started = async {
            while TcpStream::connect(pages).await.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, started).await.expect("the program listens");
        attacher
    }

    async fn get(&self, path: &str, token: &str) -> String {
        let stream = connect(self.pages, &self.certificate).await;
        let response = send(stream.expect("the certificate of the files"), path, token).await;
        response.expect("a response")
    }

    async fn expect(&self, path: &str, token: &str, status: u16) {
        let response = self.get(path, token).await;
        let expected = response.starts_with(&format!("HTTP/1.1 {status} "));
        assert!(expected, "{path} with {token:?}: {response}");
    }

    async fn probe(&self, path: &str) -> String {
        let stream = TcpStream::connect(self.probes).await.expect("health is served");
        send(stream, path, "").await.expect("a response")
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound socket")
}

#[tokio::test]
async fn program_authenticates_its_readers_and_logs_no_token() {
    let attacher = Attacher::start().await;
    for (path, token, status) in [
        ("/metrics", "", 401),
        ("/metrics", "unknown", 401),
        ("/metrics", "token.forbidden", 403),
        ("/statusz", "prometheus", 403),
        ("/metrics", "prometheus", 200),
        ("/metrics", "token.quoted", 503),
        ("/healthz", "", 200),
    ] {
        attacher.expect(path, token, status).await;
    }
    let metrics = attacher.get("/metrics", "prometheus").await;
    assert!(metrics.contains("resource=\"tokenreviews\""), "{metrics}");
    // Without API server only what it has allowed is served.
    attacher.stop_api_server.cancel();
    attacher.expect("/metrics", "prometheus", 200).await;
    attacher.expect("/metrics", "token.unreviewed", 503).await;

    // The program writes its log in the background.
    let written = async {
        loop {
            let log = std::fs::read_to_string(attacher.dir.path().join("log")).expect("the log");
            if log.contains("cannot review tokens") {
                break log;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let log = timeout(SOON, written).await.expect("a failed review is logged");
    assert!(!log.contains("token."), "{log}");
    assert!(!metrics.contains("token."), "{metrics}");
}

#[tokio::test]
async fn slow_clients_of_other_pages_delay_no_probe() {
    let attacher = Attacher::start().await;
    let hold_connections = async {
        let mut connections = VecDeque::new();
        loop {
            let mut stream = TcpStream::connect(attacher.pages)
                .await
                .expect("the server listens");
            if connections.len() % 2 == 0 {
                // The begin of a TLS handshake. The server may have closed the connection for a later one.
                stream.write_all(&[0x16, 3, 1, 1]).await.ok();
            }
            connections.push_back(stream);
            if connections.len() > 100 {
                connections.pop_front();
                sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let probe = async {
        // Until the connections are there.
        sleep(Duration::from_millis(100)).await;
        for _ in 0..20 {
            assert!(attacher.probe("/healthz").await.starts_with("HTTP/1.1 200 "));
        }
        assert!(attacher.probe("/readyz").await.contains("CSI driver"));
        for path in ["/metrics", "/statusz", "/"] {
            assert!(attacher.probe(path).await.starts_with("HTTP/1.1 404 "), "{path}");
        }
    };
    let probed = async {
        tokio::select! {
            () = hold_connections => {}
            () = probe => {}
        }
    };
    timeout(SOON, probed).await.expect("probes are answered at once");
}
