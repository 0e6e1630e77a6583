//! A proxy between an attacher process and the API server.

mod answer;
mod object;

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderName, Method, Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tower::BoxError;

use crate::kubeconfig;
pub(crate) use answer::answer;
pub(crate) use object::Object;

/// Headers that belong to one connection or to the attacher's credentials.
const OWN_HEADERS: [HeaderName; 5] = [HOST, AUTHORIZATION, CONNECTION, TRANSFER_ENCODING, CONTENT_LENGTH];

pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;
pub(crate) type Answer = Result<Response<Body>, BoxError>;

/// Dropping it breaks its connections.
#[derive(Debug)]
pub(crate) struct ApiProxy {
    _tasks: JoinSet<()>,
}

// === impl ApiProxy ===

impl ApiProxy {
    /// Listens on a loopback port and writes a kubeconfig for it. If `respond` fails, the connection breaks.
    pub(crate) async fn start<F>(
        kubeconfig: &Path,
        respond: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    ) -> Result<Self>
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.context("listen for the attacher")?;
        let address = listener.local_addr().context("ask for the proxy's port")?;
        let server = json!({"server": format!("http://{address}")});
        kubeconfig::write(kubeconfig, server, "the proxy has another one")?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                while connections.try_join_next().is_some() {}
                // Without it, a small answer waits for the client's acknowledgement.
                stream.set_nodelay(true).ok();
                // An injected fault ends the connection.
                let connection =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(respond.clone()));
                connections.spawn(async move { drop(connection.await) });
            }
        });
        Ok(Self { _tasks: tasks })
    }
}

// === functions ===

/// The request to the API server, whose client adds the attacher's credentials.
pub(crate) fn forwarded(parts: Parts, body: &Bytes) -> Request<kube::client::Body> {
    let mut request = Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
    for header in OWN_HEADERS {
        request.headers_mut().remove(header);
    }
    request
}

/// The API server's response to the attacher.
pub(crate) fn returned(response: Response<kube::client::Body>) -> Response<Body> {
    let mut response = response.map(|body| body.map_err(Into::into).boxed_unsync());
    for header in [CONNECTION, TRANSFER_ENCODING, CONTENT_LENGTH] {
        response.headers_mut().remove(header);
    }
    response
}

/// The object that a request writes.
pub(crate) fn written(parts: &Parts, body: &[u8]) -> Option<Object> {
    let is_write = [Method::PATCH, Method::PUT, Method::POST, Method::DELETE].contains(&parts.method);
    is_write.then(|| Object::of(parts.uri.path(), body)).flatten()
}

/// Whether a patch changes nothing.
pub(crate) fn is_empty_patch(method: &Method, body: &[u8]) -> bool {
    *method == Method::PATCH
        && serde_json::from_slice(body).is_ok_and(|body: serde_json::Value| body == json!({}))
}
