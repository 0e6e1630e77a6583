//! More attachers, with leader election, and proxies to the driver that can be closed while it runs.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use verdict::Requirement;

use super::super::test_context::Build;
use super::TestEnv;
use crate::attacher::{AttacherProcess, AttacherSpec, Kind, Replica};

/// A proxy of the driver's socket. Dropping it closes its connections and removes its socket.
#[derive(Debug)]
pub struct SocketProxy {
    socket: PathBuf,
    _task: JoinSet<()>,
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

    /// As [`TestEnv::replica`], with its connection to the driver through `socket_proxy`.
    pub async fn replica_over(
        &self,
        socket_proxy: &SocketProxy,
        kind: Kind,
        name: &str,
    ) -> Result<AttacherProcess> {
        let spec = AttacherSpec {
            socket: socket_proxy.socket().to_owned(),
            ..self.replica_spec(kind.into(), name).await?
        };
        AttacherProcess::start(self.ctx.run().clone(), spec).await
    }

    /// Starts another attacher, with leader election. The scenario stops it.
    pub async fn replica(&self, build: impl Into<Build>, name: &str) -> Result<AttacherProcess> {
        let spec = self.replica_spec(build.into(), name).await?;
        AttacherProcess::start(self.ctx.run().clone(), spec).await
    }

    async fn replica_spec(&self, build: Build, name: &str) -> Result<AttacherSpec> {
        Requirement::OwnHostName.check()?;
        Ok(AttacherSpec {
            kind: build.kind(),
            binary: self.ctx.attacher_build(build).await?,
            replica: Some(Replica {
                name: name.to_owned(),
                namespace: self.prefix.clone(),
            }),
            ..self.spec.clone()
        })
    }
}
