//! A headless Chromium with a page, driven through chromedriver. The playground's test uses it, too.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use thirtyfour::TypingData;
use thirtyfour::prelude::*;
use thirtyfour::session::http::{Body, HttpClient};
use tokio::net::TcpStream;
use tokio::time;
use verdict::Requirement;

/// Timeout of a condition.
const DEADLINE: Duration = Duration::from_secs(20);

/// Headless, without the sandbox, which containers do not allow, and without network access.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// Finds the texts with a contrast below 4.5 to 1.
pub(crate) const CONTRAST: &str = r"
const parse = (text) => text.match(/[\d.]+/g).map(Number);
const light = ([r, g, b]) => { const f = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
  if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
return [...document.querySelectorAll('h1, h2, p, th, td, dt, dd, button, span, label')]
  .filter((e) => e.offsetParent && !e.disabled && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
  .map((e) => { const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), e.outerHTML]; })
  .filter(([ratio]) => ratio < 4.5).map(([ratio, html]) => `${ratio.toFixed(2)} ${html}`);
";

/// A browser with an open page. Dropping it stops both programs.
pub(crate) struct Browser {
    pub(crate) driver: WebDriver,
    program: Program,
    _profile: TempDir,
}

struct Program {
    child: Child,
    port: u16,
}

/// An HTTP client with one connection per request.
struct Plain;

// === impl Browser ===

impl Browser {
    /// Opens a page; `None` without a browser.
    pub(crate) async fn open(url: &str) -> Option<Self> {
        let program = Program::start()?;
        let profile = tempfile::tempdir().unwrap();
        let mut capabilities = DesiredCapabilities::chrome();
        for flag in FLAGS {
            capabilities.add_arg(flag).unwrap();
        }
        let directory = format!("--user-data-dir={}", profile.path().display());
        capabilities.add_arg(&directory).unwrap();
        capabilities
            .set("goog:loggingPrefs", json!({"browser": "ALL"}))
            .unwrap();
        let address = format!("http://127.0.0.1:{}", program.port);
        let driver = WebDriver::builder(address, capabilities)
            .client(Plain)
            .await
            .unwrap();
        driver.goto(url).await.unwrap();
        Some(Self {
            driver,
            program,
            _profile: profile,
        })
    }

    /// The result of a script.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.driver
            .execute(script, Vec::new())
            .await
            .unwrap()
            .json()
            .clone()
    }

    /// Waits until a script returns true.
    pub(crate) async fn until(&self, condition: &str) {
        let fulfilled = async {
            while self.run(&format!("return Boolean({condition})")).await != json!(true) {
                time::sleep(Duration::from_millis(30)).await;
            }
        };
        if time::timeout(DEADLINE, fulfilled).await.is_err() {
            let text = self.run("return document.body.innerText").await;
            panic!(
                "not fulfilled: {condition}\n{}",
                text.as_str().unwrap_or_default()
            );
        }
    }

    pub(crate) async fn click(&self, selector: &str) {
        self.driver
            .find(By::Css(selector))
            .await
            .unwrap()
            .click()
            .await
            .unwrap();
    }

    /// Sends keys to the focused element.
    pub(crate) async fn press(&self, keys: impl Into<TypingData>) {
        let focused = self.driver.active_element().await.unwrap();
        focused.send_keys(keys).await.unwrap();
    }

    /// Errors in the browser's log: script errors and violations of the page's Content-Security-Policy.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let session = self.driver.session_id().to_string();
        let request = Request::post(format!(
            "http://127.0.0.1:{}/session/{session}/se/log",
            self.program.port
        ));
        let kind = json!({"type": "browser"});
        let response = Plain
            .send(request.body(Body::Json(&kind)).unwrap())
            .await
            .unwrap();
        let response: Value = serde_json::from_slice(response.body()).unwrap();
        let entries = response["value"].as_array().unwrap().iter();
        entries.map(|entry| entry["message"].to_string()).collect()
    }

    pub(crate) async fn close(self) {
        assert_eq!(self.complaints().await, Vec::<String>::new());
        self.driver.clone().quit().await.unwrap();
    }
}

// === impl Program ===

impl Program {
    fn start() -> Option<Self> {
        if !verdict::are_met(&[
            Requirement::Program("chromium"),
            Requirement::Program("chromedriver"),
        ]) {
            return None;
        }
        let mut child = verdict::command("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            let port = line.strip_prefix("ChromeDriver was started successfully on port ")?;
            Some(port.trim_end_matches('.').parse().unwrap())
        });
        // Without a reader chromedriver fails on writes.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self {
            child,
            port: port.expect("chromedriver must say where it listens"),
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

// === impl Plain ===

#[tonic::async_trait]
impl HttpClient for Plain {
    async fn send(&self, request: Request<Body<'_>>) -> WebDriverResult<Response<Bytes>> {
        let body = match request.body() {
            Body::Empty => Bytes::new(),
            Body::Json(json) => Bytes::from(json.to_string()),
        };
        let fatal = |error: String| WebDriverError::HttpError(error);
        let authority = request.uri().authority().unwrap().to_string();
        let path = request.uri().path_and_query().unwrap().to_string();
        let plain = Request::builder()
            .method(request.method())
            .uri(path)
            .header("host", &authority)
            .header("content-type", "application/json; charset=utf-8")
            .body(Full::new(body))
            .unwrap();
        let stream = TcpStream::connect(authority)
            .await
            .map_err(|error| fatal(error.to_string()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| fatal(error.to_string()))?;
        let exchange = async move {
            let (parts, body) = sender.send_request(plain).await?.into_parts();
            Ok(Response::from_parts(parts, body.collect().await?.to_bytes()))
        };
        let (response, _) = tokio::join!(exchange, connection);
        response.map_err(|error: hyper::Error| fatal(error.to_string()))
    }

    async fn new(&self) -> Arc<dyn HttpClient> {
        Arc::new(Self)
    }
}
