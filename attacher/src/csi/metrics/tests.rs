//! How calls end, as the layer sees it, with a driver that is one function.

use std::convert::Infallible;

use futures::FutureExt;
use http_body_util::BodyExt;
use prometheus::core::Collector;
use tower::{ServiceExt, service_fn};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(15);
const METHOD: &str = "/csi.v1.Controller/ControllerPublishVolume";

/// A body of these frames.
struct Frames(Vec<Result<Frame<Bytes>, Status>>);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = (!self.0.is_empty()).then(|| self.0.remove(0));
        Poll::Ready(next)
    }
}

fn trailers(code: &'static str) -> Result<Frame<Bytes>, Status> {
    let value = http::HeaderValue::from_static(code);
    Ok(Frame::trailers(HeaderMap::from_iter([(
        http::HeaderName::from_static(GRPC_STATUS),
        value,
    )])))
}

fn data() -> Result<Frame<Bytes>, Status> {
    Ok(Frame::data(Bytes::from_static(b"x")))
}

fn request(migrated: bool) -> Request<Body> {
    let (request, _) = timed((), TIMEOUT, migrated, None);
    let mut http = Request::new(Body::empty());
    *http.uri_mut() = METHOD.parse().expect("a path is a URI");
    *http.extensions_mut() = request.into_parts().1;
    http
}

/// Code, `migrated` label and count of each series.
fn ended(calls: &Calls) -> Vec<(String, String, u64)> {
    let mut series = Vec::new();
    for family in calls.lock().seconds.collect() {
        for metric in family.get_metric() {
            let label = |name| {
                let found = metric.get_label().iter().find(|label| label.name() == name);
                found.expect("the label exists").value().to_owned()
            };
            assert_eq!(label("method_name"), METHOD);
            let count = metric.get_histogram().get_sample_count();
            series.push((label("grpc_status_code"), label("migrated"), count));
        }
    }
    series.sort();
    series
}

fn once(code: &str) -> (String, String, u64) {
    (code.to_owned(), String::new(), 1)
}

