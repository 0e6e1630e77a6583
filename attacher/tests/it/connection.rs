//! The connection to a driver on a real socket: connect, disconnect, reconnect.

mod resets;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_attacher::csi::{
    CallError, Caller, ConnectionManager, ConnectionState, ControllerClient as _, DriverChanged, Reach,
    Socket,
};
use csi_attacher::leader_election::{ElectionStatus, Leadership, LeaseMeta, Settings, Timings};
use csi_attacher::model::Capabilities;
use csi_attacher::workqueue::Class;
use csi_proto::v1::controller_server::{Controller, ControllerServer};
use csi_proto::v1::identity_server::{Identity, IdentityServer};
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use csi_proto::v1::{self, controller_service_capability, plugin_capability};
use futures::future::{self, Either};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tower::{Service as _, service_fn};

/// Timeout of calls that must time out, and time in which a wrong state would appear.
const TIMEOUT: Duration = Duration::from_millis(300);
/// Timeout for immediate events and of calls that must succeed, on a machine that is busy with other tests.
const SOON: Duration = Duration::from_secs(10);

type Seen = Arc<Mutex<Vec<v1::ControllerPublishVolumeRequest>>>;

/// A driver that publishes the volume `ok`, refuses `no` and `verbose`, never responds for unknown volumes, and unpublishes none.
#[derive(Clone)]
pub(crate) struct Driver {
    name: &'static str,
    has_controller: bool,
    ready: bool,
    readonly: bool,
    seen: Seen,
    /// Pages of ListVolumes by their tokens.
    pages: HashMap<&'static str, v1::ListVolumesResponse>,
    /// Cancelled to finish the calls for the volume `held`.
    release_held: CancellationToken,
    /// Cancelled when an unpublish of the volume `held` arrives.
    held_unpublish: CancellationToken,
    /// Limit per connection.
    max_concurrent_streams: u32,
    /// Cancelled to start a graceful shutdown: the driver accepts no new calls and finishes the running ones.
    shutdown: CancellationToken,
}

// === impl Driver ===

impl Driver {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            has_controller: true,
            ready: true,
            readonly: false,
            seen: Seen::default(),
            pages: HashMap::new(),
            release_held: CancellationToken::new(),
            held_unpublish: CancellationToken::new(),
            max_concurrent_streams: 100,
            shutdown: CancellationToken::new(),
        }
    }

    /// Serves on `socket` in a separate runtime, whose shutdown closes all connections, as a crash does.
    pub(crate) fn serve(&self, socket: &Path) -> Process {
        std::fs::remove_file(socket).ok();
        let (shutdown, max_concurrent_streams) = (self.shutdown.clone(), self.max_concurrent_streams);
        let (identity, controller) = (
            IdentityServer::new(self.clone()),
            ControllerServer::new(self.clone()),
        );
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime for the driver");
        let listener = {
            let _in_runtime = runtime.enter();
            UnixListener::bind(socket).expect("the socket's directory must be there")
        };
        runtime.spawn(async move {
            // tonic's Router depends on axum; a path prefix suffices for two services.
            let services = service_fn(move |request: http::Request<Body>| {
                let (mut identity, mut controller) = (identity.clone(), controller.clone());
                async move {
                    if request.uri().path().starts_with("/csi.v1.Identity/") {
                        identity.call(request).await
                    } else {
                        controller.call(request).await
                    }
                }
            });
            Server::builder()
                .max_concurrent_streams(max_concurrent_streams)
                .serve_with_incoming_shutdown(
                    services,
                    UnixListenerStream::new(listener),
                    shutdown.cancelled_owned(),
                )
                .await
                .ok();
        });
        Process(Some(runtime))
    }
}

/// A driver process; dropping it kills the process.
pub(crate) struct Process(Option<Runtime>);

// === impl Process ===

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

struct Fixture {
    _dir: TempDir,
    socket: PathBuf,
    connection: watch::Receiver<ConnectionState>,
    manager: JoinHandle<Result<(), DriverChanged>>,
    stop: CancellationToken,
}

