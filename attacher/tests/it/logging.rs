//! The program with a standard error that is not read.

use std::io::{self, PipeReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// For what must happen soon, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(30);

struct Attacher {
    process: Child,
    address: SocketAddr,
    _stderr: PipeReader,
    _dir: tempfile::TempDir,
}

// === impl Attacher ===

impl Attacher {
    /// Starts one whose standard error is a pipe that is full already. There is neither a driver nor an API server.
    fn start() -> io::Result<Self> {
        let (reader, mut writer) = io::pipe()?;
        let stderr = writer.try_clone()?;
        // Blocks as soon as the pipe is full, until the reader is dropped.
        thread::spawn(move || while writer.write_all(&[b'x'; 4096]).is_ok() {});
        let dir = tempfile::tempdir()?;
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(
            &kubeconfig,
            r#"{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x"}"#,
        )?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let process = Command::new(env!("CARGO_BIN_EXE_csi-attacher"))
            .arg(format!(
                "--csi-address={}",
                dir.path().join("none.sock").display()
            ))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--http-endpoint={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()?;
        Ok(Self {
            process,
            address,
            _stderr: reader,
            _dir: dir,
        })
    }

    async fn get(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.address).await?;
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[tokio::test]
async fn serves_healthz_and_ends_while_standard_error_is_blocked() {
    let mut attacher = Attacher::start().expect("the program starts");
    let answer = timeout(SOON, async {
        loop {
            match attacher.get("/healthz").await {
                Ok(answer) if !answer.is_empty() => break answer,
                Ok(_) | Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    });
    let answer = answer.await.expect("an answer although the log is blocked");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let metrics = attacher.get("/metrics").await.expect("metrics");
    assert!(
        metrics.contains("\ncsi_attacher_log_dropped_lines_total 0\n"),
        "{metrics}"
    );

    let pid = attacher.process.id().to_string();
    let killed = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(killed.expect("kill").success());
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = attacher.process.try_wait().expect("the process") {
            break status;
        }
        assert!(begin.elapsed() < SOON, "the end waits for the log");
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(status.code(), Some(0));
}
