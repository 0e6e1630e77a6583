//! The driver of one case: the mock driver in this process, behind a socket that records the attacher's calls and may lie.

mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use attacher_contract::Observation;
use attacher_contract::observation::Call;
use csi_mock_driver::array::{self, NodeId};
use csi_mock_driver::driver::{Driver, Settings};
use csi_mock_driver::service::services;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::Service as _;

use super::observer::Observer;
pub(super) use super::observer::answers;
use crate::attacher::Processes;
use crate::mutex::lock;
use crate::observe::grpc::{self, Known, RunningCall, read_response};
pub(super) use script::{Reply, Script};

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
    replicas: Processes,
    seen_processes: Mutex<BTreeSet<i32>>,
    listening: Mutex<JoinSet<()>>,
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
                replicas: Processes::default(),
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
        self.shared.observer.observe(Observation::Fault(text));
        lock(&self.shared.scripts).insert(0, script);
    }

    /// Ends all scripted replies.
    pub(super) fn behave(&self) {
        lock(&self.shared.scripts).clear();
    }

    /// The driver process ends, and its connections break.
    pub(super) fn down(&self) {
        let text = "the driver process ends".to_owned();
        self.shared.observer.observe(Observation::Fault(text));
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

    /// The processes of the replicas with leader election.
    pub(super) fn replicas(&self) -> Processes {
        self.shared.replicas.clone()
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
        let driver = lock(&self.driver).clone();
        self.observer.observe_array(&driver);
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
        let by = process.and_then(|pid| self.replicas.name(pid));
        let number = || self.calls.fetch_add(1, Ordering::Relaxed);
        let known = grpc::read(parts.uri.path(), &message, by, number);
        let request = Request::from_parts(parts, Body::new(Full::new(message)));
        let call = match known {
            None => {
                let Ok(response) = routes.call(request).await;
                return response;
            }
            Some(Known::List(list)) => {
                let round = self.rounds.fetch_add(1, Ordering::Relaxed);
                let observe = |seen| self.observer.observe(seen);
                return grpc::list(routes, request, &list, round, observe).await;
            }
            Some(Known::Controller(call)) => call,
        };
        drop(self.write.lock().await);
        let running = RunningCall::begin(call.clone(), |seen| self.observer.observe(seen));
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
        running.end(code, message, context);
        response
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
            self.observer.observe(Observation::Fault(text));
        }
        Some(pid)
    }
}
