//! HTTP/1.1, bounded in connections and in time.
//!
//! Clients are probes, Prometheus and users, which send few requests: each connection serves one request within a few
//! seconds, so that a slow or malicious client cannot block others.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, ServiceExt};

use super::Tls;
use crate::report::chain;

/// Maximum number of connections. One more evicts the one that has been idle longest.
const CONNECTIONS: usize = 64;
/// Timeout for the request headers.
const HEAD: Duration = Duration::from_secs(2);
/// Maximum size of the request line with the headers, which a client without a permission fills too.
const MAX_HEAD: usize = 64 * 1024;
/// Timeout for the whole connection.
const CONNECTION: Duration = Duration::from_secs(15);
/// Timeout of open connections at shutdown.
const GRACE: Duration = Duration::from_secs(1);
/// Pause after a failed accept, usually due to a lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that may wait in the kernel.
const BACKLOG: i32 = 1024;

/// The client of a connection.
#[derive(Debug, Default)]
struct Peer {
    /// Whether the headers of a request have arrived.
    sent_request: AtomicBool,
    evicted: CancellationToken,
}

/// Listens at an address of Go's form, `host:port`. Without a host it binds all addresses, IPv4 and IPv6, whatever
/// `net.ipv6.bindv6only` is.
///
/// # Errors
///
/// When the address cannot be bound.
pub async fn listen(address: &str) -> io::Result<TcpListener> {
    let Some(port) = address.strip_prefix(':') else {
        return TcpListener::bind(address).await;
    };
    let port = port.parse().map_err(io::Error::other)?;
    match listen_at_all(port) {
        // The kernel may have IPv6 disabled.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        listening => listening,
    }
}

fn listen_at_all(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    socket.set_only_v6(false)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Serves `router` until `shutdown`, with `tls` if there is any.
///
/// # Cancellation
///
/// Drops all connections.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<Arc<Tls>>,
    shutdown: CancellationToken,
) {
    let mut connections = FuturesUnordered::new();
    let mut peers = VecDeque::new();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(()) = connections.next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let peer = Arc::new(Peer::default());
                    evict_if_full(&mut peers);
                    peers.push_back(peer.clone());
                    connections.push(connection(stream, router.clone(), tls.clone(), peer));
                }
                Err(error) => {
                    tracing::debug!(%error, "could not accept an HTTP connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    let ended = tokio::time::timeout(GRACE, connections.for_each(|()| std::future::ready(()))).await;
    if ended.is_err() {
        tracing::debug!("HTTP requests were cut off");
    }
}

/// A new connection is always accepted: if kubelet's probe waited behind idle connections, kubelet would restart the
/// container. The oldest connection without a request is evicted first, then the oldest one.
fn evict_if_full(peers: &mut VecDeque<Arc<Peer>>) {
    // The other handle is the connection's own.
    peers.retain(|peer| Arc::strong_count(peer) > 1);
    if peers.len() < CONNECTIONS {
        return;
    }
    let silent = |peer: &Arc<Peer>| !peer.sent_request.load(Ordering::Relaxed);
    let first = peers.iter().position(silent).unwrap_or_default();
    if let Some(peer) = peers.remove(first) {
        peer.evicted.cancel();
    }
}

async fn connection(stream: TcpStream, router: Router, tls: Option<Arc<Tls>>, peer: Arc<Peer>) {
    let served = async {
        let Some(tls) = tls else {
            return requests(stream, router, &peer).await;
        };
        let stream = tls.accept(stream).await?;
        requests(stream, router, &peer).await
    };
    let served = peer.evicted.run_until_cancelled(timeout(CONNECTION, served));
    match served.await {
        Some(Ok(Ok(()))) => {}
        Some(Ok(Err(error))) => tracing::debug!(error = chain(&*error), "an HTTP connection failed"),
        Some(Err(_)) => tracing::debug!("an HTTP connection took too long"),
        None => tracing::debug!("an HTTP connection was evicted for another"),
    }
}

async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    peer: &Peer,
) -> Result<(), BoxError> {
    let service = service_fn(|request| {
        peer.sent_request.store(true, Ordering::Relaxed);
        router.clone().oneshot(request)
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicts_the_oldest_connection_without_request_first() {
        let mut peers = VecDeque::new();
        let connected: Vec<Arc<Peer>> = (0..CONNECTIONS)
            .map(|_| {
                evict_if_full(&mut peers);
                peers.push_back(Arc::default());
                peers[peers.len() - 1].clone()
            })
            .collect();
        let evicted = || {
            let evicted = |at: &usize| connected[*at].evicted.is_cancelled();
            (0..CONNECTIONS).filter(evicted).collect::<Vec<_>>()
        };
        let send_request = |at: usize| connected[at].sent_request.store(true, Ordering::Relaxed);
        assert!(evicted().is_empty());
        send_request(0);
        send_request(2);
        evict_if_full(&mut peers);
        assert_eq!(evicted(), [1]);
        // There is room now.
        evict_if_full(&mut peers);
        assert_eq!(evicted(), [1]);
        (0..CONNECTIONS).for_each(send_request);
        peers.push_back(connected[1].clone());
        evict_if_full(&mut peers);
        assert_eq!(evicted(), [0, 1]);
    }
}
