//! One request and its response, on its own connection.

use std::io;
use std::ops::ControlFlow;

use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::error::Error;
use crate::admin_api::endpoint::Endpoint;

/// Sends a request and reads the whole response.
pub(super) async fn exchange(
    endpoint: &Endpoint,
    method: Method,
    path: &str,
    body: Option<Vec<u8>>,
) -> Result<(StatusCode, Vec<u8>), Error> {
    talk(endpoint, method, path, body, async |response| {
        let status = response.status();
        let body = response.into_body().collect().await?;
        Ok((status, body.to_bytes().to_vec()))
    })
    .await
}

/// Reads a stream of server-sent events, each with its name and data, until `on_event` breaks.
pub(super) async fn follow(
    endpoint: &Endpoint,
    path: &str,
    mut on_event: impl FnMut(&str, &str) -> ControlFlow<()>,
) -> Result<(), Error> {
    talk(endpoint, Method::GET, path, None, async |response| {
        let mut body = response.into_body();
        let mut unread = Vec::new();
        while let Some(frame) = body.frame().await {
            unread.extend_from_slice(frame?.data_ref().map_or(&[][..], Bytes::as_ref));
            while let Some(end) = unread.windows(2).position(|ends| ends == b"\n\n") {
                let event: Vec<u8> = unread.drain(..end + 2).collect();
                if read(&String::from_utf8_lossy(&event), &mut on_event).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    })
    .await
}

fn read(event: &str, on_event: &mut impl FnMut(&str, &str) -> ControlFlow<()>) -> ControlFlow<()> {
    let field = |name: &str| {
        let mut lines = event.lines();
        lines.find_map(|line| {
            line.strip_prefix(name)
                .map(|text| text.strip_prefix(' ').unwrap_or(text))
        })
    };
    match (field("event:"), field("data:")) {
        (Some(name), Some(data)) => on_event(name, data),
        // A comment, by which the server keeps the connection alive.
        (Some(_), None) | (None, Some(_) | None) => ControlFlow::Continue(()),
    }
}

async fn talk<T>(
    endpoint: &Endpoint,
    method: Method,
    path: &str,
    body: Option<Vec<u8>>,
    listen: impl AsyncFnOnce(Response<Incoming>) -> Result<T, hyper::Error>,
) -> Result<T, Error> {
    let unreachable = |source: io::Error| Error::Unreachable {
        endpoint: endpoint.clone(),
        source,
    };
    let host = match endpoint {
        Endpoint::Tcp(address) => address.to_string(),
        Endpoint::Host { name, port } => format!("{name}:{port}"),
        Endpoint::None | Endpoint::Unix(_) => "localhost".to_owned(),
    };
    let mut request = Request::builder().method(method).uri(path).header(HOST, &host);
    if body.is_some() {
        request = request.header(CONTENT_TYPE, "application/json");
    }
    let request = request
        .body(Full::new(Bytes::from(body.unwrap_or_default())))
        .expect("a path made of encoded parts must be a path");
    let answer = match endpoint {
        Endpoint::None => return Err(unreachable(io::ErrorKind::NotFound.into())),
        Endpoint::Tcp(_) | Endpoint::Host { .. } => {
            let stream = TcpStream::connect(host).await.map_err(unreachable)?;
            converse(stream, request, listen).await
        }
        Endpoint::Unix(socket) => {
            let stream = UnixStream::connect(socket.path()).await.map_err(unreachable)?;
            converse(stream, request, listen).await
        }
    };
    answer.map_err(|source| Error::Broken {
        endpoint: endpoint.clone(),
        source,
    })
}

/// Drives the connection concurrently with the exchange, without a separate task: it ends when the exchange
/// drops it.
async fn converse<T>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Full<Bytes>>,
    listen: impl AsyncFnOnce(Response<Incoming>) -> Result<T, hyper::Error>,
) -> Result<T, hyper::Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async move {
        let response = sender.send_request(request).await?;
        listen(response).await
    };
    // An error of the connection also fails the exchange.
    let (answer, _) = tokio::join!(exchange, connection);
    answer
}
