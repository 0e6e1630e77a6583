//! Publication of events to an API server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_attacher::csi::Code;
use csi_attacher::kube_api::events::{self, Reason, Recorder};
use csi_attacher::leader_election::{ElectionStatus, Leadership, LeaseMeta, Settings, Timings};
use http::{Method, Response, StatusCode};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::service_fn;

type Requests = Arc<Mutex<Vec<(Method, String, Value)>>>;

struct Fixture {
    requests: Requests,
    recorder: Recorder,
    publisher: JoinHandle<()>,
    stop: CancellationToken,
}

// === impl Fixture ===

impl Fixture {
    /// Starts a recorder with an API server that responds to the request of this number, from 1, with `response`.
    fn new(leading: bool, response: impl Fn(usize) -> StatusCode + Clone + Send + 'static) -> Self {
        let requests = Requests::default();
        let seen = requests.clone();
        let service = service_fn(move |request: http::Request<Body>| {
            let (seen, response) = (seen.clone(), response.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let body = serde_json::from_slice(&body)?;
                let number = {
                    let mut seen = seen.lock().expect("no test panics with it");
                    seen.push((head.method, head.uri.path().to_owned(), body));
                    seen.len()
                };
                let status = response(number);
                let reason = if status == StatusCode::FORBIDDEN {
                    "Forbidden"
                } else {
                    "NotFound"
                };
                let body = if status.is_success() {
                    json!({ "kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": {} })
                } else {
                    json!({
                        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no",
                        "reason": reason, "code": status.as_u16(),
                    })
                };
                let response = Response::builder()
                    .status(status)
                    .body(Body::from(body.to_string().into_bytes()));
                Ok::<_, tower::BoxError>(response?)
            }
        });
        let client = Client::new(service, "default");
        let (recorder, publisher) = Recorder::new(client, "csi-attacher/d".to_owned(), "pod-1".to_owned());
        let leadership = if leading {
            Leadership::unopposed()
        } else {
            standby()
        };
        let stop = CancellationToken::new();
        #[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
        let publisher = tokio::spawn(publisher.run(leadership, stop.clone()));
        Self {
            requests,
            recorder,
            publisher,
            stop,
        }
    }

    fn report_failure(&self) {
        self.recorder.report(
            attachment(),
            Reason::AttachFailed,
            Code::named("ResourceExhausted"),
            "no room",
        );
    }

