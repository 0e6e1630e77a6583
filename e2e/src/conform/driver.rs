//! The driver of one case: the mock driver in this process, behind a socket that records the attacher's calls and may lie.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use attacher_contract::observation::{Answer, Call, List, Method, Name, PublishRequest, Target};
use attacher_contract::{Contract, Observation};
use csi_mock_driver::array::{self, NodeId};
use csi_mock_driver::driver::{Driver, Settings};
use csi_mock_driver::service::services;
use csi_proto::v1::volume_capability::AccessType;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ListVolumesRequest, ListVolumesResponse,
};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::Service as _;

use super::observer::Observer;

/// Length of the prefix of a gRPC message.
const PREFIX: usize = 5;

/// How the driver answers.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// With this code, without effect.
    Fail(Code),
    /// INTERNAL with a message of this length, without effect.
    FailAtLength(usize),
    /// With this code, after the effect.
    FailAfterEffect(Code),
    /// Never; with or without the effect.
    Hang { effect: bool },
    /// Truthfully, after this time.
    Slow(Duration),
}

/// The calls that get a reply.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub method: Method,
    /// `None`: every node.
    pub node: Option<String>,
    pub reply: Reply,
    /// How often it applies.
    pub times: usize,
}

/// The driver of a case.
#[derive(Clone)]
pub(super) struct ScriptedDriver {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    socket: PathBuf,
    driver: Mutex<Arc<Driver>>,
    observer: Observer,
    /// Held while a write is executed and observed: a call that follows from it begins later.
    write: Arc<tokio::sync::Mutex<()>>,
    scripts: Mutex<Vec<Script>>,
    calls: AtomicU64,
    rounds: AtomicU64,
    published: Mutex<BTreeSet<Target>>,
    /// Names of attacher processes by process ID.
    processes: Mutex<BTreeMap<i32, Name>>,
    seen_processes: Mutex<BTreeSet<i32>>,
    listening: Mutex<JoinSet<()>>,
}

/// Ends a call that its client cancels.
struct Running {
    number: u64,
    observer: Observer,
    ended: bool,
}

/// A call that the contract is about.
enum Known {
    Controller(Arc<Call>),
    List(ListVolumesRequest),
}

// === impl Script ===

impl Script {
    pub(super) fn of(method: Method, reply: Reply) -> Self {
        Self {
            method,
            node: None,
            reply,
            times: usize::MAX,
        }
    }

    pub(super) fn node(self, id: &str) -> Self {
        Self {
            node: Some(id.to_owned()),
            ..self
        }
    }

    pub(super) fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }
}

// === impl ScriptedDriver ===

impl ScriptedDriver {
    /// Starts the driver with volume `vol-0` and `nodes`. `write` is held while a write to the API server is observed.
    pub(super) fn start(
        name: &str,
        socket: &Path,
        nodes: &[String],
        capabilities: &str,
        observer: Observer,
        write: Arc<tokio::sync::Mutex<()>>,
    ) -> Result<Self> {
        let settings = Settings {
            name: name.to_owned(),
            array: array::Settings {
                nodes: nodes.iter().map(|node| NodeId::from(node.clone())).collect(),
                ..array::Settings::default()
            },
            initial_volumes: 2,
            latency: Duration::from_millis(5),
            capabilities: capabilities.parse().context("parse the capabilities")?,
            ..Settings::default()
        };
        let driver = Driver::in_memory(settings).context("start the driver")?;
        let driver = Self {
            shared: Arc::new(Shared {
                name: name.to_owned(),
                socket: socket.to_owned(),
                driver: Mutex::new(driver),
                observer,
                write,
                scripts: Mutex::default(),
                calls: AtomicU64::new(0),
                rounds: AtomicU64::new(0),
                published: Mutex::default(),
                processes: Mutex::default(),
                seen_processes: Mutex::default(),
                listening: Mutex::default(),
            }),
        };
        driver.shared.observer.observe(Observation::PublishCapability(
            !capabilities.contains("-PUBLISH_UNPUBLISH_VOLUME"),
        ));
        driver.up()?;
        Ok(driver)
    }

    pub(super) fn name(&self) -> &str {
        &self.shared.name
    }

