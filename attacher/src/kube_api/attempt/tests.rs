//! Attempts against a server that is one function, through kube's client.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use http::HeaderValue;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::client::Body;
use kube::{Api, Client};
use tokio::time::{Instant, sleep};
use tower::{ServiceExt as _, service_fn};

use super::super::request_limiter::{Priority, RequestKind, RequestLimiter};
use super::super::retry::until_answered;
use super::super::{Error, Requests};
use super::*;

/// What an API server that is one function was sent, and when.
type Sent = Arc<Mutex<Vec<Instant>>>;

/// A client of a server that answers the first request with these headers and status 503, all others
/// well, once it has made its connection, which takes a while.
fn mk_api(connect: Duration, headers: &'static [(&'static str, &'static str)]) -> (Api<Secret>, Sent) {
    let sent = Sent::default();
    let seen = sent.clone();
    let server = service_fn(move |request: Request<Fenced<Body>>| {
        let seen = seen.clone();
        async move {
            sleep(connect).await;
            let Ok(_body) = request.into_body().collect().await else {
                return std::future::pending().await;
            };
            let mut seen = seen.lock().expect("no other test holds it");
            seen.push(Instant::now());
            let answer = Response::builder();
            Ok::<_, Infallible>(if seen.len() == 1 && !headers.is_empty() {
                let busy = answer.status(503);
                let busy = headers
                    .iter()
                    .fold(busy, |busy, (name, value)| busy.header(*name, *value));
                busy.body(Body::from(b"try later".to_vec())).expect("an answer")
            } else {
                answer.body(Body::from(b"{}".to_vec())).expect("an answer")
            })
        }
    });
    let client = Client::new(
        service_fn(move |request| {
            let server = server.clone();
            async move { super::sent(request, |request| server.oneshot(request)).await }
        }),
        "default",
    );
    (Api::default_namespaced(client), sent)
}

#[tokio::test(start_paused = true)]
async fn waits_for_a_second_at_most_and_reports_a_longer_retry_after() {
    const NOW: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    const DATE: (&str, &str) = ("retry-after", "Sun, 06 Nov 1994 08:49:57 GMT");
    for (headers, seconds) in [
        (&[("retry-after", "1")][..], Ok(1)),
        // The caller requeues: nothing waits here with a place in a lane and a lock.
        (&[("retry-after", "7")], Err(7)),
        (&[NOW, DATE], Err(20)),
        (&[("retry-after", "100")], Err(100)),
    ] {
        let (api, sent) = mk_api(Duration::ZERO, headers);
        let limiter = RequestLimiter::new(None, Leadership::unopposed(), Requests::default());
        let begin = Instant::now();
        let answer = until_answered(&limiter, RequestKind::Read, || api.get("s")).await;
        let times: Vec<u64> = {
            let sent = sent.lock().expect("no other test holds it");
            sent.iter().map(|at| (*at - begin).as_secs()).collect()
        };
        match seconds {
            Ok(seconds) => {
                assert!(answer.is_ok(), "{answer:?}");
                assert_eq!(times, [0, seconds]);
            }
            Err(seconds) => {
                let Err(Error::Refused {
                    status: 503,
                    retry_after: Some(after),
                    ..
                }) = answer
                else {
                    panic!("it must not be repeated: {answer:?}");
                };
                assert_eq!((times.len(), begin.elapsed().as_secs()), (1, 0));
                assert_eq!(after.as_secs(), seconds);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_write_reaches_a_connection_that_came_about_too_late() {
    const CONNECT: Duration = Duration::from_secs(5);
    let patch = Patch::Strategic(serde_json::json!({}));
    let params = PatchParams::default();
    for (leads_for, written) in [(CONNECT * 2, 1), (CONNECT - Duration::from_secs(1), 0)] {
        let (api, sent) = mk_api(CONNECT, &[]);
        let leadership = Leadership::until(Instant::now() + leads_for);
        let limiter = RequestLimiter::new(None, leadership.clone(), Requests::default());
        let begin = Instant::now();
        let write = || api.patch("s", &params, &patch);
        let answer = until_answered(&limiter, RequestKind::Write(Priority::High), write).await;
        assert_eq!(answer.is_ok(), written == 1);
        if written == 0 {
            assert_eq!(
                answer.unwrap_err(),
                Error::NotLeading(crate::leader_election::NotLeading)
            );
            assert!(begin.elapsed() < CONNECT, "given up when the leadership was over");
        }
        assert_eq!(sent.lock().expect("no other test holds it").len(), written);

        // Nor if the caller waits on, for example while the process is suspended.
        let (api, sent) = mk_api(CONNECT, &[]);
        let leadership = Leadership::until(Instant::now() + leads_for);
        let write = attempt(Some(&leadership), api.patch("s", &params, &patch));
        let mut write = std::pin::pin!(write);
        assert!(write.as_mut().now_or_never().is_none());
        tokio::time::timeout(CONNECT * 2, write).await.ok();
        assert_eq!(sent.lock().expect("no other test holds it").len(), written);
    }
}

#[test]
fn seconds_and_dates_are_read() {
    let now = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (asked, seconds) in [
        ("0", Some(0)),
        ("7", Some(7)),
        (" 120 ", Some(120)),
        ("301", Some(300)),
        ("99999999999999999999999", Some(300)),
        ("Sun, 06 Nov 1994 08:51:07 GMT", Some(90)),
        ("Sun, 06 Nov 1994 08:49:00 GMT", Some(0)),
        ("Mon, 07 Nov 1994 08:49:37 GMT", Some(300)),
        ("Sunday, 06-Nov-94 08:51:07 GMT", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
    ] {
        let mut headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(asked))]);
        headers.insert(DATE, HeaderValue::from_static(now));
        assert_eq!(retry_after(&headers), seconds.map(Duration::from_secs), "{asked}");
        if asked.contains(',') {
            headers.remove(DATE);
            assert_eq!(retry_after(&headers), None, "{asked}");
        }
    }
    assert_eq!(retry_after(&HeaderMap::new()), None);
}
