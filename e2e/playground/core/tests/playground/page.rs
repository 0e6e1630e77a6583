//! The web page in a real browser: by mouse and by keyboard, dark and light, wide and narrow.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use libtest_mimic::Failed;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use thirtyfour::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::program;
use super::session::{Browser, CONTRAST};

/// The playground without a terminal. Dropping it stops it.
pub(super) struct Playground {
    child: Child,
    address: String,
}

// === impl Playground ===

impl Playground {
    fn start() -> Result<Self, Failed> {
        let mut child = program()?
            .arg("--web")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("no stdout")?;
        let mut lines = BufReader::new(stdout).lines();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let address = line.strip_prefix("Web page: http://")?;
            Some(address.trim_end_matches('/').to_owned())
        });
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let mut playground = Self {
            child,
            address: String::new(),
        };
        playground.address = address.ok_or("the playground did not print its web page")?;
        Ok(playground)
    }

    /// The status line of the response to a request.
    async fn status(&self, request: &str) -> Result<String, Failed> {
        let response = self.response(request).await?;
        Ok(response.lines().next().unwrap_or_default().to_owned())
    }

    async fn response(&self, request: &str) -> Result<String, Failed> {
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut response = String::new();
        stream.read_to_string(&mut response).await?;
        Ok(response)
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            kill_process(pid, Signal::INT).ok();
        }
        self.child.wait().ok();
    }
}

// === functions ===

pub(crate) fn injects_and_removes_faults() -> Result<(), Failed> {
    on_page(async |playground, browser| {
        refuses_other_sites(playground).await?;
        act(browser).await;
        look(browser).await;
        Ok(())
    })
}

pub(crate) fn keys_inject_and_remove_faults() -> Result<(), Failed> {
    on_page(async |_, browser| {
        fail_attaches(browser).await;
        take_node_out_of_service(browser).await;
        interrupt_the_api(browser).await;
        restart_controllers(browser).await;
        Ok(())
    })
}

/// By click and by key; as text for other programs.
pub(crate) fn explains_what_waits() -> Result<(), Failed> {
    on_page(async |playground, browser| {
        browser.click("#explain").await;
        browser.until(&shows("explained", "cluster: ")).await;
        browser.click("#actions [data-key=n]").await;
        browser.until(&pressed("n", true)).await;
        // Read again while it is open.
        browser
            .until(&shows("explained", "Node playground-b is not ready"))
            .await;
        browser.until(&shows("explained", "explain pod/")).await;
        browser
            .until("document.querySelector('#explain').ariaExpanded === 'true'")
            .await;
        browser.until(&shows("explain-command", "-n playground")).await;
        browser.until(&shows("names", "node a is playground-a")).await;
        browser.press("e").await;
        browser
            .until("document.querySelector('#explanation').hidden")
            .await;
        browser.press("e").await;
        browser
            .until("!document.querySelector('#explanation').hidden")
            .await;
        browser.press(Key::Escape + "").await;
        browser
            .until("document.querySelector('#explanation').hidden")
            .await;
        let request = format!(
            "GET /api/v1/explain HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            playground.address
        );
        let response = playground.response(&request).await?;
        if !response.contains("text/plain") || !response.contains("\r\n\r\ncluster: ") {
            return Err(response.into());
        }
        Ok(())
    })
}

/// Runs a test on the page of a new playground.
pub(super) fn on_page(
    test: impl AsyncFnOnce(&Playground, &Browser) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let playground = Playground::start()?;
    runtime.block_on(async {
        let browser = Browser::open(&format!("http://{}/", playground.address)).await;
        let browser = browser.ok_or("the browser disappeared")?;
        // Ready once the pods run and each panel has rows.
        browser
            .until("document.querySelector('#panel-pods .badge.good')")
            .await;
        for panel in ["nodes", "attachments", "worlds", "lanes", "array"] {
            let rows = format!("document.querySelectorAll('#panel-{panel} tbody tr').length > 0");
            browser.until(&rows).await;
        }
        browser
            .until("document.querySelectorAll('#timeline tbody tr').length > 3")
            .await;
        test(&playground, &browser).await?;
        browser.close().await;
        Ok(())
    })
}

/// f: the driver refuses each attach.
async fn fail_attaches(browser: &Browser) {
    browser.press("f").await;
    browser.until(&pressed("f", true)).await;
    browser.until(&shows("active", "failing attach")).await;
    browser
        .until(&shows("panel-attachments", "all slots of the node are taken"))
        .await;
    browser.press("f").await;
    browser.until(&pressed("f", false)).await;
    browser.until(&shows("active", "no faults active")).await;
}

/// o: the out-of-service taint of the lost node.
async fn take_node_out_of_service(browser: &Browser) {
    browser.press("n").await;
    browser.until(&shows("panel-nodes", "NotReady")).await;
    browser.press("o").await;
    browser.until(&pressed("o", true)).await;
    browser.until(&shows("panel-nodes", "out of service")).await;
    browser.press("o").await;
    browser.until(&pressed("o", false)).await;
    browser
        .until(&format!("!{}", shows("panel-nodes", "out of service")))
        .await;
    browser.press("n").await;
    browser.until(&pressed("n", false)).await;
    browser
        .until(&format!("!{}", shows("panel-nodes", "NotReady")))
        .await;
}

