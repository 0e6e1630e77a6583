//! Attachers beside the stage's own, which elect a leader, and ways to the driver that can be cut while it lives.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::Stage;
use crate::subject::{Kind, Replica, Subject, SubjectSpec};

/// A socket whose connections lead to the driver's, until it is dropped: then they are closed, and the socket is
/// gone.
#[derive(Debug)]
pub struct Detour {
    socket: PathBuf,
    _task: JoinSet<()>,
}

// === impl Detour ===

impl Detour {
    fn open(socket: PathBuf, driver: PathBuf) -> Result<Self> {
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("listen at {}", socket.display()))?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(lead(near, driver.clone()));
            }
        });
        Ok(Self { socket, _task: task })
    }

    /// Where it begins.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        // A file that is left would refuse connections all the same.
        std::fs::remove_file(&self.socket).ok();
    }
}

async fn lead(mut near: UnixStream, driver: PathBuf) -> io::Result<()> {
    let mut far = UnixStream::connect(driver).await?;
    copy_bidirectional(&mut near, &mut far).await?;
    Ok(())
}

// === impl Stage ===

impl Stage<'_> {
    /// Opens a way to the driver, the same one each time.
    pub fn detour(&self) -> Result<Detour> {
        Detour::open(self.dir.join("detour.sock"), self.spec.socket.clone())
    }

    /// As [`Stage::replica`], with its driver at the end of `detour`.
    pub async fn replica_over(&self, detour: &Detour, kind: Kind, name: &str) -> Result<Subject> {
        let spec = SubjectSpec {
            socket: detour.socket().to_owned(),
            ..self.replica_spec(kind, name).await?
        };
        Subject::start(self.site.run().clone(), spec).await
    }

    /// Starts another attacher beside [`Self::subject`], as one of those that elect a leader. The scenario ends it.
    pub async fn replica(&self, kind: Kind, name: &str) -> Result<Subject> {
        Subject::start(self.site.run().clone(), self.replica_spec(kind, name).await?).await
    }

    async fn replica_spec(&self, kind: Kind, name: &str) -> Result<SubjectSpec> {
        Ok(SubjectSpec {
            kind,
            binary: self.site.attacher(kind).await?.to_owned(),
            replica: Some(Replica {
                name: name.to_owned(),
                namespace: self.prefix.clone(),
            }),
            ..self.spec.clone()
        })
    }
}
