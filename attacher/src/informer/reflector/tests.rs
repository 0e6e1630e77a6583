//! Watches of an in-process server, on a paused clock.

use std::convert::Infallible;
use std::sync::Mutex;

use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::kube_api::Access;
use crate::leader_election::Fenced;
use crate::model::Capabilities;

/// Time and query of each request.
type RequestLog = Arc<Mutex<Vec<(Instant, String)>>>;

type HttpResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

const SECOND: Duration = Duration::from_secs(1);

fn mk_response(status: u16, body: &Value) -> HttpResponse {
    let mut response = Response::new(Full::from(body.to_string()).boxed_unsync());
    *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
    response
}

fn mk_refusal(code: u16, reason: &str, details: Value) -> HttpResponse {
    let message = format!("csinodes is {reason}: user u cannot list it");
    mk_response(
        code,
        &json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                 "message": message, "reason": reason, "details": details }),
    )
}

fn mk_list() -> HttpResponse {
    mk_response(
        200,
        &json!({ "kind": "CSINodeList", "apiVersion": "storage.k8s.io/v1",
                 "metadata": { "resourceVersion": "7" }, "items": [] }),
    )
}

/// A watch of CSINodes on a server that responds to the `n`th request with `response`, or never if that is `None`.
fn mk_watch(
    response: impl Fn(usize, &str) -> Option<HttpResponse> + Clone + Send + Sync + 'static,
) -> (BoxStream<'static, Change<Node>>, RequestLog, Requests) {
    let requests = RequestLog::default();
    let seen = requests.clone();
    let server = service_fn(move |request: Request<Fenced<Body>>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let n = {
            let mut seen = seen.lock().expect("no other test holds it");
            seen.push((Instant::now(), query.clone()));
            seen.len()
        };
        let response = response(n, &query);
        async move {
            match response {
                Some(response) => Ok::<_, Infallible>(response),
                None => std::future::pending().await,
            }
        }
    });
    let access = Access::in_process(server).expect("an API server in this process");
    let clients = Clients::new(&access, None);
    let counts = clients.counts.clone();
    let driver = Arc::new(Driver::new("d.example", Capabilities::default(), ""));
    (nodes(&clients, driver, 1).boxed(), requests, counts)
}

/// The times of the list requests, in seconds after `begin`.
fn lists(requests: &RequestLog, begin: Instant) -> Vec<u64> {
    let requests = requests.lock().expect("no other test holds it");
    let lists = requests.iter().filter(|(_, query)| !query.contains("watch="));
    lists.map(|(at, _)| (*at - begin).as_secs()).collect()
}

/// Polls a watch for `time`.
async fn follow(watch: &mut (impl Stream<Item = Change<Node>> + Unpin), time: Duration) {
    let all = watch.by_ref().for_each(|_| std::future::ready(()));
    assert!(
        tokio::time::timeout(time, all).await.is_err(),
        "a watch never ends"
    );
}

#[tokio::test(start_paused = true)]
async fn backs_off_if_the_list_is_forbidden() {
    let (mut watch, requests, counts) = mk_watch(|_, _| Some(mk_refusal(403, "Forbidden", json!({}))));
    let begin = Instant::now();
    follow(&mut watch, 75 * SECOND).await;
    let early = lists(&requests, begin);
    assert!((4..=7).contains(&early.len()), "{early:?}");
    follow(&mut watch, 600 * SECOND).await;
    let later = lists(&requests, begin).len() - early.len();
    assert!((10..=21).contains(&later), "each 30 to 60 seconds: {later}");

    let failure = counts.watches()["csinodes"].clone();
    assert_eq!(failure.since, begin);
    assert_eq!(
        &*failure.why,
        "cannot list: csinodes is Forbidden: user u cannot list it (HTTP 403)"
    );
    assert_eq!(failure.times as usize, lists(&requests, begin).len());
}

#[tokio::test(start_paused = true)]
async fn honors_retry_after_of_header_and_body() {
    let in_header = || {
        let response = Response::builder().status(429).header("retry-after", "30");
        let body = Full::from("too many requests").boxed_unsync();
        response.body(body).expect("a response")
    };
    let in_body = || mk_refusal(429, "TooManyRequests", json!({ "retryAfterSeconds": 30 }));
    for response in [in_header as fn() -> HttpResponse, in_body] {
        let (mut watch, requests, _) = mk_watch(move |_, _| Some(response()));
        let begin = Instant::now();
        follow(&mut watch, 70 * SECOND).await;
        assert_eq!(lists(&requests, begin), [0, 30, 60]);
    }
}

