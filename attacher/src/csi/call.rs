//! Publish, unpublish and list over the current session.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use csi_proto::secret::Secrets;
use csi_proto::v1;
use tokio::sync::watch;

use super::ControllerClient;
use super::code::CallError;
use super::connection_manager::ConnectionState;
use super::redact::redacted;
use super::session::Session;
use crate::leader_election::Leadership;
use crate::model::Capabilities;
use crate::trace;

/// Calls the connected driver.
#[derive(Clone, Debug)]
pub struct Caller {
    connection: watch::Receiver<ConnectionState>,
    timeout: Duration,
    leadership: Leadership,
    /// Maximum characters of a response that are logged (`--max-grpc-log-length`); 0 or less: no limit.
    pub(crate) max_logged: i64,
}

// === impl Caller ===

impl Caller {
    /// Calls with this deadline each (`--timeout`), and only while `leadership` lasts. [`ControllerClient::ready`] waits for a
    /// connection for at most 5 s.
    pub fn new(
        connection: watch::Receiver<ConnectionState>,
        timeout: Duration,
        leadership: Leadership,
    ) -> Self {
        Self {
            connection,
            timeout,
            leadership,
            max_logged: -1,
        }
    }

    /// Sends a call with its deadline, and logs it with `log` if it is sent. Errors do not contain values of its secrets.
    async fn send<Q: Secrets, A>(
        &self,
        method: &'static str,
        message: Q,
        migrated: bool,
        log: impl FnOnce(&Q),
        call: impl AsyncFnOnce(&Session, tonic::Request<Q>) -> Result<tonic::Response<A>, tonic::Status>,
    ) -> Result<A, CallError> {
        let session = self.connection.borrow().clone();
        let session = session.ok_or_else(|| CallError::not_connected(NOT_CONNECTED))?;
        self.leadership.check()?;
        log(&message);
        let secrets: Vec<String> = message.secrets().flat_map(HashMap::values).cloned().collect();
        let sent = async {
            let mut request = tonic::Request::new(message);
            // The channel checks it again when it sends the body.
            request.extensions_mut().insert(self.leadership.clone());
            if let Some(context) = trace::context().and_then(|context| context.parse().ok()) {
                request.metadata_mut().insert("traceparent", context);
            }
            let call = |request| call(&session, request);
            let calls = &session.calls;
            let answer = tokio::select! {
                biased;
                answer = calls.send(method, request, self.timeout, migrated, call) => answer,
                // Another replica may call for this volume from now on.
                () = self.leadership.ended() => Err(CallError::cancelled()),
            };
            answer.map_err(|error| CallError {
                message: redacted(&secrets, error.message),
                ..error
            })
        };
        let name = method.trim_start_matches('/');
        let answer = trace::request(name, sent, |error| error.code.number().into()).await;
        answer.inspect_err(|error| tracing::trace!(method, %error, "GRPC error"))
    }
}

/// Maximum wait for a reconnect. A longer one would occupy the lane; a failed sync is requeued on reconnect.
const RECONNECT_WAIT: Duration = Duration::from_secs(5);

const NOT_CONNECTED: &str = "the CSI driver is not connected";
const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";
const LIST: &str = "/csi.v1.Controller/ListVolumes";
const UNPUBLISH: &str = "/csi.v1.Controller/ControllerUnpublishVolume";

impl ControllerClient for Caller {
    async fn publish(
        &self,
        request: v1::ControllerPublishVolumeRequest,
        migrated: bool,
    ) -> Result<BTreeMap<String, String>, CallError> {
        let log = |request: &v1::ControllerPublishVolumeRequest| {
            tracing::trace!(
                method = PUBLISH,
                volume = request.volume_id,
                node_id = request.node_id,
                readonly = request.readonly,
                volume_context = %names(request.volume_context.keys()),
                secrets = %names(request.secrets.keys()),
                "GRPC call"
            );
        };
        let answer = self
            .send(PUBLISH, request, migrated, log, async |session, request| {
                let mut publisher = v1::controller_client::ControllerClient::new(session.publishes.clone());
                publisher.controller_publish_volume(request).await
            })
            .await?;
        tracing::trace!(
            method = PUBLISH,
            publish_context = names(answer.publish_context.keys())
                .chars()
                .take(
                    usize::try_from(self.max_logged)
                        .ok()
                        .filter(|most| *most > 0)
                        .unwrap_or(usize::MAX)
                )
                .collect::<String>(),
            "GRPC response"
        );
        Ok(answer.publish_context.into_iter().collect())
    }

    async fn unpublish(
        &self,
        request: v1::ControllerUnpublishVolumeRequest,
        migrated: bool,
    ) -> Result<(), CallError> {
        let log = |request: &v1::ControllerUnpublishVolumeRequest| {
            tracing::trace!(
                method = UNPUBLISH,
                volume = request.volume_id,
                node_id = request.node_id,
                secrets = %names(request.secrets.keys()),
                "GRPC call"
            );
        };
        self.send(UNPUBLISH, request, migrated, log, async |session, request| {
            session.controller().controller_unpublish_volume(request).await
        })
        .await?;
        tracing::trace!(method = UNPUBLISH, "GRPC response");
        Ok(())
    }

