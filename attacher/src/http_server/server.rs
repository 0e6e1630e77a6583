//! HTTP/1.1, bounded in connections and in time.
//!
//! Whoever asks here is a probe, Prometheus or a person, and none asks often: each connection serves
//! one request and has a few seconds for it, so that nobody who is slow, or means ill, can hold on to
//! anything, nor keep others out.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{Page, View};

/// How many connections are served at once. For one more, the one goes that has kept us waiting longest.
const CONNECTIONS: usize = 64;
/// How long the head of a request may take to arrive.
const HEAD: Duration = Duration::from_secs(2);
/// How long a connection may take in all.
const CONNECTION: Duration = Duration::from_secs(15);
/// How long requests under way may go on when the server is to end.
const GRACE: Duration = Duration::from_secs(1);
/// How long nothing is accepted after that failed, for want of file descriptors as a rule.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that may wait in the kernel.
const BACKLOG: i32 = 1024;

/// Somebody who is connected.
#[derive(Debug, Default)]
struct Guest {
    /// Whether the head of a request has come.
    has_asked: AtomicBool,
    leave: CancellationToken,
}

/// Listens at an address as Go has it: `host:port`, where no host means all addresses of this machine,
/// those of IPv4 and of IPv6, whatever the kernel has for a default.
///
/// # Errors
///
/// When nobody can listen there.
pub async fn listen(address: &str) -> io::Result<TcpListener> {
    let Some(port) = address.strip_prefix(':') else {
        return TcpListener::bind(address).await;
    };
    let port = port.parse().map_err(io::Error::other)?;
    match listen_at_all(port) {
        // There may be no IPv6.
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

/// Serves `view` until `shutdown`.
///
/// # Cancellation
///
/// Drops all connections.
pub async fn serve(listener: TcpListener, view: Arc<View>, shutdown: CancellationToken) {
    let mut connections = FuturesUnordered::new();
    let mut guests = VecDeque::new();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(()) = connections.next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let guest = Arc::new(Guest::default());
                    make_room(&mut guests);
                    guests.push_back(guest.clone());
                    connections.push(connection(stream, view.clone(), guest));
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

/// Whoever comes gets in, or a probe that waits behind connections that say nothing would have us killed.
/// First to go is the oldest that has not asked for anything, then the oldest that is slow to read.
fn make_room(guests: &mut VecDeque<Arc<Guest>>) {
    // The other handle is the connection's own.
    guests.retain(|guest| Arc::strong_count(guest) > 1);
    if guests.len() < CONNECTIONS {
        return;
    }
    let silent = |guest: &Arc<Guest>| !guest.has_asked.load(Ordering::Relaxed);
    let first = guests.iter().position(silent).unwrap_or_default();
    if let Some(guest) = guests.remove(first) {
        guest.leave.cancel();
    }
}

async fn connection(stream: TcpStream, view: Arc<View>, guest: Arc<Guest>) {
    let asks = guest.clone();
    let service = service_fn(move |request| {
        asks.has_asked.store(true, Ordering::Relaxed);
        let view = view.clone();
        async move { Ok::<_, Infallible>(answer(&view, &request)) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let served = guest
        .leave
        .run_until_cancelled(tokio::time::timeout(CONNECTION, served));
    match served.await {
        Some(Ok(Ok(()))) => {}
        Some(Ok(Err(error))) => tracing::debug!(%error, "an HTTP connection failed"),
        Some(Err(_)) => tracing::debug!("an HTTP connection took too long"),
        None => tracing::debug!("an HTTP connection had to make room for another"),
    }
}

fn answer<B>(view: &View, request: &Request<B>) -> Response<Full<Bytes>> {
    let uri = request.uri();
    let Some(page) = view.page(uri.path(), uri.query().unwrap_or_default()) else {
        return response(Page::plain(StatusCode::NOT_FOUND, "404 page not found\n"));
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let page = Page::plain(StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed\n");
        let mut response = response(page);
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    response(page)
}

fn response(page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(page.text.into()));
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_by_the_oldest_that_has_not_asked() {
        let mut guests = VecDeque::new();
        let connected: Vec<Arc<Guest>> = (0..CONNECTIONS)
            .map(|_| {
                make_room(&mut guests);
                guests.push_back(Arc::default());
                guests[guests.len() - 1].clone()
            })
            .collect();
        let left = || {
            let left = |at: &usize| connected[*at].leave.is_cancelled();
            (0..CONNECTIONS).filter(left).collect::<Vec<_>>()
        };
        let asks = |at: usize| connected[at].has_asked.store(true, Ordering::Relaxed);
        assert!(left().is_empty());
        asks(0);
        asks(2);
        make_room(&mut guests);
        assert_eq!(left(), [1]);
        // There is room now.
        make_room(&mut guests);
        assert_eq!(left(), [1]);
        (0..CONNECTIONS).for_each(asks);
        guests.push_back(connected[1].clone());
        make_room(&mut guests);
        assert_eq!(left(), [0, 1]);
    }
}