    pub(super) fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// Adds a reply; the latest one for a call applies.
    pub(super) fn script(&self, script: Script) {
        let text = format!("the driver answers {:?} to {}", script.reply, script.method);
        self.shared.observer.observe(Observation::Disturbed(text));
        lock(&self.shared.scripts).insert(0, script);
    }

    /// Ends all scripted replies.
    pub(super) fn behave(&self) {
        lock(&self.shared.scripts).clear();
    }

    /// The driver process ends, and its connections break.
    pub(super) fn down(&self) {
        let text = "the driver process ends".to_owned();
        self.shared.observer.observe(Observation::Disturbed(text));
        lock(&self.shared.listening).abort_all();
        // It does not exist if the driver is down.
        drop(std::fs::remove_file(&self.shared.socket));
    }

    /// The next driver process starts.
    pub(super) fn up(&self) -> Result<()> {
        let listener = UnixListener::bind(&self.shared.socket).context("bind the driver's socket")?;
        let mut driver = lock(&self.shared.driver);
        *driver = driver.restarted();
        let routes = services(&driver);
        lock(&self.shared.listening).spawn(listen(listener, routes, self.shared.clone()));
        Ok(())
    }

    /// Restarts the driver with changed capabilities, in the format of the mock driver's flag.
    pub(super) fn restart_with(&self, capabilities: &str) -> Result<()> {
        self.down();
        lock(&self.shared.driver)
            .capabilities
            .write()
            .change(capabilities)
            .context("change the capabilities")?;
        if capabilities.contains("PUBLISH_UNPUBLISH_VOLUME") {
            let has = capabilities.contains("+PUBLISH_UNPUBLISH_VOLUME");
            self.shared.observer.observe(Observation::PublishCapability(has));
        }
        self.up()
    }

    /// Changes the array out of band.
    pub(super) async fn change<T>(
        &self,
        change: impl FnOnce(&mut array::Array) -> std::result::Result<array::Done<T>, array::Error>,
    ) -> Result<()> {
        let driver = lock(&self.shared.driver).clone();
        let changed = driver.store.change(change).await;
        changed.map(drop).context("change the array")?;
        self.shared.compare();
        Ok(())
    }

    /// Names a process.
    pub(super) fn name_process(&self, pid: u32, name: &str) {
        if let Ok(pid) = i32::try_from(pid) {
            lock(&self.shared.processes).insert(pid, name.into());
        }
    }

    /// Whether an attacher process other than `but` has connected.
    pub(super) fn connections(&self) -> usize {
        lock(&self.shared.seen_processes).len()
    }
}

// === impl Shared ===

impl Shared {
    /// Observes what the array has published and unpublished.
    fn compare(&self) {
        let mut known = lock(&self.published);
        let driver = lock(&self.driver).clone();
        let published: BTreeSet<Target> = driver.store.peek(|array| {
            let targets = array.volumes().flat_map(|volume| {
                let id = volume.spec.id.to_string();
                let nodes: Vec<_> = volume.attachments.keys().map(ToString::to_string).collect();
                nodes.into_iter().map(move |node| Target::new(&id, &node))
            });
            targets.collect()
        });
        for target in known.difference(&published) {
            self.observer.observe(Observation::Array(target.clone(), false));
        }
        for target in published.difference(&known) {
            self.observer.observe(Observation::Array(target.clone(), true));
        }
        *known = published;
    }

    fn reply(&self, call: &Call) -> Option<Reply> {
        let mut scripts = lock(&self.scripts);
        let script = scripts.iter_mut().find(|script| {
            script.method == call.method
                && script.times > 0
                && script
                    .node
                    .as_ref()
                    .is_none_or(|node| **node == *call.target.node)
        })?;
        script.times -= 1;
        Some(script.reply.clone())
    }

