//! Fault rules.

use std::time::Duration;

use bytes::Bytes;
use embedded_cluster::apiserver::{ApiServer, ConnectionReset, Fault, Rule, Status};
use http::{Method, Request};
use http_body_util::Full;
use serde_json::Value;
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::watches::Watch;
use super::{ATTACHMENTS, call, mk_attachment, mk_server};

/// Whether the connection broke during a creation.
async fn create_breaks(server: &ApiServer, name: &str) -> bool {
    let body = Full::new(Bytes::from(mk_attachment(name).to_string()));
    let request = Request::post(ATTACHMENTS).body(body).unwrap();
    match server.clone().oneshot(request).await {
        Ok(_) => false,
        Err(error) => error.is::<ConnectionReset>(),
    }
}

#[tokio::test(start_paused = true)]
async fn loses_a_response_after_the_write() {
    let server = mk_server(1);
    let rule = Rule::always(Fault::LostResponse).verbs(&["create"]).times(1);
    server.set_faults(vec![rule]);
    assert!(create_breaks(&server, "a").await);
    let path = format!("{ATTACHMENTS}/a");
    assert_eq!(call(&server, Method::GET, &path, &Value::Null).await.0, 200);
    assert!(!create_breaks(&server, "b").await, "the rule fires once");
}

#[tokio::test(start_paused = true)]
async fn executes_a_request_although_its_connection_broke() {
    let server = mk_server(1);
    let delay = Duration::from_secs(20);
    let rule = Rule::always(Fault::LateExecution(delay))
        .verbs(&["create"])
        .times(1);
    server.set_faults(vec![rule]);
    assert!(create_breaks(&server, "a").await);
    let count = || server.count("storage.k8s.io", "volumeattachments");
    tokio::time::sleep(delay - Duration::from_millis(1)).await;
    assert_eq!(count(), Some(0));
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(count(), Some(1));
}

#[tokio::test(start_paused = true)]
async fn loses_a_request_before_the_write() {
    let server = mk_server(1);
    server.set_faults(vec![Rule::always(Fault::LostRequest).verbs(&["create"])]);
    assert!(create_breaks(&server, "a").await);
    assert_eq!(server.count("storage.k8s.io", "volumeattachments"), Some(0));
}

#[tokio::test(start_paused = true)]
async fn rules_refuse_and_delay_matching_requests() {
    let server = mk_server(1);
    server.set_faults(vec![
        Rule::always(Fault::Latency(Duration::from_secs(3))).verbs(&["get"]),
        Rule::always(Fault::Conflict)
            .resource("volumeattachments")
            .verbs(&["update"]),
        Rule::always(Fault::Error(Status::too_many_requests(1))).resource("volumeattachments/status"),
    ]);
    let path = format!("{ATTACHMENTS}/a");
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let start = Instant::now();
    let (_, object) = call(&server, Method::GET, &path, &Value::Null).await;
    assert_eq!(start.elapsed(), Duration::from_secs(3));
    assert_eq!(call(&server, Method::PUT, &path, &object).await.0, 409);
    let status = format!("{path}/status");
    assert_eq!(call(&server, Method::PUT, &status, &object).await.0, 429);
}

#[tokio::test(start_paused = true)]
async fn rules_break_and_delay_watches() {
    let server = mk_server(1);
    let rules = |fault| vec![Rule::always(fault).verbs(&["watch"]).times(1)];
    server.set_faults(rules(Fault::DroppedWatch(Duration::from_secs(5))));
    let mut watch = Watch::start(&server, "").await;
    let start = Instant::now();
    assert!(watch.next().await.is_none());
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    server.set_faults(rules(Fault::StaleWatch(Duration::from_secs(9))));
    let mut watch = Watch::start(&server, "").await;
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let start = Instant::now();
    assert_eq!(watch.next().await.unwrap().1, "a");
    assert_eq!(start.elapsed(), Duration::from_secs(9));
    server.set_down(true);
    assert!(watch.next().await.is_none());
    assert!(create_breaks(&server, "b").await);
    server.set_down(false);
    assert!(!create_breaks(&server, "b").await);
}

#[tokio::test(start_paused = true)]
async fn stopped_server_does_not_respond_to_running_requests() {
    let server = mk_server(1);
    let wait = Duration::from_secs(3);
    server.set_faults(vec![Rule::always(Fault::Latency(wait)).verbs(&["create"])]);
    let stop = |up_after: u64| {
        let server = &server;
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            server.set_down(true);
            tokio::time::sleep(Duration::from_secs(up_after)).await;
            server.set_down(false);
        }
    };
    let count = || server.count("storage.k8s.io", "volumeattachments");
    // The server is up again before the latency is over, and after.
    for up_after in [1, 5] {
        let (broke, ()) = tokio::join!(create_breaks(&server, "a"), stop(up_after));
        assert!(broke);
        assert_eq!(count(), Some(0));
    }
    server.set_faults(vec![Rule::always(Fault::LateExecution(wait)).verbs(&["create"])]);
    assert!(create_breaks(&server, "a").await);
    stop(1).await;
    tokio::time::sleep(wait).await;
    assert_eq!(count(), Some(0));
}

#[tokio::test(start_paused = true)]
async fn delayed_watch_sends_nothing_even_if_it_breaks() {
    let server = mk_server(1);
    call(&server, Method::POST, ATTACHMENTS, &mk_attachment("a")).await;
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let stale = Rule::always(Fault::StaleWatch(Duration::from_secs(9))).verbs(&["watch"]);
    let dropped = Rule::always(Fault::DroppedWatch(Duration::from_secs(4))).verbs(&["watch"]);
    let start = Instant::now();
    server.set_faults(vec![stale.clone()]);
    let mut watch = Watch::start(&server, initial).await;
    assert_eq!(watch.next().await.unwrap().1, "a");
    assert_eq!(start.elapsed(), Duration::from_secs(9));

    server.set_faults(vec![stale.clone(), dropped]);
    let mut watch = Watch::start(&server, initial).await;
    let start = Instant::now();
    assert!(watch.next().await.is_none());
    assert_eq!(start.elapsed(), Duration::from_secs(4));

    server.set_faults(vec![stale.clone()]);
    let mut watch = Watch::start(&server, initial).await;
    let start = Instant::now();
    let (next, ()) = tokio::join!(watch.next(), async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.set_down(true);
        server.set_down(false);
    });
    assert!(next.is_none());
    assert_eq!(start.elapsed(), Duration::from_secs(2));

    let mut watch = Watch::start(&server, &format!("{initial}&timeoutSeconds=3")).await;
    let start = Instant::now();
    assert!(watch.next().await.is_none());
    assert_eq!(start.elapsed(), Duration::from_secs(3));
}