#[tokio::test(start_paused = true)]
async fn successful_list_resets_the_backoff() {
    // Four failures, a list, a refused watch, then failures again.
    let (mut watch, requests, counts) = mk_watch(|n, query| match n {
        1..=4 | 7.. => Some(mk_refusal(503, "ServiceUnavailable", json!({}))),
        _ if query.contains("watch=") => Some(mk_refusal(410, "Expired", json!({}))),
        _ => Some(mk_list()),
    });
    let begin = Instant::now();
    follow(&mut watch, 60 * SECOND).await;
    let lists = lists(&requests, begin);
    // At most 1.6, 3.2, 6.4 and 12.8 seconds.
    assert!(lists[4] <= 24, "{lists:?}");
    // The refused watch was the first failure in a row.
    assert!(lists[5] - lists[4] <= 2, "{lists:?}");
    assert_eq!(
        counts.watches()["csinodes"].times,
        u32::try_from(lists.len()).unwrap()
    );
}

#[tokio::test(start_paused = true)]
async fn backs_off_if_each_watch_expires() {
    let (mut watch, requests, _) = mk_watch(|_, query| {
        Some(if query.contains("watch=") {
            mk_refusal(410, "Expired", json!({}))
        } else {
            mk_list()
        })
    });
    let begin = Instant::now();
    follow(&mut watch, 75 * SECOND).await;
    let lists = lists(&requests, begin);
    assert!((4..=7).contains(&lists.len()), "{lists:?}");
}

/// For example a resourceVersion of before the restore of a backup.
#[tokio::test(start_paused = true)]
async fn lists_again_after_five_refused_watches_unless_the_api_server_is_overloaded() {
    for (code, lists_again) in [(400, true), (504, true), (429, false)] {
        let (mut watch, requests, _) = mk_watch(move |_, query| {
            Some(if query.contains("watch=") {
                mk_refusal(code, "Refused", json!({}))
            } else {
                mk_list()
            })
        });
        let begin = Instant::now();
        follow(&mut watch, 3600 * SECOND).await;
        let lists = lists(&requests, begin).len();
        let watches = requests.lock().expect("no other test holds it").len() - lists;
        let expected = if lists_again { watches / 5 + 1 } else { 1 };
        assert_eq!(lists, expected, "{code}: {watches}");
    }
}

#[tokio::test(start_paused = true)]
async fn successful_watch_clears_the_reported_failure() {
    let (mut watch, requests, counts) = mk_watch(|n, query| match n {
        1 => Some(mk_refusal(403, "Forbidden", json!({}))),
        _ if query.contains("watch=") => {
            let quiet = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
            Some(Response::new(quiet.boxed_unsync()))
        }
        _ => Some(mk_list()),
    });
    let begin = Instant::now();
    follow(&mut watch, 100 * SECOND).await;
    assert_eq!(lists(&requests, begin).len(), 2);
    assert_eq!(counts.watches().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn relists_if_a_list_response_stalls() {
    let (mut watch, requests, counts) = mk_watch(|n, _| match n {
        1 => {
            let begun = Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"{\"kind\":")));
            let stopped = StreamBody::new(stream::iter([begun]).chain(stream::pending()));
            Some(Response::new(stopped.boxed_unsync()))
        }
        2 => Some(mk_list()),
        _ => {
            let quiet = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
            Some(Response::new(quiet.boxed_unsync()))
        }
    });
    let begin = Instant::now();
    follow(&mut watch, 91 * SECOND).await;
    let failure = counts.watches()["csinodes"].clone();
    assert_eq!(
        &*failure.why,
        "cannot list: no answer of the API server at localhost within 90 s"
    );
    follow(&mut watch, 10 * SECOND).await;
    let lists = lists(&requests, begin);
    assert_eq!((lists.len(), lists[0]), (2, 0));
    // The list has succeeded, and the watch after it may be silent.
    follow(&mut watch, 200 * SECOND).await;
    assert_eq!(counts.watches().len(), 0);
}
