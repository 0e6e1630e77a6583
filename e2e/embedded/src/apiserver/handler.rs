//! Handles requests: resolves the path, and injects faults.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Limited};
use serde_json::json;
use tower::BoxError;

use super::call::Call;
use super::fault::{FaultDecision, RequestInfo};
use super::reply::Reply;
use super::request::{self, Query, Target, View};
use super::status::Status;
use super::{ConnectionReset, ResponseBody, Server, discovery};

/// Maximum size of a request body in bytes.
const BODY_LIMIT: usize = 3 * 1024 * 1024;
const JSON: &str = "application/json";

/// Handles a request and injects faults. If the server stops, it closes the connection without a response; the write
/// may or may not be stored.
///
/// # Errors
/// The connection breaks: by a fault rule, because the server stops, or because the request's body ended early.
pub(crate) async fn handle<B>(
    server: Arc<Server>,
    request: Request<B>,
) -> Result<Response<ResponseBody>, BoxError>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let stopped = server.faults.stopped();
    let response = stopped.run_until_cancelled(process(server, request)).await;
    response.unwrap_or_else(|| Err(ConnectionReset.into()))
}

async fn process<B>(server: Arc<Server>, request: Request<B>) -> Result<Response<ResponseBody>, BoxError>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let query = Query::of(&parts.uri);
    let target = Target::of(parts.uri.path());
    let location = match &target {
        Target::Resource(location) => Some(location),
        Target::Other(_) | Target::Unknown | Target::NotImplemented(_) | Target::AlwaysEmpty(..) => None,
    };
    let verb = location.map_or("get", |location| location.verb(&parts.method, &query));
    let decision = server.faults.decide(&RequestInfo {
        verb,
        location,
        user_agent: request::header_text(&parts.headers, &header::USER_AGENT),
    });
    if !decision.latency.is_zero() {
        tokio::time::sleep(decision.latency).await;
    }
    if decision.loses_request {
        return Err(ConnectionReset.into());
    }
    let body = match Limited::new(body, BODY_LIMIT).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            return Ok(failure(&Status::too_large(BODY_LIMIT)));
        }
        Err(error) => return Err(error),
    };
    let (loses_response, late_by) = (decision.loses_response, decision.late_by);
    let execution = execute(server.clone(), parts, target, query, body, decision);
    if let Some(time) = late_by {
        server.faults.execute_late(time, execution.map(drop));
        return Err(ConnectionReset.into());
    }
    let response = execution.await;
    if loses_response {
        return Err(ConnectionReset.into());
    }
    Ok(response)
}

async fn execute(
    server: Arc<Server>,
    parts: Parts,
    target: Target,
    query: Query,
    body: Bytes,
    decision: FaultDecision,
) -> Response<ResponseBody> {
    match &target {
        Target::Other(path) => other(path, &parts.headers, &parts.method),
        Target::Unknown => failure(&Status::no_such_path()),
        Target::NotImplemented(what) => failure(&Status::not_implemented(what)),
        Target::AlwaysEmpty(plural, kind) => {
            let is_list = parts.method == Method::GET
                && !query.flag("watch")
                && matches!(request::view(&parts.headers, &query), Ok(View::Full));
            if is_list {
                let metadata = json!({ "resourceVersion": server.store().revision().to_string() });
                let list = json!({ "kind": kind, "apiVersion": "v1", "metadata": metadata, "items": [] });
                response(StatusCode::OK, JSON, ResponseBody::full(list.to_string()))
            } else {
                failure(&Status::not_implemented(plural))
            }
        }
        Target::Resource(location) => {
            let mut call = Call {
                server: &server,
                location,
                query: &query,
                headers: &parts.headers,
                body,
                warnings: Vec::new(),
            };
            let reply = call.execute(&parts.method, &decision).await;
            respond(reply, &call.warnings)
        }
    }
}

fn respond(reply: Result<Reply, Status>, warnings: &[String]) -> Response<ResponseBody> {
    let mut response = match reply {
        Ok(reply) => response(reply.code, JSON, reply.body),
        Err(status) => failure(&status),
    };
    for (index, warning) in warnings.iter().enumerate() {
        if warnings[..index].contains(warning) {
            continue;
        }
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

fn failure(status: &Status) -> Response<ResponseBody> {
    let body = ResponseBody::full(status.body().to_string());
    let mut response = response(status.code, JSON, body);
    if let Some(seconds) = status.details["retryAfterSeconds"].as_u64() {
        let seconds = HeaderValue::from(seconds);
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}

fn response(code: StatusCode, content_type: &'static str, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// Discovery and health.
fn other(path: &str, headers: &HeaderMap, method: &Method) -> Response<ResponseBody> {
    let accept = request::header_text(headers, &header::ACCEPT);
    let found = discovery::respond(path, accept).filter(|_| method == Method::GET);
    let (code, content_type, body) = match found {
        Some((content_type, body)) => (StatusCode::OK, content_type, body),
        None => (
            StatusCode::NOT_FOUND,
            "text/plain; charset=utf-8",
            Bytes::from_static(b"404 page not found\n"),
        ),
    };
    response(code, content_type, ResponseBody::full(body))
}
