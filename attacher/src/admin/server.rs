//! HTTP/1.1, bounded in connections and in time.
//!
//! Whoever asks here is a probe, Prometheus or a person, and none asks often: each connection serves
//! one request and has a few seconds for it, so that nobody who is slow, or means ill, can hold on to
//! anything.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
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
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{Page, View};

/// How many connections are served at once. The next ones wait in the kernel.
const CONNECTIONS: usize = 64;
/// How long the head of a request may take to arrive.
const HEAD: Duration = Duration::from_secs(5);
/// How long a connection may take in all.
const CONNECTION: Duration = Duration::from_secs(15);
/// How long requests under way may go on when the server is to end.
const GRACE: Duration = Duration::from_secs(1);
/// How long nothing is accepted after that failed, for want of file descriptors as a rule.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens at an address as Go has it: `host:port`, where no host means all addresses of this machine.
///
/// # Errors
///
/// When nobody can listen there.
pub async fn listen(address: &str) -> io::Result<TcpListener> {
    match address.strip_prefix(':') {
        None => TcpListener::bind(address).await,
        Some(port) => match TcpListener::bind(format!("[::]:{port}")).await {
            // There may be no IPv6.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind(format!("0.0.0.0:{port}")).await
            }
            bound => bound,
        },
    }
}

/// Serves `view` until `shutdown`.
///
/// # Cancellation
///
/// Drops all connections.
pub async fn serve(listener: TcpListener, view: Arc<View>, shutdown: CancellationToken) {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(()) = connections.next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => connections.push(connection(stream, view.clone())),
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

async fn connection(stream: TcpStream, view: Arc<View>) {
    let service = service_fn(move |request| {
        let view = view.clone();
        async move { Ok::<_, Infallible>(answer(&view, &request)) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION, served).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an HTTP connection failed"),
        Err(_) => tracing::debug!("an HTTP connection took too long"),
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
