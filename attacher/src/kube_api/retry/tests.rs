//! Requests to an in-process server, on a paused clock.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use http::Response;
use kube::core::response::StatusDetails;
use serde_json::{Value, json};
use tower::service_fn;

use super::super::status::NO_STATUS;
use super::*;
use crate::kube_api::request_limiter::Priority;
use crate::kube_api::{Access, Rate, RateLimit, Requests};
use crate::leader_election::{Fenced, Leadership, NotLeading};

/// When the server received each request with its whole body.
type Sent = Arc<Mutex<Vec<Instant>>>;

/// A client whose connections take `connect`, of a server that responds with 503 and `headers` to the first request if there
/// are headers, and with 200 to all others.
fn mk_service(connect: Duration, headers: &'static [(&'static str, &'static str)]) -> (ApiService, Sent) {
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
            let response = Response::builder();
            Ok::<_, Infallible>(if seen.len() == 1 && !headers.is_empty() {
                let busy = response.status(503);
                let busy = headers
                    .iter()
                    .fold(busy, |busy, (name, value)| busy.header(*name, *value));
                busy.body(Body::from(b"try later".to_vec())).expect("a response")
            } else {
                response.body(Body::from(b"{}".to_vec())).expect("a response")
            })
        }
    });
    let access = Access::in_process(server).expect("an API server in this process");
    (access.service(None, Requests::default()), sent)
}

fn mk_limiter(rate: Option<Rate>, leadership: Leadership) -> RequestLimiter {
    RequestLimiter::new(rate.map(RateLimit::new), leadership, Requests::default())
}

const READ: RequestKind = RequestKind::Read;
const WRITE: RequestKind = RequestKind::Write(Priority::High);

fn request() -> Request<Vec<u8>> {
    Request::patch("/api/v1/secrets/s")
        .body(b"{}".to_vec())
        .expect("a request")
}

