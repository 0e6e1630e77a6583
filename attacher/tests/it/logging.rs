//! The program while its standard error is blocked.

use std::io::{self, PipeReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::connection::Driver;

/// Timeout for prompt events, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(30);

struct Attacher {
    process: Child,
    address: SocketAddr,
    socket: PathBuf,
    _stderr: Option<PipeReader>,
    _dir: tempfile::TempDir,
}

/// Writes a kubeconfig for an API server without TLS and authentication, and returns its path.
pub(crate) fn write_kubeconfig(dir: &Path, api_server: SocketAddr) -> io::Result<PathBuf> {
    let path = dir.join("kubeconfig");
    let config = json!({
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{api_server}") } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "current-context": "x",
    });
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

// === impl Attacher ===

impl Attacher {
    /// Starts the program with a full pipe as standard error and without a driver.
    fn start(api_server: SocketAddr, flags: &[&str]) -> io::Result<Self> {
        let (reader, mut writer) = io::pipe()?;
        let stderr = writer.try_clone()?;
        // Blocks as soon as the pipe is full, until the reader is dropped.
        thread::spawn(move || while writer.write_all(&[b'x'; 4096]).is_ok() {});
        Self::start_with(api_server, flags, stderr, Some(reader))
    }

    fn start_with(
        api_server: SocketAddr,
        flags: &[&str],
        stderr: impl Into<Stdio>,
        reader: Option<PipeReader>,
    ) -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let kubeconfig = write_kubeconfig(dir.path(), api_server)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let socket = dir.path().join("csi.sock");
        let process = Command::new(env!("CARGO_BIN_EXE_csi-attacher"))
            .args(flags)
            .arg(format!("--csi-address={}", socket.display()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--http-endpoint={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()?;
        Ok(Self {
            process,
            address,
            socket,
            _stderr: reader,
            _dir: dir,
        })
    }

    async fn get(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.address).await?;
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        Ok(response)
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[tokio::test]
async fn logs_driver_calls_without_rust_syntax() {
    let dir = tempfile::tempdir().expect("a directory for the log");
    let path = dir.path().join("log");
    let stderr = std::fs::File::create(&path).expect("a log");
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let flags = ["--v=5", "--worker-threads=8", "--max-driver-calls=9"];
    let attacher = Attacher::start_with(nowhere, &flags, stderr, None).expect("the program starts");
    let _driver = Driver::new("d.example").serve(&attacher.socket);
    let log = timeout(SOON, async {
        loop {
            let log = std::fs::read_to_string(&path).expect("the log");
            if log.contains("the watch failed") {
                break log;
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    let log = log
        .await
        .expect("the program connects to the driver and tries to list");
    for expected in [
        "name=d.example",
        "CONTROLLER_SERVICE",
        "PUBLISH_UNPUBLISH_VOLUME",
        "ready=true",
        "attaches=8 detaches=8 repairs=4 max_driver_calls=9",
    ] {
        assert!(log.contains(expected), "{expected} is not in\n{log}");
    }
    assert!(log.contains("API server at 127.0.0.1:1 "), "{log}");
    for syntax in [
        "Some(",
        "None",
        "r#",
        "Ok(",
        "Err(",
        "Response {",
        ": {",
        "[\\\"",
        "::",
    ] {
        assert!(!log.contains(syntax), "{syntax} is in\n{log}");
    }
}

#[tokio::test]
async fn serves_healthz_and_ends_while_standard_error_is_blocked() {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut attacher = Attacher::start(nowhere, &[]).expect("the program starts");
    let response = timeout(SOON, async {
        loop {
            match attacher.get("/healthz").await {
                Ok(response) if !response.is_empty() => break response,
                Ok(_) | Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    });
    let response = response.await.expect("a response while the log is blocked");
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    let metrics = attacher.get("/metrics").await.expect("metrics");
    assert!(
        metrics.contains("\ncsi_attacher_log_dropped_lines_total 0\n"),
        "{metrics}"
    );

    let pid = attacher.process.id().to_string();
    let killed = Command::new("sh").args(["-c", "kill -TERM $0", &pid]).status();
    assert!(killed.expect("kill").success());
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = attacher.process.try_wait().expect("the process") {
            break status;
        }
        assert!(begin.elapsed() < SOON, "the program waits for the log");
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(status.code(), Some(0));
}

/// A Lease and its number of writes.
type Lease = Mutex<(Value, u32)>;

/// Serves the Lease and refuses all other requests. Returns after the given number of writes to the Lease.
async fn serve_lease(stream: TcpStream, lease: &Lease, writes: u32) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let start = head.len();
            if stream.read_line(&mut head).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(value) = head[start..].to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let is_watch = head.contains("watch=");
        let (status, response, written) = {
            let mut lease = lease.lock().expect("no test panics with it");
            let (status, response) = match head.split_once(' ').expect("a request line").0 {
                "GET" if !is_watch && head.contains("/leases") && lease.1 > 0 => (200, lease.0.clone()),
                "GET" if !is_watch => (404, refusal(404, "NotFound")),
                "POST" | "PUT" if head.contains("/leases") => {
                    let written: Value = serde_json::from_slice(&body)?;
                    *lease = (written, lease.1 + 1);
                    lease.0["metadata"]["resourceVersion"] = json!(lease.1.to_string());
                    (200, lease.0.clone())
                }
                _ => (403, refusal(403, "Forbidden")),
            };
            (status, response, lease.1)
        };
        let response = response.to_string();
        let head = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            response.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(response.as_bytes()).await?;
        if written >= writes {
            return Ok(());
        }
    }
}

fn refusal(code: u16, reason: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code })
}

#[tokio::test]
async fn renews_its_lease_while_standard_error_is_blocked() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("a bound socket");
    let flags = [
        "--v=5",
        "--leader-election",
        "--leader-election-namespace=ns",
        "--leader-election-retry-period=200ms",
    ];
    let attacher = Attacher::start(address, &flags).expect("the program starts");
    let _driver = Driver::new("d.example").serve(&attacher.socket);
    let renewed = async {
        let lease = Lease::new((Value::Null, 0));
        let mut connections = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(served) = connections.next(), if !connections.is_empty() => {
                    if matches!(served, Ok(())) { break }
                }
                accepted = listener.accept() => {
                    connections.push(serve_lease(accepted.expect("a connection").0, &lease, 5));
                }
            }
        }
    };
    timeout(SOON, renewed)
        .await
        .expect("the lease is renewed while the log is blocked");
}
