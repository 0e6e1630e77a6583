//! RST_STREAM for single calls on an open connection: not mistaken for a lost connection, and reported as by grpc-go.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use csi_proto::v1::plugin_capability::service;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue};
use hyper::body::Bytes;
use prost::Message;
use tokio::net::UnixStream;
use tokio_util::task::AbortOnDropHandle;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    BeforeResponse,
    /// The headers may not be sent yet.
    MidResponse,
    /// The headers are sent.
    AfterHeaders,
    /// In the message.
    MidMessage,
    /// Instead of the trailers.
    AfterMessage,
    /// When the driver's timer for the call's deadline fires, which may be a moment before the client's.
    AtDeadline,
}

/// A driver that resets publishes in the order of `resets`, and responds to all other calls.
#[derive(Clone, Default)]
struct Resetter {
    resets: Arc<Mutex<VecDeque<(Reason, Moment)>>>,
    connections: Arc<AtomicUsize>,
}

// === impl Resetter ===

impl Resetter {
    fn serve(&self, socket: &Path) -> AbortOnDropHandle<()> {
        let listener = UnixListener::bind(socket).expect("the socket's directory must be there");
        let driver = self.clone();
        #[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
        let serving = tokio::spawn(async move {
            let mut served = FuturesUnordered::new();
            loop {
                tokio::select! {
                    biased;
                    accepted = listener.accept() => {
                        let (stream, _) = accepted.expect("the listener must live");
                        driver.connections.fetch_add(1, Ordering::Relaxed);
                        served.push(driver.serve_connection(stream));
                    }
                    Some(()) = served.next() => {}
                }
            }
        });
        AbortOnDropHandle::new(serving)
    }

    fn reset_next(&self, reason: Reason, moment: Moment) {
        let mut resets = self.resets.lock().expect("no test panics with it");
        resets.push_back((reason, moment));
    }

    async fn serve_connection(&self, stream: UnixStream) {
        let mut connection = h2::server::handshake(stream).await.expect("the client speaks h2");
        let mut late = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                call = connection.accept() => {
                    // Fails only if the client disconnects.
                    let Some(Ok((request, respond))) = call else { return };
                    late.extend(self.respond(&request, respond));
                }
                Some(()) = late.next() => {}
            }
        }
    }

    /// Responds to a call. Returns a response that waits for its deadline, or for what is sent before its reset.
    fn respond(
        &self,
        request: &http::Request<RecvStream>,
        mut stream: SendResponse<Bytes>,
    ) -> Option<BoxFuture<'static, ()>> {
        let path = request.uri().path();
        let reset = match path {
            "/csi.v1.Controller/ControllerPublishVolume" => {
                self.resets.lock().expect("no test panics with it").pop_front()
            }
            _ => None,
        };
        if let Some((reason, Moment::BeforeResponse)) = reset {
            stream.send_reset(reason);
            return None;
        }
        if let Some((reason, Moment::AtDeadline)) = reset {
            let early = tokio::time::Instant::now() + timeout(request.headers()) - ROUNDING;
            let late = async move {
                tokio::time::sleep_until(early).await;
                stream.send_reset(reason);
            };
            return Some(late.boxed());
        }
        let headers = http::Response::builder()
            .header("content-type", "application/grpc")
            .body(())
            .expect("the headers are valid");
        let mut body = stream
            .send_response(headers, false)
            .expect("the call waits for a response");
        if let Some((reason, Moment::MidResponse)) = reset {
            body.send_reset(reason);
            return None;
        }
        let mut message = framed(&message(path));
        if let Some((reason, moment)) = reset {
            message.truncate(match moment {
                Moment::AfterHeaders => 0,
                Moment::MidMessage => FRAME_HEADER - 1,
                Moment::BeforeResponse | Moment::MidResponse | Moment::AfterMessage | Moment::AtDeadline => {
                    message.len()
                }
            });
            if !message.is_empty() {
                body.send_data(message, false)
                    .expect("the client reads the response");
            }
            let late = async move {
                // The connection, which is polled first, sends it.
                tokio::task::yield_now().await;
                body.send_reset(reason);
            };
            return Some(late.boxed());
        }
        body.send_data(message, false)
            .expect("the client reads the response");
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        body.send_trailers(trailers)
            .expect("the client reads the response");
        None
    }
}

/// The bytes of a message's flag and length.
const FRAME_HEADER: usize = 5;

/// The difference of two timers of one duration that count in milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// The call's `grpc-timeout`, which tonic sends in microseconds.
fn timeout(headers: &HeaderMap) -> Duration {
    let value = headers["grpc-timeout"].to_str().expect("ASCII");
    let micros = value.strip_suffix('u').and_then(|micros| micros.parse().ok());
    Duration::from_micros(micros.expect("a number of microseconds"))
}

