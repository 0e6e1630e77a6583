//! Watches of a server that is one function, on a paused clock.

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

/// When the server was asked for what: the query of each request.
type Asked = Arc<Mutex<Vec<(Instant, String)>>>;

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

const SECOND: Duration = Duration::from_secs(1);

fn mk_answer(status: u16, body: &Value) -> Answer {
    let mut answer = Response::new(Full::from(body.to_string()).boxed_unsync());
    *answer.status_mut() = http::StatusCode::from_u16(status).expect("a status");
    answer
}

fn mk_refusal(code: u16, reason: &str, details: Value) -> Answer {
    let message = format!("csinodes is {reason}: user u cannot list it");
    mk_answer(
        code,
        &json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                 "message": message, "reason": reason, "details": details }),
    )
}

fn mk_list() -> Answer {
    mk_answer(
        200,
        &json!({ "kind": "CSINodeList", "apiVersion": "storage.k8s.io/v1",
                 "metadata": { "resourceVersion": "7" }, "items": [] }),
    )
}

/// The watch of CSINodes at a server that gives the `n`th request what `answer` says for it; nothing: none,
/// ever.
fn mk_watch(
    answer: impl Fn(usize, &str) -> Option<Answer> + Clone + Send + Sync + 'static,
) -> (BoxStream<'static, Change<Node>>, Asked, Requests) {
    let asked = Asked::default();
    let seen = asked.clone();
    let server = service_fn(move |request: Request<Fenced<Body>>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let n = {
            let mut seen = seen.lock().expect("no other test holds it");
            seen.push((Instant::now(), query.clone()));
            seen.len()
        };
        let answer = answer(n, &query);
        async move {
            match answer {
                Some(answer) => Ok::<_, Infallible>(answer),
                None => std::future::pending().await,
            }
        }
    });
    let access = Access::in_process(server).expect("an API server in this process");
    let clients = Clients::new(&access, None);
    let counts = clients.counts.clone();
    let driver = Arc::new(Driver::new("d.example", Capabilities::default(), ""));
    (nodes(&clients, driver, 1).boxed(), asked, counts)
}

/// The seconds after `begin` at which the server was asked for a list.
fn lists(asked: &Asked, begin: Instant) -> Vec<u64> {
    let asked = asked.lock().expect("no other test holds it");
    let lists = asked.iter().filter(|(_, query)| !query.contains("watch="));
    lists.map(|(at, _)| (*at - begin).as_secs()).collect()
}

/// Follows a watch for so long.
async fn follow(watch: &mut (impl Stream<Item = Change<Node>> + Unpin), time: Duration) {
    let all = watch.by_ref().for_each(|_| std::future::ready(()));
    assert!(
        tokio::time::timeout(time, all).await.is_err(),
        "a watch never ends"
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_forbidden_is_asked_for_ever_more_seldom() {
    let (mut watch, asked, counts) = mk_watch(|_, _| Some(mk_refusal(403, "Forbidden", json!({}))));
    let begin = Instant::now();
    follow(&mut watch, 75 * SECOND).await;
    let early = lists(&asked, begin);
    assert!((4..=7).contains(&early.len()), "{early:?}");
    follow(&mut watch, 600 * SECOND).await;
    let later = lists(&asked, begin).len() - early.len();
    assert!((10..=21).contains(&later), "each 30 to 60 seconds: {later}");

    let trouble = counts.state().watches["csinodes"].clone();
    assert_eq!(trouble.since, begin);
    assert_eq!(
        &*trouble.why,
        "cannot list: csinodes is Forbidden: user u cannot list it (HTTP 403)"
    );
    let refused = u64::from(trouble.times);
    assert_eq!(counts.state().refused.count, refused);
    assert_eq!(counts.state().granted, None);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_for_time_gets_it() {
    let in_header = || {
        let answer = Response::builder().status(429).header("retry-after", "30");
        let body = Full::from("too many requests").boxed_unsync();
        answer.body(body).expect("an answer")
    };
    let in_body = || mk_refusal(429, "TooManyRequests", json!({ "retryAfterSeconds": 30 }));
    for answer in [in_header as fn() -> Answer, in_body] {
        let (mut watch, asked, _) = mk_watch(move |_, _| Some(answer()));
        let begin = Instant::now();
        follow(&mut watch, 70 * SECOND).await;
        assert_eq!(lists(&asked, begin), [0, 30, 60]);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_list_that_came_at_last_the_pauses_begin_anew() {
    // Four failures, a list and its watch, which is cut off later; then all over again.
    let (mut watch, asked, counts) = mk_watch(|n, query| match n {
        1..=4 | 7.. => Some(mk_refusal(503, "ServiceUnavailable", json!({}))),
        _ if query.contains("watch=") => Some(mk_refusal(410, "Expired", json!({}))),
        _ => Some(mk_list()),
    });
    let begin = Instant::now();
    follow(&mut watch, 60 * SECOND).await;
    let lists = lists(&asked, begin);
    // At most 1.6, 3.2, 6.4 and 12.8 seconds.
    assert!(lists[4] <= 24, "{lists:?}");
    // The watch was refused at once, and was the first failure in a row.
    assert!(lists[5] - lists[4] <= 2, "{lists:?}");
    assert_eq!(
        counts.state().watches["csinodes"].times,
        u32::try_from(lists.len()).unwrap()
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_each_watch_is_not_asked_for_a_list_each_second() {
    let (mut watch, asked, _) = mk_watch(|_, query| {
        Some(if query.contains("watch=") {
            mk_refusal(410, "Expired", json!({}))
        } else {
            mk_list()
        })
    });
    let begin = Instant::now();
    follow(&mut watch, 75 * SECOND).await;
    let lists = lists(&asked, begin);
    assert!((4..=7).contains(&lists.len()), "{lists:?}");
}

#[tokio::test(start_paused = true)]
async fn an_allowed_watch_clears_the_reported_failure() {
    let (mut watch, asked, counts) = mk_watch(|n, query| match n {
        1 => Some(mk_refusal(403, "Forbidden", json!({}))),
        _ if query.contains("watch=") => {
            let quiet = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
            Some(Response::new(quiet.boxed_unsync()))
        }
        _ => Some(mk_list()),
    });
    let begin = Instant::now();
    follow(&mut watch, 100 * SECOND).await;
    assert_eq!(lists(&asked, begin).len(), 2);
    assert_eq!(counts.state().watches.len(), 0);
    assert!(counts.state().granted.is_some());
}

#[tokio::test(start_paused = true)]
async fn relists_when_a_list_stops_in_its_middle() {
    let (mut watch, asked, counts) = mk_watch(|n, _| match n {
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
    let trouble = counts.state().watches["csinodes"].clone();
    assert_eq!(
        &*trouble.why,
        "cannot list: no answer within 90 s: deadline has elapsed"
    );
    follow(&mut watch, 10 * SECOND).await;
    let lists = lists(&asked, begin);
    assert_eq!((lists.len(), lists[0]), (2, 0));
    // It has come, and the next one is not due: the watch after it may be silent for as long as it likes.
    follow(&mut watch, 200 * SECOND).await;
    assert_eq!(counts.state().watches.len(), 0);
}
