//! Output or error of a command.

use clap::ValueEnum;

use crate::admin_api::client::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Tables.
    Table,
    /// The JSON of the admin API.
    Json,
}

pub(super) enum Done {
    /// The output, and whether assertions hold.
    Text(String, bool),
    /// The command has printed its output already.
    Printed,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Client(#[from] Error),
    #[error("{0}")]
    Usage(String),
}

// === impl Failure ===

impl Failure {
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Client(Error::Refused { .. }) => 1,
            Self::Usage(_) => 2,
            Self::Client(
                Error::Unreachable { .. } | Error::Late { .. } | Error::Broken { .. } | Error::Foreign { .. },
            ) => 3,
        }
    }
}
