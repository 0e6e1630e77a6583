//! The CSI driver in process, with recorded calls and processes that can be stopped.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use attacher_contract::observation::Name;
use csi_attacher::csi::{Connect, OpenError};
use csi_e2e::mutex::lock;
use csi_e2e::observe::grpc::{Known, RunningCall, list, read, read_response};
use csi_mock_driver::driver::Driver;
use csi_mock_driver::service::services;
use csi_proto::v1::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateVolumeRequest,
    DeleteVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest,
};
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::DuplexStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::Service;

use crate::observer::Observer;

/// Buffer size of a connection, in bytes.
const IN_FLIGHT: usize = 64 * 1024;

/// A process of the driver, that of the controller or that of a machine.
#[derive(Clone)]
pub(crate) struct DriverProcess {
    name: String,
    state: Arc<Mutex<ProcessState>>,
    observer: Observer,
    /// The attacher process at the other end.
    client: Option<Name>,
}

struct ProcessState {
    /// The driver of the running process, or of the last one while it is down.
    driver: Arc<Driver>,
    /// `None` while it is down.
    running: Option<Running>,
}

#[derive(Clone)]
struct Running {
    services: Routes,
    /// Cancelled when the process ends.
    ended: CancellationToken,
}

/// The socket of the driver's controller process, as one client sees it.
#[derive(Clone)]
pub(crate) struct DriverSocket {
    process: DriverProcess,
    connections: Arc<Mutex<JoinSet<()>>>,
}

/// A call for a volume.
#[derive(Clone, Debug)]
pub(crate) struct VolumeCall {
    pub method: String,
    /// The driver's ID, or the name of a volume that it creates.
    pub volume: String,
    /// Id of the node, or path on the machine; empty for other calls.
    pub place: String,
}

/// Staged and published volumes of a node, from the responses of Node calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mounts {
    pub staged: BTreeSet<String>,
    /// Volume and target path.
    pub published: BTreeSet<(String, String)>,
}

// === impl DriverProcess ===

impl DriverProcess {
    pub(crate) fn new(name: &str, driver: Arc<Driver>, observer: Observer) -> Self {
        let running = Some(Running::of(&driver));
        Self {
            name: name.to_owned(),
            state: Arc::new(Mutex::new(ProcessState { driver, running })),
            observer,
            client: None,
        }
    }

    /// Stops the process and cancels its calls, or starts it again. The mounts of its machine stay. Operations that the array
    /// has begun continue until the next start.
    pub(crate) fn set_down(&self, is_down: bool) {
        {
            let mut state = lock(&self.state);
            if let Some(running) = state.running.take() {
                running.ended.cancel();
            }
            if !is_down {
                state.driver = state.driver.restarted();
                state.running = Some(Running::of(&state.driver));
            }
        }
        let state = if is_down { "down" } else { "up" };
        self.observer
            .fault(&self.name, format_args!("driver process is {state}"));
    }

    fn is_down(&self) -> bool {
        lock(&self.state).running.is_none()
    }

    async fn respond(self, request: Request<Body>) -> Response<Body> {
        let Some(running) = lock(&self.state).running.clone() else {
            return Status::unavailable("the driver process is down").into_http();
        };
        let execution = self.execute(running.services, request);
        let response = running.ended.run_until_cancelled(execution).await;
        response.unwrap_or_else(|| Status::unavailable("the driver process ended").into_http())
    }

    async fn execute(self, mut services: Routes, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            return Status::cancelled("the client left").into_http();
        };
        let message = body.to_bytes();
        let method = parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let known = read(parts.uri.path(), &message, self.client.clone(), || {
            self.observer.next_number()
        });
        let volume_call = VolumeCall::read(&method, &message);
        let about = volume_call.map(|call| (self.observer.name_of(&call.volume), call));
        if let Some((volume, call)) = &about {
            let text = format!("{} {} ...", call.method, call.place);
            self.observer.note(&self.name, Some(volume), text);
        }
        let request = Request::from_parts(parts, Body::new(Full::new(message)));
        let observer = self.observer.clone();
        let observe = move |seen| observer.observe(seen);
        let running = match known {
            Some(Known::List(message)) => {
                let round = self.observer.next_number();
                return list(services, request, &message, round, observe).await;
            }
            Some(Known::Controller(call)) => Some(RunningCall::begin(call, observe)),
            None => None,
        };
        let Ok(response) = services.call(request).await;
        let (response, code, message, context) = read_response(response).await;
        if let Some(running) = running {
            running.end(code, message, context);
        }
        if let Some((volume, call)) = &about {
            let text = format!("{} {} {code:?}", call.method, call.place);
            self.observer.note(&self.name, Some(volume), text);
            if code == Code::Ok {
                self.observer.succeeded(&self.name, call);
            }
        }
        response
    }
}

