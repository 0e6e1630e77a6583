//! Undoes what drivers without a state or media directory left when they were killed: the kernel releases their locks and nothing
//! else.

use std::fmt;
use std::path::{Path, PathBuf};

use super::Driver;
use crate::admin_api::Endpoint;
use crate::error_chain;
use crate::node;
use crate::node::leftovers::{self, Undone};
use crate::store::PathError;
use crate::store::volume_files::AbandonedDir;

/// What was left by one process, and was undone.
#[derive(Debug)]
pub(crate) struct Cleaned {
    directory: PathBuf,
    pid: Option<u32>,
    undone: Undone,
    sockets: usize,
}

/// The private directory of a process that has ended cannot be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot undo all that the driver with {} left: end what uses its volumes, then call `csi-mock-driver clean`", directory.display())]
pub(crate) struct Left {
    directory: PathBuf,
    source: Box<node::Error>,
}

// === impl Cleaned ===

impl fmt::Display for Cleaned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.directory.display())?;
        if let Some(pid) = self.pid {
            write!(f, " of process {pid}")?;
        }
        write!(f, ": {}, {} sockets", self.undone, self.sockets)
    }
}

/// Undoes what all processes left that have ended. Blocks.
///
/// # Errors
/// The directory for temporary files cannot be read.
pub(crate) fn undo_all() -> Result<Vec<Result<Cleaned, Left>>, PathError> {
    let all = AbandonedDir::all()?;
    Ok(all.into_iter().map(undo).collect())
}

fn undo(abandoned: AbandonedDir) -> Result<Cleaned, Left> {
    let directory = abandoned.path.clone();
    let pid = abandoned.process.as_ref().map(|process| process.pid);
    let undone = leftovers::undo_below(&directory).and_then(|undone| {
        let sockets = abandoned.remove_sockets()?;
        // With it goes the record of all this.
        abandoned.remove()?;
        Ok((undone, sockets))
    });
    match undone {
        Ok((undone, sockets)) => Ok(Cleaned {
            directory,
            pid,
            undone,
            sockets,
        }),
        Err(source) => Err(Left {
            directory,
            source: Box::new(source),
        }),
    }
}

/// As [`undo_all`], with a line in the log for each process.
pub(crate) async fn undo_all_and_log() {
    let undone = tokio::task::spawn_blocking(undo_all).await;
    match undone {
        Ok(Ok(all)) => {
            for one in all {
                match one {
                    Ok(cleaned) => tracing::info!("undid what a killed driver left: {cleaned}"),
                    Err(left) => tracing::warn!("{}", error_chain(&left)),
                }
            }
        }
        Ok(Err(error)) => tracing::warn!(
            error = error_chain(&error),
            "cannot look for what killed drivers left"
        ),
        Err(error) => tracing::error!(%error, "cannot look for what killed drivers left"),
    }
}

// === impl Driver ===

impl Driver {
    /// Notes the sockets and the device directory of a driver without a permanent directory, for the case that it is killed.
    pub(crate) fn note_paths(&self, socket: &Path, admin: Option<&Endpoint>) {
        let admin = admin.and_then(|admin| match admin {
            Endpoint::Unix(socket) => Some(socket.path().to_owned()),
            Endpoint::None | Endpoint::Host { .. } | Endpoint::Tcp(_) => None,
        });
        let registration = self.registrar.as_ref().map(|registrar| registrar.socket());
        for socket in [Some(socket.to_owned()), admin, registration]
            .into_iter()
            .flatten()
        {
            let noted = std::path::absolute(&socket)
                .map_err(PathError::of("resolve", &socket))
                .and_then(|socket| self.volume_files.note_socket(&socket));
            if let Err(error) = noted {
                let error = error_chain(&error);
                tracing::warn!(error, "no start will remove the socket if this process is killed");
            }
        }
        let devices = self.node.as_ref().and_then(|node| node.devices.given_directory());
        if let Some(Err(error)) = devices.map(|devices| self.volume_files.note_devices(devices)) {
            let error = error_chain(&error);
            tracing::warn!(
                error,
                "`clean` will not find the devices if this process is killed"
            );
        }
    }
}
