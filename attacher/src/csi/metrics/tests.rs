//! Metrics of calls.

use futures::FutureExt as _;
use prometheus::core::Collector as _;
use tonic::{Request, Response, Status};

use super::*;
use crate::workqueue::Class;

const TIMEOUT: Duration = Duration::from_secs(15);
const METHOD: &str = "/csi.v1.Controller/ControllerPublishVolume";

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

/// Sends a call that ends with `response`.
async fn send(calls: &Calls, migrated: bool, response: Result<(), Status>) -> Result<(), CallError> {
    let request = Request::new(());
    let send = |_: Request<()>| std::future::ready(response.map(Response::new));
    calls.send(METHOD, request, TIMEOUT, migrated, send).await
}

#[tokio::test]
async fn counts_the_code_of_the_response() {
    let broken = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    for (response, code) in [
        (Ok(()), "OK"),
        (Err(Status::failed_precondition("not yet")), "FailedPrecondition"),
        // The attacher's text and class of the error, not tonic's.
        (Err(Status::cancelled("Timeout expired")), "DeadlineExceeded"),
        (Err(Status::from_error(broken().into())), "Unavailable"),
    ] {
        let calls = Calls::default();
        let result = send(&calls, false, response).await;
        assert_eq!(ended(&calls), [once(code)], "{result:?}");
    }
}

#[tokio::test]
async fn lost_connection_is_an_interrupted_call() {
    let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let result = send(&Calls::default(), false, Err(Status::from_error(broken.into()))).await;
    assert_eq!(result.map_err(|error| error.class()), Err(Class::Interrupted));
}

#[tokio::test(start_paused = true)]
async fn counts_dropped_call_as_canceled_or_deadline_exceeded() {
    let calls = Calls::default();
    let pending = |_: Request<()>| std::future::pending::<Result<Response<()>, Status>>();
    let send = || calls.send(METHOD, Request::new(()), TIMEOUT, false, pending);
    assert!(send().now_or_never().is_none());
    assert_eq!(ended(&calls), [once("Canceled")]);
    let late = send().await.expect_err("no response");
    assert_eq!(late, CallError::deadline_exceeded());
    assert_eq!(ended(&calls), [once("Canceled"), once("DeadlineExceeded")]);
}

#[tokio::test(start_paused = true)]
async fn stream_that_ends_at_the_deadline_exceeded_it() {
    let broken = || Status::from_error(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
    let early = TIMEOUT - Duration::from_secs(1);
    for (response, after, code) in [
        (broken(), TIMEOUT, "DeadlineExceeded"),
        (broken(), early, "Unavailable"),
        (Status::cancelled("context canceled"), TIMEOUT, "DeadlineExceeded"),
        (Status::cancelled("by the driver"), early, "Canceled"),
        // The driver's own answer.
        (Status::not_found("no such volume"), TIMEOUT, "NotFound"),
    ] {
        let calls = Calls::default();
        let send = async |_: Request<()>| {
            tokio::time::sleep(after).await;
            Err::<Response<()>, _>(response)
        };
        let result = calls.send(METHOD, Request::new(()), TIMEOUT, false, send).await;
        let error = result.expect_err("the call fails");
        assert_eq!(error.code.name(), code, "{error}");
        assert_eq!(ended(&calls), [once(code)]);
    }
}

#[tokio::test]
async fn label_migrated_exists_only_for_migration_drivers() {
    let calls = Calls::default();
    calls.serve(&"hostpath.csi.k8s.io".into());
    send(&calls, true, Ok(())).await.expect("OK");
    assert_eq!(ended(&calls), [once("OK")]);
    calls.serve(&"ebs.csi.aws.com".into());
    send(&calls, true, Ok(())).await.expect("OK");
    send(&calls, false, Ok(())).await.expect("OK");
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
    send(&calls, false, Ok(())).await.expect("OK");
    let scrape = Scrape::default();
    calls.collect(&scrape);
    assert!(scrape.text().contains(r#"driver_name="unknown-driver""#));
}
