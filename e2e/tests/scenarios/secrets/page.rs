//! The attacher's HTTP pages.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PAGES: [&str; 5] = [
    "/metrics",
    "/statusz",
    "/statusz?format=json",
    "/healthz",
    "/readyz",
];
/// Poll interval: a failure is visible until its next attempt.
const PAUSE: Duration = Duration::from_millis(5);

/// Polls all pages until `work` is done, and keeps their content.
pub(super) async fn reading<T>(
    address: SocketAddr,
    seen: &mut Vec<(String, Vec<u8>)>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let reading = async {
        loop {
            for page in PAGES {
                // The attacher may not listen yet.
                if let Ok(text) = read(address, page).await {
                    seen.push((page.to_owned(), text));
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::select! {
        biased;
        result = work => result,
        () = reading => unreachable!("the polling loop never ends"),
    }
}

async fn read(address: SocketAddr, page: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {page} HTTP/1.1\r\nHost: attacher\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await?;
    Ok(text)
}