// === impl Running ===

impl Running {
    fn of(driver: &Arc<Driver>) -> Self {
        Self {
            services: services(driver),
            ended: CancellationToken::new(),
        }
    }
}

impl Service<Request<Body>> for DriverProcess {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let process = self.clone();
        Box::pin(async move { Ok(process.respond(request).await) })
    }
}

// === impl DriverSocket ===

impl DriverSocket {
    pub(crate) fn new(process: DriverProcess) -> Self {
        Self {
            process,
            connections: Arc::default(),
        }
    }

    /// The socket as this attacher process sees it.
    pub(crate) fn of(&self, client: &str) -> Self {
        let mut socket = self.clone();
        socket.process.client = Some(client.into());
        socket
    }

    pub(crate) fn process(&self) -> DriverProcess {
        self.process.clone()
    }

    /// Ends the process with all its connections, or starts it again.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.process.set_down(is_down);
        if is_down {
            lock(&self.connections).abort_all();
        }
    }
}

impl Connect for DriverSocket {
    type Stream = DuplexStream;

    async fn connect(&self) -> Result<DuplexStream, OpenError> {
        if self.process.is_down() {
            let refused = io::ErrorKind::ConnectionRefused.into();
            return Err(OpenError::Connect("in-process".into(), refused));
        }
        let (client, server) = tokio::io::duplex(IN_FLIGHT);
        let process = self.process.clone();
        let mut connections = lock(&self.connections);
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let mut process = process.clone();
                process.call(request.map(Body::new))
            });
            // Connection errors are handled by the client.
            http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(server), service)
                .await
                .ok();
        });
        Ok(client)
    }
}

// === impl VolumeCall ===

impl VolumeCall {
    /// The call in a gRPC message, if it is on a volume's attach path.
    fn read(method: &str, framed: &[u8]) -> Option<Self> {
        let message = framed.get(5..)?;
        let (volume, place) = match method {
            "CreateVolume" => {
                let request = CreateVolumeRequest::decode(message).ok()?;
                (request.name, String::new())
            }
            "DeleteVolume" => {
                let request = DeleteVolumeRequest::decode(message).ok()?;
                (request.volume_id, String::new())
            }
            "ControllerPublishVolume" => {
                let request = ControllerPublishVolumeRequest::decode(message).ok()?;
                (request.volume_id, request.node_id)
            }
            "ControllerUnpublishVolume" => {
                let request = ControllerUnpublishVolumeRequest::decode(message).ok()?;
                (request.volume_id, request.node_id)
            }
            "NodeStageVolume" => {
                let request = NodeStageVolumeRequest::decode(message).ok()?;
                (request.volume_id, String::new())
            }
            "NodeUnstageVolume" => {
                let request = NodeUnstageVolumeRequest::decode(message).ok()?;
                (request.volume_id, String::new())
            }
            "NodePublishVolume" => {
                let request = NodePublishVolumeRequest::decode(message).ok()?;
                (request.volume_id, request.target_path)
            }
            "NodeUnpublishVolume" => {
                let request = NodeUnpublishVolumeRequest::decode(message).ok()?;
                (request.volume_id, request.target_path)
            }
            _ => return None,
        };
        Some(Self {
            method: method.to_owned(),
            volume,
            place,
        })
    }
}

// === impl Mounts ===

impl Mounts {
    /// Forgets the volumes that are staged and not published, and returns them.
    pub(crate) fn forget_staged(&mut self) -> BTreeSet<String> {
        let is_published = |volume: &String| self.published.iter().any(|(published, _)| published == volume);
        let (kept, forgotten) = self.staged.iter().cloned().partition(is_published);
        self.staged = kept;
        forgotten
    }

    /// Applies a successful call of the Node service.
    pub(crate) fn apply(&mut self, call: &VolumeCall) {
        let (volume, target) = (&call.volume, (call.volume.clone(), call.place.clone()));
        // Repeated calls succeed, too.
        let _changed = match call.method.as_str() {
            "NodeStageVolume" => self.staged.insert(volume.clone()),
            "NodeUnstageVolume" => self.staged.remove(volume),
            "NodePublishVolume" => self.published.insert(target),
            "NodeUnpublishVolume" => self.published.remove(&target),
            _ => false,
        };
    }

    pub(crate) fn has(&self, volume: &str) -> bool {
        self.staged.contains(volume) || self.published.iter().any(|(of, _)| of == volume)
    }
}