/// One call that is answered with these headers and frames and read to its end.
async fn call(headers: HeaderMap, frames: Vec<Result<Frame<Bytes>, Status>>) -> Vec<(String, String, u64)> {
    let calls = Calls::default();
    let answer = std::sync::Mutex::new(Some((headers, frames)));
    let driver = service_fn(move |_: Request<Body>| {
        let (headers, frames) = answer
            .lock()
            .expect("no other test holds it")
            .take()
            .expect("one call");
        let mut response = Response::new(Body::new(Frames(frames)));
        *response.headers_mut() = headers;
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let response = calls
        .count(driver)
        .oneshot(request(false))
        .await
        .expect("an answer");
    drop(response.into_body().collect().await);
    ended(&calls)
}

#[tokio::test]
async fn counts_code_of_trailers() {
    let none = HeaderMap::new;
    assert_eq!(call(none(), vec![data(), trailers("0")]).await, [once("OK")]);
    assert_eq!(
        call(none(), vec![data(), trailers("9")]).await,
        [once("FailedPrecondition")]
    );
    // Without trailers the call has failed.
    assert_eq!(call(none(), vec![data()]).await, [once("Internal")]);
    let reset = Status::unavailable("gone");
    assert_eq!(
        call(none(), vec![data(), Err(reset)]).await,
        [once("Unavailable")]
    );
}

#[tokio::test]
async fn counts_code_of_headers_without_body() {
    let headers = HeaderMap::from_iter([(
        http::HeaderName::from_static(GRPC_STATUS),
        http::HeaderValue::from_static("8"),
    )]);
    assert_eq!(call(headers, vec![]).await, [once("ResourceExhausted")]);
}

#[tokio::test]
async fn reads_status_whose_details_are_not_base64() {
    let with_details = |code: &'static str| {
        HeaderMap::from_iter([
            (Status::GRPC_STATUS, http::HeaderValue::from_static(code)),
            (Status::GRPC_STATUS_DETAILS, http::HeaderValue::from_static("!")),
        ])
    };
    assert_eq!(call(with_details("8"), vec![]).await, [once("ResourceExhausted")]);
    let trailers = Ok(Frame::trailers(with_details("9")));
    assert_eq!(
        call(HeaderMap::new(), vec![data(), trailers]).await,
        [once("FailedPrecondition")]
    );
}

#[tokio::test]
async fn counts_lost_connection_as_unavailable() {
    let calls = Calls::default();
    let broken = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let driver = service_fn(move |_: Request<Body>| std::future::ready(Err::<Response<Body>, _>(broken())));
    let status = calls
        .count(driver)
        .oneshot(request(false))
        .await
        .expect_err("a failure");
    assert_eq!(ended(&calls), [once("Unavailable")]);
    // The caller must be able to tell a lost connection from an answer, as without the layer.
    assert_eq!(
        CallError::from(status).class(),
        crate::workqueue::Class::Interrupted
    );
}

#[tokio::test(start_paused = true)]
async fn counts_dropped_call_as_canceled_or_deadline_exceeded() {
    let calls = Calls::default();
    let driver = service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    let given_up = calls.count(driver).oneshot(request(false));
    assert!(given_up.now_or_never().is_none());
    assert_eq!(ended(&calls), [once("Canceled")]);

    let late = calls.count(driver).oneshot(request(false));
    assert!(tokio::time::timeout(TIMEOUT, late).await.is_err());
    assert_eq!(ended(&calls), [once("Canceled"), once("DeadlineExceeded")]);
}

#[tokio::test]
async fn label_migrated_exists_only_for_migration_drivers() {
    let answered = || {
        service_fn(|_: Request<Body>| {
            let body = Body::new(Frames(vec![trailers("0")]));
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        })
    };
    let calls = Calls::default();
    let call = async |migrated| {
        let response = calls.count(answered()).oneshot(request(migrated)).await;
        drop(response.expect("an answer").into_body().collect().await);
    };
    calls.serve(&"hostpath.csi.k8s.io".into());
    call(true).await;
    assert_eq!(ended(&calls), [once("OK")]);
    calls.serve(&"ebs.csi.aws.com".into());
    call(true).await;
    call(false).await;
    let scrape = Scrape::default();
    calls.collect(&scrape);
    let text = scrape.text();
    for labels in [
        r#"driver_name="hostpath.csi.k8s.io",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerPublishVolume"}"#,
        r#"driver_name="ebs.csi.aws.com",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerPublishVolume",migrated="true"}"#,
        r#"driver_name="ebs.csi.aws.com",grpc_status_code="OK",method_name="/csi.v1.Controller/ControllerPublishVolume",migrated="false"}"#,
    ] {
        let line = format!("csi_sidecar_operations_seconds_count{{{labels} 1\n");
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn labels_calls_before_plugin_info_unknown_driver() {
    let calls = Calls::default();
    calls.begin(&request(false)).end(tonic::Code::Ok.into());
    let scrape = Scrape::default();
    calls.collect(&scrape);
    assert!(scrape.text().contains(r#"driver_name="unknown-driver""#));
}

#[tokio::test(start_paused = true)]
async fn queued_call_is_not_sent_after_leadership_ended() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let taken = sent.clone();
    let driver = service_fn(move |request: Request<Body>| {
        let taken = taken.clone();
        async move {
            tokio::time::sleep(TIMEOUT / 3).await;
            let body = request.into_body().collect().await;
            taken.lock().expect("no other test holds it").push(body.is_ok());
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    });
    for leads_for in [TIMEOUT, TIMEOUT / 4] {
        let leadership = Leadership::until(Instant::now() + leads_for);
        let (timed, _) = timed((), TIMEOUT, false, Some(&leadership));
        let mut request = Request::new(Body::new(http_body_util::Full::new(Bytes::from_static(b"x"))));
        *request.extensions_mut() = timed.into_parts().1;
        let answer = Calls::default().count(driver.clone()).oneshot(request).await;
        assert!(answer.is_ok());
    }
    assert_eq!(*sent.lock().expect("no other test holds it"), [true, false]);
}