    async fn respond(
        &self,
        mut routes: Routes,
        process: Option<i32>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let Ok(body) = body.collect().await else {
            return Status::cancelled("the client left").into_http();
        };
        let message = body.to_bytes();
        let by = process.and_then(|pid| lock(&self.processes).get(&pid).cloned());
        let known = self.read(parts.uri.path(), &message, by);
        let request = Request::from_parts(parts, Body::new(Full::new(message)));
        let call = match known {
            None => {
                let Ok(response) = routes.call(request).await;
                return response;
            }
            Some(Known::List(list)) => return self.list(routes, request, &list).await,
            Some(Known::Controller(call)) => call,
        };
        let mut running = Running {
            number: call.number,
            observer: self.observer.clone(),
            ended: false,
        };
        drop(self.write.lock().await);
        self.observer.observe(Observation::CallBegan(call.clone()));
        let reply = self.reply(&call);
        if let Some(Reply::Slow(time)) = reply {
            sleep(time).await;
        }
        let response = match reply {
            Some(Reply::Fail(_) | Reply::FailAtLength(_) | Reply::Hang { effect: false }) => None,
            Some(Reply::FailAfterEffect(_) | Reply::Hang { effect: true } | Reply::Slow(_)) | None => {
                let Ok(response) = routes.call(request).await;
                let truth = read_response(response).await;
                self.compare();
                Some(truth)
            }
        };
        let scripted = |code: Code| {
            let message = format!("scripted {} of {}", code.description(), call.target);
            (
                Status::new(code, message.clone()).into_http(),
                code,
                message,
                BTreeMap::new(),
            )
        };
        let (response, code, message, context) = match (reply, response) {
            (Some(Reply::Hang { .. }), _) => return std::future::pending().await,
            (Some(Reply::Fail(code) | Reply::FailAfterEffect(code)), _) => scripted(code),
            (Some(Reply::Slow(_)) | None, Some(truth)) => truth,
            (Some(Reply::FailAtLength(length)), _) => {
                let message = "scripted ".repeat(length / 9 + 1);
                let status = Status::internal(message.clone());
                (status.into_http(), Code::Internal, message, BTreeMap::new())
            }
            (Some(Reply::Slow(_)) | None, None) => unreachable!("the driver answers what is not scripted"),
        };
        running.ended = true;
        let answer = Answer {
            code: name_of(code).into(),
            message,
            context,
        };
        self.observer.observe(Observation::CallEnded(call.number, answer));
        response
    }

    async fn list(
        &self,
        mut routes: Routes,
        request: Request<Body>,
        list: &ListVolumesRequest,
    ) -> Response<Body> {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        self.observer.observe(Observation::ListBegan(round));
        let Ok(response) = routes.call(request).await;
        let (parts, body) = response.into_parts();
        let Ok(body) = body.collect().await else {
            return Status::internal("the response broke off").into_http();
        };
        let trailers = body.trailers().cloned();
        let bytes = body.to_bytes();
        let page = bytes
            .get(PREFIX..)
            .and_then(|message| ListVolumesResponse::decode(message).ok());
        // A list of several pages is not followed: it is no proof in any case of conform.
        if let Some(page) = page.filter(|page| page.next_token.is_empty() && list.starting_token.is_empty()) {
            let entries = page.entries.into_iter().filter_map(|entry| {
                let nodes = entry.status.map(|status| {
                    let ids = status.published_node_ids.into_iter();
                    ids.map(|id| Name::from(id.as_str())).collect()
                });
                Some((Name::from(entry.volume?.volume_id.as_str()), nodes))
            });
            let entries: List = entries.collect();
            self.observer.observe(Observation::ListEnded(round, entries));
        }
        let trailers = std::future::ready(trailers.map(Ok));
        Response::from_parts(parts, Body::new(Full::new(bytes).with_trailers(trailers)))
    }

    fn read(&self, path: &str, framed: &[u8], by: Option<Name>) -> Option<Known> {
        let message = framed.get(PREFIX..)?;
        let number = || self.calls.fetch_add(1, Ordering::Relaxed);
        match path.rsplit('/').next()? {
            "ControllerPublishVolume" => {
                let request = ControllerPublishVolumeRequest::decode(message).ok()?;
                Some(Known::Controller(Arc::new(Call {
                    number: number(),
                    by,
                    method: Method::Publish,
                    target: Target::new(&request.volume_id, &request.node_id),
                    secret: Some(!request.secrets.is_empty()),
                    request: Some(fields(&request)),
                })))
            }
            "ControllerUnpublishVolume" => {
                let request = ControllerUnpublishVolumeRequest::decode(message).ok()?;
                Some(Known::Controller(Arc::new(Call {
                    number: number(),
                    by,
                    method: Method::Unpublish,
                    target: Target::new(&request.volume_id, &request.node_id),
                    secret: Some(!request.secrets.is_empty()),
                    request: None,
                })))
            }
            "ListVolumes" => Some(Known::List(ListVolumesRequest::decode(message).ok()?)),
            _ => None,
        }
    }
}