    async fn list(&self, request: v1::ListVolumesRequest) -> Result<v1::ListVolumesResponse, CallError> {
        let log = |request: &v1::ListVolumesRequest| {
            tracing::trace!(
                method = LIST,
                max_entries = request.max_entries,
                token = request.starting_token,
                "GRPC call"
            );
        };
        let answer = self
            .send(LIST, request, false, log, async |session, request| {
                session.controller().list_volumes(request).await
            })
            .await?;
        tracing::trace!(
            method = LIST,
            entries = answer.entries.len(),
            token = answer.next_token,
            "GRPC response"
        );
        Ok(answer)
    }

    fn session(&self) -> Option<Instant> {
        self.connection.borrow().as_ref().map(|session| session.opened)
    }

    async fn session_ended(&self, session: Option<Instant>) {
        let mut connection = self.connection.clone();
        let is_other = |now: &Option<Arc<Session>>| now.as_ref().map(|now| now.opened) != session;
        drop(connection.wait_for(is_other).await);
    }

    async fn ready(&self) -> Result<Capabilities, CallError> {
        let mut connection = self.connection.clone();
        let up = tokio::time::timeout(
            self.timeout.min(RECONNECT_WAIT),
            connection.wait_for(Option::is_some),
        )
        .await;
        match up {
            // Borrowing the watch again while this guard is held would deadlock with a sender between the two.
            Ok(Ok(connection)) => match &*connection {
                Some(session) => Ok(session.capabilities),
                None => Err(CallError::not_connected(NOT_CONNECTED)),
            },
            Ok(Err(_)) => Err(CallError::not_connected("the attacher is shutting down")),
            Err(_) => Err(CallError::not_connected(NOT_CONNECTED)),
        }
    }
}

/// The keys of a map without its values, which may be confidential.
fn names<'k>(keys: impl Iterator<Item = &'k String>) -> String {
    let mut names: Vec<&str> = keys.map(String::as_str).collect();
    names.sort_unstable();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};
    use std::thread;

    use futures::FutureExt as _;
    use tracing::field::Visit;
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
    use tracing_subscriber::registry::Registry;

    use super::*;

    /// Collects messages of events.
    #[derive(Clone, Default)]
    struct Messages(Arc<Mutex<Vec<String>>>);

    impl<S: tracing::Subscriber> Layer<S> for Messages {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            event.record(&mut self.clone());
        }
    }

    impl Visit for Messages {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            if field.name() == "message" {
                let mut messages = self.0.lock().expect("no test panics with it");
                messages.push(format!("{value:?}"));
            }
        }
    }

    #[test]
    fn logs_only_calls_that_are_sent() {
        let (_connection_tx, connection) = watch::channel(None);
        let caller = Caller::new(connection, Duration::from_secs(60), Leadership::unopposed());
        let messages = Messages::default();
        tracing::subscriber::with_default(Registry::default().with(messages.clone()), || {
            let list = caller.list(v1::ListVolumesRequest::default());
            assert!(matches!(list.now_or_never(), Some(Err(_))));
            let publish = caller.publish(v1::ControllerPublishVolumeRequest::default(), false);
            assert!(matches!(publish.now_or_never(), Some(Err(_))));
            let unpublish = caller.unpublish(v1::ControllerUnpublishVolumeRequest::default(), false);
            assert!(matches!(unpublish.now_or_never(), Some(Err(_))));
        });
        assert_eq!(*messages.0.lock().unwrap(), [] as [String; 0]);
    }

    /// A reader that locks the watch twice waits for a writer that locked it in between, and the writer waits for the
    /// reader.
    #[test]
    fn ready_does_not_deadlock_while_the_connection_changes() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .expect("a runtime without I/O");
        let session = {
            let _context = runtime.enter();
            Arc::new(Session::disconnected("d.example"))
        };
        let (connection_tx, connection) = watch::channel(Some(session.clone()));
        let writer = thread::spawn(move || while connection_tx.send(Some(session.clone())).is_ok() {});
        let caller = Caller::new(connection, Duration::from_secs(60), Leadership::unopposed());
        let (done_tx, done) = mpsc::channel();
        runtime.spawn(async move {
            for _ in 0..100_000 {
                caller.ready().await.expect("the driver is connected");
            }
            done_tx.send(()).expect("the test waits");
        });
        let done = done.recv_timeout(Duration::from_secs(60));
        // Dropping it would block on a deadlocked thread.
        runtime.shutdown_background();
        done.expect("no deadlock");
        writer.join().expect("no panic");
    }
}