#[tokio::test(start_paused = true)]
async fn waits_for_a_second_at_most_and_reports_a_longer_retry_after() {
    const NOW: (&str, &str) = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    const DATE: (&str, &str) = ("retry-after", "Sun, 06 Nov 1994 08:49:57 GMT");
    for (headers, seconds) in [
        (&[("retry-after", "1")][..], Ok(1)),
        // The caller requeues, as a wait would hold a lane slot and a lock.
        (&[("retry-after", "7")], Err(7)),
        (&[NOW, DATE], Err(20)),
        (&[("retry-after", "100")], Err(100)),
    ] {
        let (service, sent) = mk_service(Duration::ZERO, headers);
        let limiter = mk_limiter(None, Leadership::unopposed());
        let begin = Instant::now();
        let response: Result<Value, Error> = send(&service, &limiter, READ, request()).await;
        let times: Vec<u64> = {
            let sent = sent.lock().expect("no other test holds it");
            sent.iter().map(|at| (*at - begin).as_secs()).collect()
        };
        match seconds {
            Ok(seconds) => {
                assert!(response.is_ok(), "{response:?}");
                assert_eq!(times, [0, seconds]);
            }
            Err(seconds) => {
                let Err(Error::Rejected {
                    status: 503,
                    retry_after: Some(after),
                    ..
                }) = response
                else {
                    panic!("it must not be repeated: {response:?}");
                };
                assert_eq!((times.len(), begin.elapsed().as_secs()), (1, 0));
                assert_eq!(after.as_secs(), seconds);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sends_no_write_if_leadership_ends_before_the_connection_is_established() {
    const CONNECT: Duration = Duration::from_secs(5);
    for (leads_for, written) in [(CONNECT * 2, 1), (CONNECT - Duration::from_secs(1), 0)] {
        let (service, sent) = mk_service(CONNECT, &[]);
        let leadership = Leadership::until(Instant::now() + leads_for);
        let limiter = mk_limiter(None, leadership);
        let begin = Instant::now();
        let response: Result<Value, Error> = send(&service, &limiter, WRITE, request()).await;
        if written == 0 {
            assert_eq!(response, Err(Error::NotLeading(NotLeading)));
            assert!(
                begin.elapsed() < CONNECT,
                "the write is aborted when leadership ends"
            );
        } else {
            assert!(response.is_ok(), "{response:?}");
        }
        assert_eq!(sent.lock().expect("no other test holds it").len(), written);

        // Nor if the caller does not abort it, for example while the process is suspended.
        let (service, sent) = mk_service(CONNECT, &[]);
        let mut write = request().map(Body::from);
        write
            .extensions_mut()
            .insert(Leadership::until(Instant::now() + leads_for));
        let mut write = std::pin::pin!(service.http.oneshot(write));
        assert!(write.as_mut().now_or_never().is_none());
        tokio::time::timeout(CONNECT * 2, write).await.ok();
        assert_eq!(sent.lock().expect("no other test holds it").len(), written);
    }
}

/// Such a write can never succeed.
#[tokio::test(start_paused = true)]
async fn conflict_is_final_for_a_request_of_one_version() {
    for (of_one_version, is_repeated) in [(true, false), (false, true)] {
        let sent = Arc::new(Mutex::new(0));
        let seen = sent.clone();
        let server = service_fn(move |_: Request<Fenced<Body>>| {
            *seen.lock().expect("no other test holds it") += 1;
            let status = json!({"kind": "Status", "apiVersion": "v1", "code": 409, "reason": "Conflict", "message": "modified"});
            let response = Response::builder()
                .status(409)
                .body(Body::from(status.to_string().into_bytes()));
            std::future::ready(Ok::<_, Infallible>(response.expect("a response")))
        });
        let access = Access::in_process(server).expect("an API server in this process");
        let mut write = request();
        if of_one_version {
            write.extensions_mut().insert(OfOneVersion);
        }
        let limiter = mk_limiter(None, Leadership::unopposed());
        let service = access.service(None, Requests::default());
        let answer: Result<Value, Error> = send(&service, &limiter, WRITE, write).await;
        assert!(answer.expect_err("a conflict").is_conflict());
        assert_eq!(*sent.lock().expect("no other test holds it") > 1, is_repeated);
    }
}

fn failure(code: u16, reason: &str, details: Value) -> Failure {
    let details: StatusDetails = serde_json::from_value(details).unwrap();
    let status = Status {
        code,
        reason: reason.into(),
        message: "m".into(),
        details: Some(details),
        ..Status::default()
    };
    Failure::rejected(&status, "/apis/storage.k8s.io/v1/volumeattachments/va/status")
}

#[test]
fn classifies_responses() {
    let plain = || json!({});
    let named = |name: &str, kind: &str| json!({ "name": name, "kind": kind });
    let uid = || json!({ "causes": [{ "field": "metadata.uid" }] });
    let busy = || json!({ "retryAfterSeconds": 7 });
    let very_busy = || json!({ "retryAfterSeconds": 4_000_000_000_u32 });
    let seconds = Duration::from_secs;
    let rejected = |status| Error::Rejected {
        status,
        message: "m".into(),
        retry_after: None,
    };
    for (failure, error, again) in [
        (
            failure(404, "NotFound", named("va", "volumeattachments")),
            Error::NotFound("m".into()),
            None,
        ),
        // A4: a proxy's, of another object, or of a path that no handler serves.
        (failure(404, "NotFound", plain()), rejected(404), Some(seconds(0))),
        (
            failure(404, "NotFound", named("other", "volumeattachments")),
            rejected(404),
            Some(seconds(0)),
        ),
        (
            failure(404, "NotFound", named("va", "persistentvolumes")),
            rejected(404),
            Some(seconds(0)),
        ),
        (failure(404, NO_STATUS, plain()), rejected(404), Some(seconds(0))),
        // A5: it may come from a proxy.
        (failure(408, "Timeout", plain()), rejected(408), Some(seconds(0))),
        (failure(425, "", plain()), rejected(425), Some(seconds(0))),
        (
            failure(400, NO_STATUS, plain()),
            Error::Unanswered("400 without a Status: m".into()),
            Some(seconds(0)),
        ),
        (failure(400, "BadRequest", plain()), rejected(400), None),
        (
            failure(413, "RequestEntityTooLarge", plain()),
            rejected(413),
            None,
        ),
        (failure(401, "Unauthorized", plain()), rejected(401), None),
        (failure(422, "Invalid", uid()), Error::Replaced("m".into()), None),
        (failure(422, "Invalid", plain()), rejected(422), None),
        (failure(403, "Forbidden", plain()), rejected(403), None),
        (failure(409, "Conflict", plain()), rejected(409), Some(seconds(0))),
        (
            failure(429, "TooManyRequests", plain()),
            rejected(429),
            Some(seconds(1)),
        ),
        (
            failure(429, "TooManyRequests", busy()),
            rejected(429),
            Some(seconds(7)),
        ),
        (
            failure(429, "TooManyRequests", very_busy()),
            rejected(429),
            Some(MAX_RETRY_AFTER),
        ),
        (
            failure(503, "ServiceUnavailable", plain()),
            rejected(503),
            Some(seconds(0)),
        ),
    ] {
        assert_eq!((&failure.error, failure.retry_after), (&error, again));
    }
}

/// A client of a server that responds with `response`, and the number of requests.
fn mk_responding<F>(response: impl Fn() -> F + Clone + Send + Sync + 'static) -> (ApiService, Arc<Mutex<u32>>)
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let sent: Arc<Mutex<u32>> = Arc::default();
    let counted = sent.clone();
    let server = service_fn(move |_: Request<Fenced<Body>>| {
        *counted.lock().expect("no other test holds it") += 1;
        response().map(Ok::<_, Infallible>)
    });
    let access = Access::in_process(server).expect("an API server in this process");
    (access.service(None, Requests::default()), sent)
}

/// A retry holds a lane slot and the lock of a publish target. Later the workqueue retries.
#[tokio::test(start_paused = true)]
async fn retries_a_failing_request_for_a_few_seconds() {
    let limiter = mk_limiter(None, Leadership::unopposed());
    for response_after in [Duration::ZERO, Duration::from_secs(4)] {
        let begin = Instant::now();
        let (service, sent) = mk_responding(move || async move {
            sleep(response_after).await;
            let busy = Response::builder().status(503);
            busy.body(Body::from(b"try later".to_vec())).expect("a response")
        });
        let response: Result<Value, Error> = send(&service, &limiter, WRITE, request()).await;
        assert!(matches!(response, Err(Error::Rejected { status: 503, .. })));
        assert!(*sent.lock().unwrap() > 1);
        assert!(begin.elapsed() <= Duration::from_secs(5) + response_after);
    }
    let begin = Instant::now();
    let (service, sent) = mk_responding(std::future::pending);
    let response: Result<Value, Error> = send(&service, &limiter, READ, request()).await;
    assert!(matches!(response, Err(Error::Unanswered(_))));
    assert_eq!(*sent.lock().unwrap(), 1);
    assert_eq!(begin.elapsed(), ATTEMPT_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn does_not_retry_a_write_after_leadership_ended() {
    let limiter = mk_limiter(None, Leadership::until(Instant::now() + ATTEMPT_TIMEOUT / 2));
    let (service, sent) = mk_responding(std::future::pending);
    let response: Result<Value, Error> = send(&service, &limiter, WRITE, request()).await;
    assert!(matches!(response, Err(Error::NotLeading(_))));
    assert_eq!(*sent.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn deadline_excludes_the_wait_for_the_limiter() {
    let begin = Instant::now();
    let limiter = mk_limiter(Some(Rate { qps: 0.01, burst: 1 }), Leadership::unopposed());
    let (service, _) = mk_responding(|| async {
        sleep(ATTEMPT_TIMEOUT / 2).await;
        Response::new(Body::from(b"{}".to_vec()))
    });
    let requests = (0..4).map(|_| send(&service, &limiter, WRITE, request()));
    let responses: Vec<Result<Value, Error>> = futures::future::join_all(requests).await;
    assert_eq!(responses, vec![Ok(json!({})); 4]);
    // Three requests waited 100 s each for a token.
    assert_eq!(begin.elapsed().as_secs(), 300 + (ATTEMPT_TIMEOUT / 2).as_secs());
}

#[tokio::test(start_paused = true)]
async fn error_does_not_quote_an_undecodable_response() {
    let limiter = mk_limiter(None, Leadership::unopposed());
    for body in [r#"{"data":"hunter2"}"#, r#""hunter2""#] {
        let (service, sent) =
            mk_responding(move || async move { Response::new(Body::from(body.as_bytes().to_vec())) });
        let response = send::<k8s_openapi::api::core::v1::Secret>(&service, &limiter, READ, request()).await;
        let Err(Error::Unanswered(why)) = response else {
            panic!("it is retried: {response:?}");
        };
        assert!(
            why.contains("cannot be decoded") && !why.contains("hunter2"),
            "{why}"
        );
        assert!(*sent.lock().unwrap() > 2);
    }
}
