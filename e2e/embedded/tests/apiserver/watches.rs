//! Watches.

use std::time::Duration;

use bytes::Bytes;
use embedded_cluster::apiserver::{ApiServer, ResponseBody};
use http::{Method, Request};
use http_body_util::{BodyExt, Empty};
use serde_json::{Value, json};
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::{ATTACHMENTS, call, mk_attachment, mk_server, patch};

/// A watch that a client reads.
pub(crate) struct Watch {
    body: ResponseBody,
    buffer: Vec<u8>,
}

impl Watch {
    pub(crate) async fn start(server: &ApiServer, query: &str) -> Self {
        let request = Request::get(format!("{ATTACHMENTS}?watch=true&{query}"));
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let response = server.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        Self {
            body: response.into_body(),
            buffer: Vec::new(),
        }
    }

    /// Type, name and object of the next event; `None` if the watch ended.
    pub(crate) async fn next(&mut self) -> Option<(String, String, Value)> {
        while !self.buffer.contains(&b'\n') {
            let frame = self.body.frame().await?.unwrap();
            self.buffer.extend_from_slice(&frame.into_data().unwrap());
        }
        let end = self.buffer.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        let event: Value = serde_json::from_slice(&line).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = text(&event["object"]["metadata"]["name"]);
        Some((text(&event["type"]), name, event["object"].clone()))
    }

    /// Type and name of the next event.
    pub(crate) async fn expect(&mut self, kind: &str, name: &str) {
        let next = timeout(Duration::from_secs(5), self.next()).await;
        let (found_kind, found_name, object) =
            next.expect("an event must come").expect("the watch must go on");
        assert_eq!(
            (found_kind.as_str(), found_name.as_str()),
            (kind, name),
            "{object}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn sends_changes_after_a_resource_version() {
    let server = mk_server(1);
    let (_, first) = call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("b")).await;
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = Watch::start(&server, &format!("resourceVersion={version}")).await;
    watch.expect("ADDED", "b").await;
    let labeled = json!({ "metadata": { "labels": { "a": "b" } } });
    patch(&server, &format!("{ATTACHMENTS}/a"), "merge", &labeled).await;
    watch.expect("MODIFIED", "a").await;
    call(&server, Method::DELETE, &format!("{ATTACHMENTS}/a"), &Value::Null).await;
    let (kind, _, object) = watch.next().await.unwrap();
    assert_eq!(kind, "DELETED");
    assert_eq!(
        object["metadata"]["resourceVersion"],
        server.revision().to_string(),
        "a deletion has a new version"
    );
}

#[tokio::test(start_paused = true)]
async fn sends_initial_events_and_a_bookmark_on_request() {
    let server = mk_server(1);
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let query = "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut watch = Watch::start(&server, query).await;
    watch.expect("ADDED", "a").await;
    let (kind, _, bookmark) = watch.next().await.unwrap();
    assert_eq!(kind, "BOOKMARK");
    let annotations = &bookmark["metadata"]["annotations"];
    assert_eq!(annotations["k8s.io/initial-events-end"], "true");
    assert_eq!(
        bookmark["metadata"]["resourceVersion"],
        server.revision().to_string()
    );
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("b")).await;
    watch.expect("ADDED", "b").await;
    let (kind, _, bookmark) = watch.next().await.unwrap();
    assert_eq!(kind, "BOOKMARK", "one follows every minute");
    assert_eq!(
        bookmark["metadata"]["resourceVersion"],
        server.revision().to_string()
    );
}

#[tokio::test(start_paused = true)]
async fn sends_a_bookmark_before_the_timeout_after_a_change() {
    let server = mk_server(1);
    let start = tokio::time::Instant::now();
    let query_now = || {
        format!(
            "allowWatchBookmarks=true&timeoutSeconds=10&resourceVersion={}",
            server.revision()
        )
    };
    let query = query_now();
    let mut watch = Watch::start(&server, &query).await;
    let mut idle = Watch::start(&server, &format!("{query}&fieldSelector=metadata.name%3Dz")).await;
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    watch.expect("ADDED", "a").await;
    for watch in [&mut watch, &mut idle] {
        let (kind, _, _) = watch.next().await.unwrap();
        assert_eq!(kind, "BOOKMARK");
    }
    assert_eq!(start.elapsed().as_secs(), 8);
    assert!(watch.next().await.is_none(), "the watch must time out");

    let mut nothing_new = Watch::start(&server, &query_now()).await;
    assert!(nothing_new.next().await.is_none(), "no bookmark is due");
}

#[tokio::test(start_paused = true)]
async fn sends_a_deletion_when_an_object_leaves_the_selection() {
    let server = mk_server(1);
    let mut watch = Watch::start(&server, "labelSelector=a%3Db").await;
    let path = format!("{ATTACHMENTS}/a");
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let label = |value: Value| json!({ "metadata": { "labels": { "a": value } } });
    patch(&server, &path, "merge", &label("b".into())).await;
    watch.expect("ADDED", "a").await;
    patch(&server, &path, "merge", &label("c".into())).await;
    let (kind, _, object) = watch.next().await.unwrap();
    assert_eq!(kind, "DELETED");
    assert_eq!(object["metadata"]["labels"]["a"], "b", "the last selected state");
    assert_eq!(
        object["metadata"]["resourceVersion"],
        server.revision().to_string()
    );
}

#[tokio::test(start_paused = true)]
async fn returns_expired_for_a_compacted_version() {
    let server = mk_server(1);
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("b")).await;
    server.compact();
    let mut watch = Watch::start(&server, "resourceVersion=2").await;
    let (kind, _, status) = watch.next().await.unwrap();
    assert_eq!(kind, "ERROR");
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(410), &json!("Expired"))
    );
    assert!(watch.next().await.is_none(), "the watch must end");
}

#[tokio::test(start_paused = true)]
async fn ends_at_its_timeout() {
    let server = mk_server(1);
    let mut watch = Watch::start(&server, "timeoutSeconds=7").await;
    let start = tokio::time::Instant::now();
    assert!(watch.next().await.is_none());
    assert_eq!(start.elapsed().as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn initial_events_of_a_future_version_time_out() {
    let server = mk_server(1);
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let start = tokio::time::Instant::now();
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=";
    let mut watch = Watch::start(&server, &format!("{query}1000")).await;
    let (kind, _, status) = watch.next().await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    assert_eq!((kind.as_str(), &status["code"]), ("ERROR", &json!(504)));
    let message = format!(
        "Timeout: Too large resource version: 1000, current: {}",
        server.revision()
    );
    assert_eq!(status["message"], message);
    assert!(watch.next().await.is_none(), "the watch must end");

    let next = server.revision() + 1;
    let query = format!("{query}{next}");
    let (mut watch, _) = tokio::join!(Watch::start(&server, &query), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        call(&server, Method::POST, ATTACHMENTS, &mk_attachment("b")).await
    });
    watch.expect("ADDED", "a").await;
    watch.expect("ADDED", "b").await;
}