// === impl Fixture ===

impl Fixture {
    fn new() -> Self {
        let dir = TempDir::new().expect("a directory for the socket");
        let socket = dir.path().join("csi.sock");
        let address = socket
            .to_str()
            .expect("a path of ASCII")
            .parse()
            .expect("an absolute path");
        let (manager, connection) = ConnectionManager::<Socket>::new(address, SOON);
        let stop = CancellationToken::new();
        #[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
        let manager = tokio::spawn(manager.run(stop.clone()));
        Self {
            _dir: dir,
            socket,
            connection,
            manager,
            stop,
        }
    }

    async fn connection_is(&mut self, up: bool) {
        let waited = self.connection.wait_for(|connection| connection.is_some() == up);
        tokio::time::timeout(SOON, waited)
            .await
            .expect("the connection must change in time")
            .expect("the connection manager runs");
    }

    fn caller(&self) -> Caller {
        self.caller_with(SOON)
    }

    fn caller_with(&self, timeout: Duration) -> Caller {
        Caller::new(self.connection.clone(), timeout, Leadership::unopposed())
    }

    /// A caller that leads as the status says.
    fn caller_in_election(&self) -> (watch::Sender<ElectionStatus>, Caller) {
        let settings = Settings {
            lease_meta: LeaseMeta::of("d", None, None),
            identity: "a".to_owned(),
            labels: BTreeMap::new(),
            timings: Timings {
                lease_duration: SOON,
                renew_deadline: SOON,
                retry_period: SOON,
            },
        };
        let (status_tx, status) = watch::channel(ElectionStatus::new(&settings));
        let caller = Caller::new(self.connection.clone(), SOON, Leadership::from(status));
        (status_tx, caller)
    }
}

fn publish(volume_id: &str) -> v1::ControllerPublishVolumeRequest {
    v1::ControllerPublishVolumeRequest {
        volume_id: volume_id.into(),
        node_id: "id".into(),
        volume_capability: Some(v1::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: "ext4".into(),
                mount_flags: vec!["noatime".into()],
                volume_mount_group: String::new(),
            })),
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
        }),
        readonly: true,
        secrets: [("user".to_owned(), "hunter2-the-secret".to_owned())].into(),
        volume_context: [("k".to_owned(), "v".to_owned())].into(),
    }
}

fn unpublish(volume_id: &str) -> v1::ControllerUnpublishVolumeRequest {
    v1::ControllerUnpublishVolumeRequest {
        volume_id: volume_id.into(),
        node_id: "id".into(),
        ..Default::default()
    }
}

async fn failure(caller: &Caller, volume_id: &str) -> CallError {
    caller
        .publish(publish(volume_id), false)
        .await
        .expect_err("the driver must not have published it")
}

#[tokio::test]
async fn reconnects_after_the_driver_restarts() {
    let mut fixture = Fixture::new();
    // No driver listens yet.
    let mut driver = Driver::new("d.example");
    let server = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    let caller = fixture.caller();
    let capabilities = caller.ready().await.expect("the driver is there");
    assert!(capabilities.publish && !capabilities.publish_readonly);
    caller
        .publish(publish("ok"), false)
        .await
        .expect("the driver publishes it");

    // The connection manager detects the loss although no call is running.
    drop(server);
    fixture.connection_is(false).await;
    let error = failure(&caller, "ok").await;
    assert_eq!(
        (error.class(), error.code.number()),
        (Class::Disconnected, 14),
        "{error}"
    );
    let ready = fixture.caller_with(TIMEOUT).ready().await;
    assert_eq!(ready.map_err(|error| error.class()), Err(Class::Disconnected));
    // A waiting worker occupies a slot of its lane, so `ready` must not wait for the call timeout.
    let patient = fixture.caller_with(Duration::from_secs(3600));
    tokio::time::pause();
    let begin = tokio::time::Instant::now();
    assert!(patient.ready().await.is_err());
    assert!(begin.elapsed() < Duration::from_secs(10));
    tokio::time::resume();

    // The driver restarts with another capability.
    driver.readonly = true;
    let _server = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    assert!(caller.ready().await.expect("the driver is back").publish_readonly);
    caller
        .publish(publish("ok"), false)
        .await
        .expect("the driver publishes it again");
    fixture.stop.cancel();
    assert_eq!(
        fixture
            .manager
            .await
            .expect("the connection manager does not panic"),
        Ok(())
    );
}

