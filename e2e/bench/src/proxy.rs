//! A TCP proxy that adds network delay to the API server.
//!
//! It forwards bytes unchanged, so TLS works through it, in order and after the delay. Unlike a pause between
//! read and write, this adds latency without limiting the bandwidth.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Maximum bytes per read.
const CHUNK: usize = 16 << 10;
/// Maximum chunks in transit per direction; beyond that a sender blocks, as on a real network.
const ON_THE_WAY: usize = 256;

/// A proxy that runs until it is dropped.
#[derive(Debug)]
pub(super) struct Proxy {
    address: SocketAddr,
    _task: JoinSet<()>,
}

// === impl Proxy ===

impl Proxy {
    /// Listens on a loopback port and forwards to `target` with this delay in both directions.
    pub(super) async fn start(target: String, delay: Duration) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("listen for the delaying proxy")?;
        let address = listener.local_addr().context("ask for the proxy's port")?;
        let mut task = JoinSet::new();
        task.spawn(accept(listener, Arc::from(target), delay));
        Ok(Self { address, _task: task })
    }

    /// Listening address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(listener: TcpListener, target: Arc<str>, delay: Duration) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((near, _)) => {
                let target = Arc::clone(&target);
                connections.spawn(async move {
                    if let Err(error) = connect(near, &target, delay).await {
                        tracing::debug!(%error, "a connection through the delaying proxy ended");
                    }
                });
            }
            Err(error) => tracing::warn!(%error, "the delaying proxy cannot accept a connection"),
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connect(near: TcpStream, target: &str, delay: Duration) -> io::Result<()> {
    let far = TcpStream::connect(target).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    tokio::try_join!(
        hand_on(near_read, far_write, delay),
        hand_on(far_read, near_write, delay)
    )?;
    Ok(())
}

async fn hand_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) -> io::Result<()> {
    let (chunks_tx, mut chunks) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY);
    let take = async move {
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            if from.read_buf(&mut chunk).await? == 0 {
                return Ok(());
            }
            if chunks_tx.send((Instant::now() + delay, chunk)).await.is_err() {
                return Ok(());
            }
        }
    };
    let give = async {
        while let Some((due, chunk)) = chunks.recv().await {
            sleep_until(due).await;
            to.write_all(&chunk).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(take, give).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(200);

    async fn echo() -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = listener.local_addr().expect("a port");
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("accept");
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await.expect("echo");
                to.shutdown().await.expect("end");
            }
        });
        (address, task)
    }

    #[tokio::test]
    async fn a_round_trip_takes_the_delay_twice_and_not_once_for_each_message() {
        let (target, _task) = echo().await;
        let proxy = Proxy::start(target.to_string(), DELAY).await.expect("a proxy");
        let mut stream = TcpStream::connect(proxy.address()).await.expect("connect");
        let begin = Instant::now();
        // Many messages are in transit at once: the delay does not limit the bandwidth.
        for n in 0..50u8 {
            stream.write_all(&[n; 100]).await.expect("send");
        }
        stream.shutdown().await.expect("end");
        let mut back = Vec::new();
        stream.read_to_end(&mut back).await.expect("receive");
        let took = begin.elapsed();
        let sent: Vec<u8> = (0..50u8).flat_map(|n| [n; 100]).collect();
        assert!(back == sent, "bytes pass unchanged and in order");
        assert!(took >= 2 * DELAY, "{took:?}");
        assert!(took < 20 * DELAY, "{took:?}");
    }

    #[tokio::test]
    async fn large_answers_pass_whole() {
        let (target, _task) = echo().await;
        let proxy = Proxy::start(target.to_string(), Duration::ZERO)
            .await
            .expect("a proxy");
        let (mut from, mut to) = TcpStream::connect(proxy.address())
            .await
            .expect("connect")
            .into_split();
        let sent: Vec<u8> = (0..3 << 20).map(|n| (n % 251) as u8).collect();
        let send = async {
            to.write_all(&sent).await?;
            to.shutdown().await
        };
        let mut back = Vec::new();
        let (sending, receiving) = tokio::join!(send, from.read_to_end(&mut back));
        sending.expect("send");
        receiving.expect("receive");
        assert!(back == sent);
    }

    #[tokio::test]
    async fn a_target_that_is_away_ends_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let unused = listener.local_addr().expect("a port");
        drop(listener);
        let proxy = Proxy::start(unused.to_string(), Duration::ZERO)
            .await
            .expect("a proxy");
        let mut stream = TcpStream::connect(proxy.address()).await.expect("connect");
        let mut back = Vec::new();
        let read = stream.read_to_end(&mut back).await;
        assert!(read.is_err() || back.is_empty());
    }
}