// === impl Running ===

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            let answer = Answer {
                code: "CANCELLED".into(),
                message: "the client cancelled the call".to_owned(),
                context: BTreeMap::new(),
            };
            self.observer.observe(Observation::CallEnded(self.number, answer));
        }
    }
}

// === functions ===

async fn listen(listener: UnixListener, routes: Routes, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        let process = shared.process_of(&stream);
        let (routes, shared) = (routes.clone(), shared.clone());
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let (routes, shared, process) = (routes.clone(), shared.clone(), process);
                async move { Ok::<_, Infallible>(shared.respond(routes, process, request).await) }
            });
            // The client handles errors of the connection.
            http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await
                .ok();
        });
    }
}

impl Shared {
    /// The process at the other end.
    fn process_of(&self, stream: &UnixStream) -> Option<i32> {
        let pid = stream.peer_cred().ok()?.pid()?;
        if lock(&self.seen_processes).insert(pid) {
            let text = format!("attacher process {pid} connects");
            self.observer.observe(Observation::Disturbed(text));
        }
        Some(pid)
    }
}

/// The response, with its code, message and publish context.
async fn read_response(response: Response<Body>) -> (Response<Body>, Code, String, BTreeMap<String, String>) {
    let (parts, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        let message = "the response broke off";
        return (
            Status::internal(message).into_http(),
            Code::Internal,
            message.to_owned(),
            BTreeMap::new(),
        );
    };
    let trailers = body.trailers().cloned();
    let bytes = body.to_bytes();
    let status = status(&parts.headers).or_else(|| status(trailers.as_ref()?));
    let (code, message) = status.map_or((Code::Unknown, String::new()), |status| {
        (status.code(), status.message().to_owned())
    });
    let published = bytes
        .get(PREFIX..)
        .and_then(|message| ControllerPublishVolumeResponse::decode(message).ok());
    let context = published.map(|response| response.publish_context.into_iter().collect());
    let trailers = std::future::ready(trailers.map(Ok));
    let response = Response::from_parts(parts, Body::new(Full::new(bytes).with_trailers(trailers)));
    (response, code, message, context.unwrap_or_default())
}

fn status(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers)
}

/// The fields that follow from the PersistentVolume.
fn fields(request: &ControllerPublishVolumeRequest) -> PublishRequest {
    let capability = request.volume_capability.as_ref();
    let mode = capability.and_then(|capability| capability.access_mode.as_ref());
    let access = capability.and_then(|capability| capability.access_type.as_ref());
    let (fs_type, mount_flags) = match access {
        Some(AccessType::Mount(mount)) => (mount.fs_type.clone(), mount.mount_flags.clone()),
        Some(AccessType::Block(_)) | None => (String::new(), Vec::new()),
    };
    PublishRequest {
        access_mode: mode
            .and_then(|mode| Mode::try_from(mode.mode).ok())
            .map_or("", |mode| mode.as_str_name())
            .to_owned(),
        block: matches!(access, Some(AccessType::Block(_))),
        fs_type,
        mount_flags,
        readonly: request.readonly,
        context: request.volume_context.clone().into_iter().collect(),
    }
}

/// The name of a code in the CSI specification.
fn name_of(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// How many answers with this code the calls of a method got.
pub(super) fn answers(contract: &Contract, method: Method, code: &str) -> usize {
    let mut calls = BTreeMap::new();
    let mut count = 0;
    for (_, seen) in contract.history() {
        if let Observation::CallBegan(call) = seen {
            calls.insert(call.number, call.method);
        } else if let Observation::CallEnded(number, answer) = seen
            && &*answer.code == code
            && calls.get(number) == Some(&method)
        {
            count += 1;
        }
    }
    count
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