#[tokio::test]
async fn truncates_a_long_error_message_and_keeps_the_code() {
    let mut fixture = Fixture::new();
    let _server = Driver::new("d.example").serve(&fixture.socket);
    fixture.connection_is(true).await;
    let error = failure(&fixture.caller(), "verbose").await;
    // The message of 160,000 bytes is cut to the length that is searched for credentials.
    assert_eq!(
        (error.code.name(), error.message.len()),
        ("ResourceExhausted", 16 << 10)
    );
    assert!(fixture.connection.borrow().is_some(), "the connection stays open");
}

#[tokio::test]
async fn waits_until_the_driver_is_ready_and_accepts_one_without_a_controller_service() {
    let mut fixture = Fixture::new();
    let mut driver = Driver::new("d.example");
    let server = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    let caller = fixture.caller();
    assert!(caller.ready().await.expect("the driver is there").publish);
    drop(server);
    fixture.connection_is(false).await;

    // Probe returns ready=false for several attempts.
    driver.ready = false;
    driver.has_controller = false;
    let server = driver.serve(&fixture.socket);
    let up = fixture.connection.wait_for(Option::is_some);
    let is_early = tokio::time::timeout(TIMEOUT, up).await.is_ok();
    assert!(!is_early, "a driver that is not ready must not be called");
    drop(server);

    driver.ready = true;
    let _server = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    assert_eq!(caller.ready().await, Ok(Capabilities::default()));
}