/// a: the API server is down. The page does not depend on it.
async fn interrupt_the_api(browser: &Browser) {
    browser.press("a").await;
    browser.until(&pressed("a", true)).await;
    browser.until(&shows("active", "API outage")).await;
    browser.until(&shows("notice", "no pod moves")).await;
    // The node stops although its last status cannot be reported.
    browser.press("n").await;
    browser.until(&shows("active", "node b lost")).await;
    browser.until(&shows("actions", "recover node b")).await;
    browser.press("n").await;
    browser.until(&pressed("n", false)).await;
    browser.until(&shows("actions", "lose node b")).await;
    browser.press("a").await;
    browser.until(&pressed("a", false)).await;
    browser
        .until(&shows("timeline", "start the API server again"))
        .await;
}

/// c: the controllers restart at once, so the key stays released.
async fn restart_controllers(browser: &Browser) {
    browser.press("c").await;
    browser
        .until(&shows("timeline", "restart kube-controller-manager"))
        .await;
    browser
        .until("!document.querySelector('#actions [data-key=c]').dataset.active")
        .await;
    browser.until(&shows("active", "no faults active")).await;
    browser
        .until("document.querySelectorAll('#panel-worlds tbody tr').length > 0")
        .await;
}

fn pressed(key: &str, state: bool) -> String {
    format!("document.querySelector('#actions [data-key={key}]').dataset.active === '{state}'")
}

fn shows(id: &str, text: &str) -> String {
    format!("document.querySelector('#{id}').innerText.includes('{text}')")
}

/// Faults by click, by shortcut and by Enter on a focused button; volumes by arrow keys.
async fn act(browser: &Browser) {
    browser.click("#actions [data-key=s]").await;
    browser.until(&pressed("s", true)).await;
    browser
        .until("document.querySelector('#active').innerText.includes('slow driver')")
        .await;
    browser.press("s").await;
    browser.until(&pressed("s", false)).await;

    browser
        .run("document.querySelector('#actions [data-key=k]').focus()")
        .await;
    browser.press(Key::Enter + "").await;
    browser.until(&pressed("k", true)).await;
    browser
        .until("document.querySelector('#panel-lanes').innerText.includes('does not respond')")
        .await;
    browser.press("k").await;
    browser.until(&pressed("k", false)).await;

    // Without shortcuts a key does nothing: the next request is the first to change the notice.
    browser.click("#shortcuts").await;
    browser.press("f").await;
    browser.click("#actions [data-key=n]").await;
    browser.until(&pressed("n", true)).await;
    browser.until(&pressed("f", false)).await;
    browser
        .until("document.querySelector('#panel-nodes').innerText.includes('NotReady')")
        .await;

    browser
        .run("document.querySelector('#volumes input:checked').focus()")
        .await;
    let caption = "document.querySelector('#timeline caption').textContent";
    let before = browser.run(&format!("return {caption}")).await;
    browser.press(Key::Down + "").await;
    browser.until(&format!("{caption} !== {before}")).await;
}

/// The elements around tables.
const TABLES: &str = "...document.querySelectorAll('.scroll, #timeline')";

/// No horizontal scrolling of the page or of a table in either width; `PLAYGROUND_SCREENSHOTS` saves screenshots.
async fn look(browser: &Browser) {
    let tools = browser.driver.cdp();
    for scheme in ["light", "dark"] {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        tools.send_raw("Emulation.setEmulatedMedia", media).await.unwrap();
        assert_eq!(browser.run(CONTRAST).await, json!([]), "{scheme}");
        for (name, width, height) in [("wide", 1400, 1300), ("narrow", 390, 1600)] {
            let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
            tools
                .send_raw("Emulation.setDeviceMetricsOverride", size)
                .await
                .unwrap();
            browser
                .until(&format!(
                    "[document.documentElement, {TABLES}].every((e) => e.scrollWidth <= e.clientWidth)"
                ))
                .await;
            browser.run("scrollTo(0, 0)").await;
            if let Some(directory) = std::env::var_os("PLAYGROUND_SCREENSHOTS") {
                let path = std::path::Path::new(&directory).join(format!("{scheme}-{name}.png"));
                browser.driver.screenshot(&path).await.unwrap();
            }
        }
    }
    let dark = "getComputedStyle(document.body).backgroundColor === 'rgb(18, 21, 28)'";
    browser.until(dark).await;
}

async fn refuses_other_sites(playground: &Playground) -> Result<(), Failed> {
    let address = &playground.address;
    let post = |path: &str, extra: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{extra}Content-Length: 2\r\n\r\n{{}}"
        )
    };
    let json = "Content-Type: application/json\r\n";
    for (request, expected) in [
        (
            "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".to_owned(),
            "421",
        ),
        (post("/api/v1/actions/a", "Content-Type: text/plain\r\n"), "415"),
        (
            post(
                "/api/v1/actions/a",
                &format!("{json}Origin: http://evil.example\r\n"),
            ),
            "403",
        ),
        (
            post(
                "/api/v1/actions/a",
                &format!("{json}Sec-Fetch-Site: cross-site\r\n"),
            ),
            "403",
        ),
        (post("/api/v1/actions/z", json), "404"),
    ] {
        let status = playground.status(&request).await?;
        if !status.contains(expected) {
            return Err(format!("{request}\n{status}, expected {expected}").into());
        }
    }
    Ok(())
}
