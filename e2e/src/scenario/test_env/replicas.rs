//! More attachers, with leader election, and proxies to the driver that can be closed while it runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use attacher_contract::observation::{Name, Write};
use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use jiff::Timestamp;
use kube::Client;
use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use verdict::Requirement;

use super::super::test_context::Build;
use super::TestEnv;
use crate::api_proxy::{Answer, ApiProxy, Object, forwarded, is_empty_patch, returned, written};
use crate::attacher::{AttacherProcess, AttacherSpec, Kind, Processes, Replica};
use crate::kubeconfig;
use crate::mutex::lock;

/// The replicas of a test environment: their processes, and what they wrote.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    pub processes: Processes,
    writes: Writes,
    proxies: Mutex<Vec<ApiProxy>>,
}

type Writes = Arc<Mutex<Vec<(Timestamp, Write)>>>;

/// A proxy of the driver's socket. Dropping it closes its connections and removes its socket.
#[derive(Debug)]
pub struct SocketProxy {
    socket: PathBuf,
    _task: JoinSet<()>,
}

// === impl Replicas ===

impl Replicas {
    /// Their writes so far, by the time at which they were sent.
    pub(super) fn writes(&self) -> Vec<(Timestamp, Write)> {
        lock(&self.writes).clone()
    }
}

// === impl SocketProxy ===

impl SocketProxy {
    fn open(socket: PathBuf, driver: PathBuf) -> Result<Self> {
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("listen at {}", socket.display()))?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(forward(client, driver.clone()));
            }
        });
        Ok(Self { socket, _task: task })
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for SocketProxy {
    fn drop(&mut self) {
        // Clients' connections would also be refused if the file remained.
        std::fs::remove_file(&self.socket).ok();
    }
}

async fn forward(mut client: UnixStream, driver: PathBuf) -> io::Result<()> {
    let mut server = UnixStream::connect(driver).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Opens a proxy to the driver, at the same path each time.
    pub fn socket_proxy(&self) -> Result<SocketProxy> {
        SocketProxy::open(self.dir.join("proxy.sock"), self.spec.socket.clone())
    }

    /// As [`TestEnv::replica`], with its connection to the driver through `socket_proxy`. There may be one such replica.
    pub async fn replica_over(
        &self,
        socket_proxy: &SocketProxy,
        kind: Kind,
        name: &str,
    ) -> Result<AttacherProcess> {
        // The driver sees the proxy's process.
        self.replicas.processes.add(std::process::id(), name);
        let spec = AttacherSpec {
            socket: socket_proxy.socket().to_owned(),
            ..self.replica_spec(kind.into(), name, &self.prefix).await?
        };
        AttacherProcess::start(self.ctx.run().clone(), spec).await
    }

    /// The number of requests so far in which replicas wrote VolumeAttachments and PersistentVolumes.
    pub fn writes_of_replicas(&self) -> usize {
        self.replicas.writes().len()
    }

    /// Starts another attacher, with leader election. The scenario stops it.
    pub async fn replica(&self, build: impl Into<Build>, name: &str) -> Result<AttacherProcess> {
        self.replica_in(&self.prefix, build, name).await
    }

    /// As [`TestEnv::replica`], with its Lease in this namespace. In another one than the others', it acts without their Lease.
    pub async fn replica_in(
        &self,
        namespace: &str,
        build: impl Into<Build>,
        name: &str,
    ) -> Result<AttacherProcess> {
        let spec = self.replica_spec(build.into(), name, namespace).await?;
        AttacherProcess::start(self.ctx.run().clone(), spec).await
    }

    async fn replica_spec(&self, build: Build, name: &str, namespace: &str) -> Result<AttacherSpec> {
        Requirement::OwnHostName.check()?;
        let kubeconfig = self.dir.join(format!("{name}.kubeconfig"));
        let api_server = kubeconfig::client(&self.spec.kubeconfig).await?;
        let (by, writes) = (Name::from(name), self.replicas.writes.clone());
        let proxy = ApiProxy::start(&kubeconfig, move |request| {
            observe_write(api_server.clone(), by.clone(), writes.clone(), request)
        })
        .await?;
        lock(&self.replicas.proxies).push(proxy);
        Ok(AttacherSpec {
            kind: build.kind(),
            binary: self.ctx.attacher_build(build).await?,
            kubeconfig,
            replica: Some(Replica {
                name: name.to_owned(),
                namespace: namespace.to_owned(),
                processes: self.replicas.processes.clone(),
            }),
            ..self.spec.clone()
        })
    }
}

// === functions ===

/// Executes a request of a replica, and records it if it writes what only the leader may write.
async fn observe_write(api_server: Client, by: Name, writes: Writes, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    if let Some(object @ (Object::Attachment(_) | Object::Volume(_))) = written(&parts, &body) {
        let write = Write {
            by: Some(by),
            object: object.to_string(),
            empty: is_empty_patch(&parts.method, &body),
            // Not known.
            changed: true,
        };
        lock(&writes).push((Timestamp::now(), write));
    }
    Ok(returned(api_server.send(forwarded(parts, &body)).await?))
}