/// The response to a call.
fn message(path: &str) -> Vec<u8> {
    use controller_service_capability::{Rpc, Type, rpc};
    match path {
        "/csi.v1.Identity/GetPluginInfo" => v1::GetPluginInfoResponse {
            name: "d.example".to_owned(),
            ..Default::default()
        }
        .encode_to_vec(),
        "/csi.v1.Identity/GetPluginCapabilities" => v1::GetPluginCapabilitiesResponse {
            capabilities: vec![v1::PluginCapability {
                r#type: Some(plugin_capability::Type::Service(plugin_capability::Service {
                    r#type: service::Type::ControllerService.into(),
                })),
            }],
        }
        .encode_to_vec(),
        "/csi.v1.Controller/ControllerGetCapabilities" => v1::ControllerGetCapabilitiesResponse {
            capabilities: vec![v1::ControllerServiceCapability {
                r#type: Some(Type::Rpc(Rpc {
                    r#type: rpc::Type::PublishUnpublishVolume.into(),
                })),
            }],
        }
        .encode_to_vec(),
        // Probe and the calls under test have empty responses.
        _ => Vec::new(),
    }
}

/// A length-prefixed gRPC message, not compressed.
fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("a short message");
    let mut frame = vec![0];
    frame.extend(length.to_be_bytes());
    frame.extend(message);
    frame.into()
}

#[tokio::test]
async fn reset_call_is_reported_and_the_connection_stays() {
    let mut fixture = Fixture::new();
    let driver = Resetter::default();
    let _serving = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    let caller = fixture.caller();
    // The codes are grpc-go's. Only REFUSED_STREAM guarantees that the driver did not process the call. The attacher retries
    // it with the backoff of an uncertain result nevertheless.
    for (reason, code, class) in [
        (Reason::REFUSED_STREAM, "Unavailable", Class::Uncertain),
        (Reason::CANCEL, "Canceled", Class::Uncertain),
        (Reason::ENHANCE_YOUR_CALM, "ResourceExhausted", Class::Uncertain),
        (Reason::FLOW_CONTROL_ERROR, "ResourceExhausted", Class::Uncertain),
        (Reason::INADEQUATE_SECURITY, "PermissionDenied", Class::Final),
        (Reason::INTERNAL_ERROR, "Internal", Class::Final),
        (Reason::PROTOCOL_ERROR, "Internal", Class::Final),
    ] {
        for moment in [Moment::BeforeResponse, Moment::MidResponse] {
            let case = format!("{reason:?} {moment:?}");
            driver.reset_next(reason, moment);
            let error = failure(&caller, "any").await;
            assert_eq!(
                error.to_string(),
                format!(
                    "rpc error: code = {code} desc = stream terminated by RST_STREAM with error code: {reason:?}"
                ),
                "{case}"
            );
            assert_eq!(
                (error.reach, error.class(), error.may_have_taken_effect()),
                (Reach::Reset, class, true),
                "{case}: {error}"
            );
            caller
                .publish(publish("any"), false)
                .await
                .expect("the next call is served");
        }
    }
    assert!(fixture.connection.borrow().is_some(), "the connection stays open");
    assert_eq!(
        driver.connections.load(Ordering::Relaxed),
        2,
        "the first session's connections: one for publishes, one for all other calls"
    );
    fixture.stop.cancel();
}

/// hyper reports neither `NO_ERROR` nor `CANCEL`: the response just ends, without the driver's status.
#[tokio::test]
async fn truncated_response_does_not_say_that_nothing_was_executed() {
    let mut fixture = Fixture::new();
    let driver = Resetter::default();
    let _serving = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    let caller = fixture.caller();
    for reason in [Reason::NO_ERROR, Reason::CANCEL] {
        for moment in [Moment::AfterHeaders, Moment::MidMessage, Moment::AfterMessage] {
            driver.reset_next(reason, moment);
            let error = failure(&caller, "any").await;
            assert_eq!(
                (error.reach, error.may_have_taken_effect()),
                (Reach::Reset, true),
                "{reason:?} {moment:?}: {error}"
            );
        }
    }
    fixture.stop.cancel();
}

#[tokio::test]
async fn reset_at_the_deadline_is_an_exceeded_deadline() {
    let mut fixture = Fixture::new();
    let driver = Resetter::default();
    let _serving = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    let caller = fixture.caller_with(TIMEOUT);
    for reason in [Reason::CANCEL, Reason::INTERNAL_ERROR, Reason::NO_ERROR] {
        driver.reset_next(reason, Moment::AtDeadline);
        let error = failure(&caller, "any").await;
        assert_eq!(
            error.to_string(),
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
            "{reason:?}"
        );
        assert_eq!(
            (error.code.number(), error.class()),
            (4, Class::Uncertain),
            "{reason:?}"
        );
    }
    fixture.stop.cancel();
}