/// Starts a publish, and the driver's graceful shutdown while the call runs.
async fn shut_down_during_a_call(
    fixture: &Fixture,
    driver: &Driver,
) -> JoinHandle<Result<BTreeMap<String, String>, CallError>> {
    let caller = fixture.caller();
    #[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
    let old = tokio::spawn(async move { caller.publish(publish("held"), false).await });
    tokio::time::timeout(SOON, async {
        while driver.seen.lock().expect("no test panics with it").is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the call must arrive");
    driver.shutdown.cancel();
    old
}

#[tokio::test]
async fn reconnects_while_the_old_driver_finishes_its_calls() {
    let mut fixture = Fixture::new();
    let old_driver = Driver::new("d.example");
    let _old_server = old_driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    let old_session = fixture.connection.borrow().clone().expect("it is up");
    let new_driver = Driver::new("d.example");
    let _new_server = new_driver.serve(&fixture.socket);
    // Both connections need a running call, otherwise the driver closes them right after the GOAWAY.
    let unpublisher = fixture.caller();
    #[expect(clippy::disallowed_methods, reason = "the test is the supervisor")]
    let old_unpublish = tokio::spawn(async move { unpublisher.unpublish(unpublish("held"), false).await });
    let arrives = tokio::time::timeout(SOON, old_driver.held_unpublish.cancelled());
    arrives.await.expect("the unpublish must arrive");
    let old_call = shut_down_during_a_call(&fixture, &old_driver).await;

    let is_new = |connection: &ConnectionState| {
        let session = connection.as_ref();
        session.is_some_and(|session| !Arc::ptr_eq(session, &old_session))
    };
    tokio::time::timeout(SOON, fixture.connection.wait_for(is_new))
        .await
        .expect("another session must be opened while the old call runs")
        .expect("the connection manager runs");
    let new_call = fixture.caller().publish(publish("ok"), false).await;
    assert!(new_call.is_ok(), "{new_call:?}");
    assert_eq!(new_driver.seen.lock().expect("no test panics with it").len(), 1);
    assert!(!old_call.is_finished() && !old_unpublish.is_finished());
    old_driver.release_held.cancel();
    let finished = old_call.await.expect("no panic");
    assert_eq!(finished, Ok(BTreeMap::new()));
    fixture.stop.cancel();
}

#[tokio::test]
async fn calls_after_goaway_fail_as_not_connected() {
    let mut fixture = Fixture::new();
    let driver = Driver::new("d.example");
    let _server = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    // A caller with an outdated connection state.
    let (_connection_tx, connection) = watch::channel(fixture.connection.borrow().clone());
    let late = Caller::new(connection, SOON, Leadership::unopposed());
    let old_call = shut_down_during_a_call(&fixture, &driver).await;
    fixture.connection_is(false).await;
    // The state is disconnected with the loss of the first of the two connections; the other may accept calls for a moment.
    let mut taken = 1;
    for attempt in 0..3 {
        let error = loop {
            match late.publish(publish("ok"), false).await {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(
            (error.reach, error.class(), error.code.number()),
            (Reach::NotConnected, Class::Disconnected, 14),
            "{attempt}: {error}"
        );
    }
    assert_eq!(driver.seen.lock().expect("no test panics with it").len(), taken);
    driver.release_held.cancel();
    assert!(old_call.await.expect("no panic").is_ok());
    fixture.stop.cancel();
}

#[tokio::test]
async fn slow_unpublishes_do_not_delay_publishes() {
    let mut fixture = Fixture::new();
    let mut driver = Driver::new("d.example");
    driver.max_concurrent_streams = 1;
    let _server = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    let caller = fixture.caller();
    let call = || caller.unpublish(unpublish("held"), false);
    // The first runs, the others are queued.
    let slow = future::join3(call(), call(), call());
    let attach = async {
        driver.held_unpublish.cancelled().await;
        caller.publish(publish("ok"), false).await
    };
    match future::select(pin!(attach), pin!(slow)).await {
        Either::Left((published, _)) => assert!(published.is_ok(), "{published:?}"),
        Either::Right((unpublished, _)) => panic!("the test released no unpublish: {unpublished:?}"),
    }
    fixture.stop.cancel();
}

#[tokio::test]
async fn lists_volumes_page_by_page() {
    let entry = |volume_id: &str, nodes: Option<&[&str]>| v1::list_volumes_response::Entry {
        volume: Some(v1::Volume {
            volume_id: volume_id.to_owned(),
            ..Default::default()
        }),
        status: nodes.map(|nodes| v1::list_volumes_response::VolumeStatus {
            published_node_ids: nodes.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }),
    };
    let nameless = v1::list_volumes_response::Entry::default();
    let mut fixture = Fixture::new();
    let mut driver = Driver::new("d.example");
    driver.pages = HashMap::from([
        (
            "",
            v1::ListVolumesResponse {
                entries: vec![entry("v-1", Some(&["a", "b"])), nameless],
                next_token: "next".to_owned(),
            },
        ),
        (
            "next",
            v1::ListVolumesResponse {
                entries: vec![entry("v-2", Some(&[])), entry("v-3", None)],
                next_token: String::new(),
            },
        ),
    ]);
    let _server = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    let caller = fixture.caller();
    assert!(caller.ready().await.expect("the driver is there").list_published);
    let page = |starting_token: &str| {
        let request = v1::ListVolumesRequest {
            max_entries: 2,
            starting_token: starting_token.to_owned(),
        };
        caller.list(request)
    };
    let first = page("").await.expect("the first page");
    assert_eq!(
        first.entries,
        [
            entry("v-1", Some(&["a", "b"])),
            v1::list_volumes_response::Entry::default()
        ]
    );
    let second = page(&first.next_token).await.expect("the second page");
    assert_eq!(second.entries, [entry("v-2", Some(&[])), entry("v-3", None)]);
    assert_eq!(second.next_token, "");
    let error = page("foreign").await.expect_err("there is no such page");
    assert_eq!(error.code.number(), 10);
}

#[tokio::test]
async fn connection_manager_ends_when_another_driver_listens_on_the_socket() {
    let mut fixture = Fixture::new();
    let server = Driver::new("d.example").serve(&fixture.socket);
    fixture.connection_is(true).await;
    drop(server);
    fixture.connection_is(false).await;
    let _server = Driver::new("other.example").serve(&fixture.socket);
    let lost = tokio::time::timeout(SOON, fixture.manager)
        .await
        .expect("the connection manager ends")
        .expect("without panic");
    assert_eq!(
        lost,
        Err(DriverChanged {
            was: "d.example".into(),
            is: "other.example".into()
        })
    );
}

#[tokio::test]
async fn sends_nothing_without_leadership() {
    let mut fixture = Fixture::new();
    let driver = Driver::new("d.example");
    let _server = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    let (status_tx, caller) = fixture.caller_in_election();
    for valid_until in [None, Some(tokio::time::Instant::now())] {
        status_tx.send_modify(|status| status.valid_until = valid_until);
        let error = failure(&caller, "ok").await;
        assert_eq!(error.reach, Reach::NotSent);
    }
    assert!(driver.seen.lock().expect("no test panics with it").is_empty());
    status_tx.send_modify(|status| status.valid_until = Some(tokio::time::Instant::now() + SOON));
    caller
        .publish(publish("ok"), false)
        .await
        .expect("the leader's call is sent");
    fixture.stop.cancel();
}

/// Another replica may call for the same volume from then on.
#[tokio::test]
async fn leadership_that_ends_cancels_a_running_call() {
    let mut fixture = Fixture::new();
    let driver = Driver::new("d.example");
    let _server = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    let (status_tx, caller) = fixture.caller_in_election();
    status_tx.send_modify(|status| status.valid_until = Some(tokio::time::Instant::now() + SOON));
    let held = caller.unpublish(unpublish("held"), false);
    let paused = async {
        driver.held_unpublish.cancelled().await;
        status_tx.send_modify(|status| status.valid_until = Some(tokio::time::Instant::now()));
    };
    let (answer, ()) = tokio::join!(held, paused);
    let error = answer.expect_err("the driver does not answer it");
    assert!(error.may_have_taken_effect(), "{error:?}");
    assert_eq!(error.reach, Reach::Cancelled);
    fixture.stop.cancel();
}

#[tokio::test]
async fn publish_sends_all_fields_and_returns_the_publish_context() {
    let mut fixture = Fixture::new();
    let driver = Driver::new("d.example");
    let _server = driver.serve(&fixture.socket);
    fixture.connection_is(true).await;
    let context = fixture
        .caller()
        .publish(publish("ok"), false)
        .await
        .expect("the driver publishes it");
    assert_eq!(
        context.into_iter().collect::<Vec<_>>(),
        [("device".to_owned(), "/dev/ok".to_owned())]
    );
    let seen = driver.seen.lock().expect("no test panics with it").remove(0);
    assert_eq!(
        (seen.volume_id.as_str(), seen.node_id.as_str(), seen.readonly),
        ("ok", "id", true)
    );
    assert_eq!(
        seen.volume_context,
        HashMap::from([("k".to_owned(), "v".to_owned())])
    );
    assert_eq!(seen.secrets["user"], "hunter2-the-secret");
    let capability = seen.volume_capability.expect("a capability is sent");
    assert_eq!(
        capability.access_mode.map(|mode| mode.mode()),
        Some(v1::volume_capability::access_mode::Mode::SingleNodeWriter)
    );
    assert!(matches!(
        capability.access_type,
        Some(v1::volume_capability::AccessType::Mount(mount))
            if mount.fs_type == "ext4" && mount.mount_flags == ["noatime"] && mount.volume_mount_group.is_empty()
    ));
}

#[tokio::test]
async fn accepts_the_longest_go_duration_as_timeout() {
    let mut fixture = Fixture::new();
    let _server = Driver::new("d.example").serve(&fixture.socket);
    fixture.connection_is(true).await;
    let longest = Duration::from_nanos(i64::MAX as u64);
    let caller = fixture.caller_with(longest);
    assert!(caller.ready().await.is_ok());
    assert!(caller.publish(publish("ok"), false).await.is_ok());
}

#[tokio::test]
async fn reports_failures_as_grpc_go_does_and_without_secrets() {
    let mut fixture = Fixture::new();
    let _server = Driver::new("d.example").serve(&fixture.socket);
    fixture.connection_is(true).await;
    let caller = fixture.caller();
    let error = failure(&caller, "no").await;
    assert_eq!(
        error.to_string(),
        "rpc error: code = ResourceExhausted desc = no room for user ***stripped***"
    );
    assert_eq!(error.code.number(), 8);
    let error = failure(&fixture.caller_with(TIMEOUT), "slow").await;
    assert_eq!(
        error.to_string(),
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    );
    let result = caller.unpublish(unpublish("ok"), false).await;
    let error = result.expect_err("not in this driver");
    assert_eq!(
        error.to_string(),
        "rpc error: code = Unimplemented desc = Not yet implemented"
    );
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        let name = self.name.to_owned();
        Ok(Response::new(v1::GetPluginInfoResponse {
            name,
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        let service = plugin_capability::Service {
            r#type: plugin_capability::service::Type::ControllerService.into(),
        };
        let capability = v1::PluginCapability {
            r#type: Some(plugin_capability::Type::Service(service)),
        };
        Ok(Response::new(v1::GetPluginCapabilitiesResponse {
            capabilities: self.has_controller.then_some(capability).into_iter().collect(),
        }))
    }

    /// A ready driver omits the optional field.
    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        Ok(Response::new(v1::ProbeResponse {
            ready: (!self.ready).then_some(false),
        }))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn controller_get_capabilities(
        &self,
        _: Request<v1::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<v1::ControllerGetCapabilitiesResponse>, Status> {
        use controller_service_capability::{Rpc, Type, rpc};
        if !self.has_controller {
            return Err(Status::internal("no controller service"));
        }
        let mut types = vec![rpc::Type::PublishUnpublishVolume];
        types.extend(self.readonly.then_some(rpc::Type::PublishReadonly));
        if !self.pages.is_empty() {
            types.extend([rpc::Type::ListVolumes, rpc::Type::ListVolumesPublishedNodes]);
        }
        let capability = |r#type: rpc::Type| v1::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc {
                r#type: r#type.into(),
            })),
        };
        let capabilities = types.into_iter().map(capability).collect();
        Ok(Response::new(v1::ControllerGetCapabilitiesResponse {
            capabilities,
        }))
    }

    async fn list_volumes(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        let request = request.into_inner();
        if request.max_entries != 2 {
            return Err(Status::invalid_argument("two entries a page"));
        }
        let page = self.pages.get(request.starting_token.as_str());
        page.cloned()
            .map(Response::new)
            .ok_or_else(|| Status::aborted("no such page"))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<v1::ControllerPublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume_id = request.volume_id.clone();
        let user = request.secrets["user"].clone();
        self.seen.lock().expect("no test panics with it").push(request);
        match &*volume_id {
            "ok" => {
                let publish_context = [("device".to_owned(), format!("/dev/{volume_id}"))].into();
                Ok(Response::new(v1::ControllerPublishVolumeResponse {
                    publish_context,
                }))
            }
            "held" => {
                self.release_held.cancelled().await;
                Ok(Response::new(v1::ControllerPublishVolumeResponse::default()))
            }
            "verbose" => Err(Status::resource_exhausted("no room ".repeat(20_000))),
            "no" => Err(Status::resource_exhausted(format!("no room for user {user}"))),
            _ => std::future::pending().await,
        }
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<v1::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<v1::ControllerUnpublishVolumeResponse>, Status> {
        if request.into_inner().volume_id == "held" {
            self.held_unpublish.cancel();
            self.release_held.cancelled().await;
        }
        Err(Status::unimplemented("Not yet implemented"))
    }
}
