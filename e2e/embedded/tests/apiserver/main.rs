//! Requests to the embedded API server. Codes and reasons are those of kube-apiserver 1.37.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod faults;
mod pods;
mod requests;
mod subresources;
mod throughput;
mod validation;
mod watches;

use bytes::Bytes;
use embedded_cluster::apiserver::{ApiServer, Clock, Options};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// Path of VolumeAttachments.
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// A server whose clock begins at a fixed time.
fn mk_server(seed: u64) -> ApiServer {
    let start = "2026-01-01T00:00:00Z".parse().unwrap();
    ApiServer::new(&Options {
        clock: Clock::starting_at(start),
        seed,
        window: 1000,
        ..Options::default()
    })
}

fn mk_attachment(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "attacher": "csi.example.com",
            "nodeName": "node-1",
            "source": { "persistentVolumeName": "pv-1" },
        },
    })
}

/// A pod with these fields of the spec in addition to a container.
fn mk_pod(name: &str, spec: Value) -> Value {
    let mut pod =
        json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let fields = spec.as_object().cloned().unwrap();
    pod["spec"].as_object_mut().unwrap().extend(fields);
    pod
}

/// Code and body of a response.
async fn send(
    server: &ApiServer,
    method: Method,
    path: &str,
    content_type: &str,
    body: Vec<u8>,
) -> (u16, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type);
    execute(server, request.body(Full::new(Bytes::from(body))).unwrap()).await
}

/// A list as a table.
async fn table(server: &ApiServer, path: &str) -> Value {
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let request = Request::get(path).header("accept", accept);
    execute(server, request.body(Full::default()).unwrap()).await.1
}

async fn execute(server: &ApiServer, request: Request<Full<Bytes>>) -> (u16, Value) {
    let response = server.clone().oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    (code, serde_json::from_slice(&body).unwrap_or(Value::String(text)))
}

/// The same with a JSON body.
async fn call(server: &ApiServer, method: Method, path: &str, body: &Value) -> (u16, Value) {
    let bytes = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    send(server, method, path, "application/json", bytes).await
}

/// A patch; `kind` is `merge`, `json` or `strategic-merge`.
async fn patch(server: &ApiServer, path: &str, kind: &str, body: &Value) -> (u16, Value) {
    let content_type = format!("application/{kind}-patch+json");
    send(
        server,
        Method::PATCH,
        path,
        &content_type,
        body.to_string().into_bytes(),
    )
    .await
}

/// Checks code, reason and message of a failed request.
fn assert_fails(response: (u16, Value), code: u16, reason: &str, message: &str) {
    assert_eq!(response.0, code, "{}", response.1);
    assert_eq!(response.1["reason"], reason, "{}", response.1);
    assert_eq!(response.1["message"], message);
}

/// Checks code and reason of a failed request, and that its message says `why`.
fn assert_refused(response: (u16, Value), code: u16, reason: &str, why: &str) {
    assert_eq!(response.0, code, "{}", response.1);
    assert_eq!(response.1["reason"], reason, "{}", response.1);
    let message = response.1["message"].as_str().unwrap();
    assert!(message.contains(why), "{message} must say: {why}");
}