    async fn advance(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    fn requests(&self) -> Vec<(Method, String, Value)> {
        std::mem::take(&mut *self.requests.lock().expect("no test panics with it"))
    }
}

/// The leadership of a replica that does not lead.
fn standby() -> Leadership {
    let settings = Settings {
        lease_meta: LeaseMeta::of("d", None, None),
        identity: "a".to_owned(),
        labels: BTreeMap::new(),
        timings: Timings {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(5),
        },
    };
    watch::channel(ElectionStatus::new(&settings)).1.into()
}

fn attachment() -> ObjectReference {
    ObjectReference {
        api_version: Some("storage.k8s.io/v1".to_owned()),
        kind: Some("VolumeAttachment".to_owned()),
        name: Some("csi-1".to_owned()),
        uid: Some("uid-1".to_owned()),
        ..ObjectReference::default()
    }
}

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

#[tokio::test(start_paused = true)]
async fn repeated_failure_increments_the_series_and_recovery_is_a_separate_event() {
    let fixture = Fixture::new(true, |_| StatusCode::CREATED);
    fixture.report_failure();
    // Not counted, as it follows the first within half a second.
    fixture.report_failure();
    fixture.advance(1).await;
    fixture.report_failure();
    fixture.advance(1).await;
    fixture
        .recorder
        .report(attachment(), Reason::AttachRecovered, None, "attached");
    fixture.advance(1).await;
    let requests = fixture.requests();
    let [
        (method, path, created),
        (patched, patched_path, counted),
        (_, _, recovered),
    ] = &requests[..]
    else {
        panic!("{requests:?}")
    };
    assert_eq!((method, path.as_str()), (&Method::POST, EVENTS));
    for (pointer, value) in [
        ("/regarding/kind", "VolumeAttachment"),
        ("/regarding/name", "csi-1"),
        ("/regarding/uid", "uid-1"),
        ("/regarding/apiVersion", "storage.k8s.io/v1"),
        ("/reason", "AttachFailed"),
        ("/action", "Attach (ResourceExhausted)"),
        ("/type", "Warning"),
        ("/note", "no room"),
        ("/reportingController", "csi-attacher/d"),
        ("/reportingInstance", "pod-1"),
    ] {
        assert_eq!(created.pointer(pointer), Some(&json!(value)), "{pointer}");
    }
    assert_eq!(
        (&recovered["reason"], &recovered["type"]),
        (&json!("AttachRecovered"), &json!("Normal"))
    );
    assert_eq!(patched, Method::PATCH);
    let name = created["metadata"]["name"].as_str().expect("a name");
    assert_eq!(*patched_path, format!("{path}/{name}"));
    assert_eq!(counted["series"]["count"], 2);
}

#[tokio::test(start_paused = true)]
async fn another_cause_creates_another_event() {
    let code = Code::named("Internal");
    for causes in [
        [(code, "a"), (Code::named("NotFound"), "b"), (code, "a")],
        [(None, "a"), (None, "b"), (None, "a")],
        [(code, "a"), (None, "b"), (code, "a")],
    ] {
        let fixture = Fixture::new(true, |_| StatusCode::CREATED);
        for (code, message) in causes {
            fixture
                .recorder
                .report(attachment(), Reason::AttachFailed, code, message);
            fixture.advance(20).await;
        }
        let seen: Vec<_> = fixture
            .requests()
            .into_iter()
            .map(|(method, _, body)| (method, body["note"].as_str().unwrap_or_default().to_owned()))
            .collect();
        let want = [(Method::POST, "a"), (Method::POST, "b"), (Method::PATCH, "a")];
        assert_eq!(
            seen,
            want.map(|(method, note)| (method, note.to_owned())),
            "{causes:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn creates_an_event_again_after_its_expiry() {
    let fixture = Fixture::new(true, |number| match number {
        2 => StatusCode::NOT_FOUND,
        _ => StatusCode::CREATED,
    });
    fixture.report_failure();
    fixture.advance(60).await;
    fixture.report_failure();
    fixture.advance(60).await;
    let methods: Vec<_> = fixture
        .requests()
        .into_iter()
        .map(|(method, _, _)| method)
        .collect();
    assert_eq!(methods, [Method::POST, Method::PATCH, Method::POST]);
}

#[tokio::test(start_paused = true)]
async fn pauses_for_ten_minutes_without_the_right_to_write_events() {
    let fixture = Fixture::new(true, |_| StatusCode::FORBIDDEN);
    for _ in 0..100 {
        fixture.report_failure();
        fixture.advance(1).await;
    }
    assert_eq!(fixture.requests().len(), 1);
    fixture.advance(600).await;
    fixture.report_failure();
    fixture.advance(20).await;
    assert_eq!(
        fixture.requests().len(),
        1,
        "the permission may have been granted meanwhile"
    );
}

#[tokio::test(start_paused = true)]
async fn standby_reports_leadership_only() {
    let fixture = Fixture::new(false, |_| StatusCode::CREATED);
    fixture.report_failure();
    let lease = events::lease("ns", "external-attacher-leader-d", "uid-2");
    fixture
        .recorder
        .report(lease, Reason::LeaderElection, None, "pod-1 stopped leading");
    fixture.advance(60).await;
    let requests = fixture.requests();
    let [(_, path, event)] = &requests[..] else {
        panic!("{requests:?}")
    };
    assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/ns/events");
    assert_eq!(
        (&event["reason"], &event["regarding"]["kind"]),
        (&json!("LeaderElection"), &json!("Lease"))
    );
}

#[tokio::test(start_paused = true)]
async fn publishes_queued_events_before_shutdown() {
    let fixture = Fixture::new(true, |_| StatusCode::CREATED);
    fixture.report_failure();
    fixture.stop.cancel();
    timeout(Duration::from_secs(60), fixture.publisher)
        .await
        .expect("the publisher ends")
        .expect("without a panic");
    assert_eq!(fixture.requests.lock().expect("no test panics with it").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn reporting_does_not_wait_for_a_hanging_api_server() {
    let client = Client::new(
        service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<Response<Body>, tower::BoxError>>()
        }),
        "default",
    );
    let (recorder, publisher) = Recorder::new(client, "c".to_owned(), "i".to_owned());
    let stop = CancellationToken::new();
    #[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
    let publisher = tokio::spawn(publisher.run(Leadership::unopposed(), stop.clone()));
    for number in 0..10_000 {
        recorder.report(attachment(), Reason::AttachFailed, None, format!("no {number}"));
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    stop.cancel();
    timeout(Duration::from_secs(60), publisher)
        .await
        .expect("the publisher ends")
        .expect("without a panic");
}
