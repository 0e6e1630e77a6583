//! Undoes what drivers without a state or media directory left when they were killed: the kernel releases their locks and nothing
//! else.

use std::path::{Path, PathBuf};

use super::Driver;
use crate::admin_api::Endpoint;
use crate::error_chain;
use crate::node;
use crate::node::leftovers;
use crate::store::PathError;
use crate::store::volume_files::{AbandonedDir, DEVICES, Process, SOCKETS};

/// The private directory of a process that has ended cannot be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot undo all that the driver with {} left: end what uses its volumes, then call `csi-mock-driver clean`", directory.display())]
pub(crate) struct Left {
    directory: PathBuf,
    source: Box<node::Error>,
}

/// Undoes what all processes left that have ended, and says so in a line for each. Blocks.
///
/// # Errors
/// The directory for temporary files cannot be read.
pub(crate) fn undo_all() -> Result<Vec<Result<String, Left>>, PathError> {
    let undo_one = |abandoned: AbandonedDir| {
        let directory = abandoned.path.clone();
        undo(abandoned).map_err(|source| Left {
            directory,
            source: Box::new(source),
        })
    };
    Ok(AbandonedDir::all()?.into_iter().map(undo_one).collect())
}

fn undo(abandoned: AbandonedDir) -> Result<String, node::Error> {
    let undone = leftovers::undo_below(&abandoned.path)?;
    let sockets = abandoned.remove_sockets()?;
    let of_process = |process: &Process| format!(" of process {}", process.pid);
    let process = abandoned.process.as_ref().map(of_process).unwrap_or_default();
    let line = format!(
        "{}{process}: {undone}, {sockets} sockets",
        abandoned.path.display()
    );
    // With it goes the record of all this.
    abandoned.remove()?;
    Ok(line)
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
                .and_then(|socket| self.volume_files.note(SOCKETS, &socket));
            if let Err(error) = noted {
                let error = error_chain(&error);
                tracing::warn!(error, "no start will remove the socket if this process is killed");
            }
        }
        let devices = self.node.as_ref().and_then(|node| node.devices.given_directory());
        if let Some(Err(error)) = devices.map(|devices| self.volume_files.note(DEVICES, devices)) {
            let error = error_chain(&error);
            tracing::warn!(
                error,
                "`clean` will not find the devices if this process is killed"
            );
        }
    }
}
