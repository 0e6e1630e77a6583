//! What a command prints, or why it failed.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::admin_api::client::Error;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Tables.
    Table,
    /// The JSON of the admin API.
    Json,
}

/// The result of a command.
pub(super) enum Done {
    /// The output, and whether assertions hold.
    Text(String, bool),
    /// The command has printed its output already.
    Printed,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The driver refused or cannot be reached.
    #[error(transparent)]
    Client(#[from] Error),
    /// A usage error.
    #[error("{0}")]
    Usage(String),
    /// A state directory cannot be read.
    #[error(transparent)]
    State(crate::store::OpenError),
    /// A driver runs in a state directory.
    #[error("--state-dir: {} is in use by a running driver: stop it first, or ask it with `ctl info`, `ctl volumes` and \
             the other commands", path.display())]
    StateInUse {
        /// The directory.
        path: PathBuf,
    },
}

// === impl Failure ===

impl Failure {
    /// The exit code.
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Client(Error::Refused { .. }) | Self::State(_) | Self::StateInUse { .. } => 1,
            Self::Usage(_) => 2,
            Self::Client(
                Error::Unreachable { .. } | Error::Late { .. } | Error::Broken { .. } | Error::Foreign { .. },
            ) => 3,
        }
    }
}
