//! The commands for the state directory of a stopped driver.

use std::path::PathBuf;

use clap::Subcommand;

use super::output::{Done, Failure};
use super::print::json;
use crate::store::{Database, OpenError};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum StateCommand {
    /// Prints all tables of a stopped driver's state database as JSON.
    Dump {
        /// The --state-dir of the driver.
        #[arg(long)]
        state_dir: PathBuf,
    },
}

// === impl StateCommand ===

impl StateCommand {
    pub(super) fn run(&self) -> Result<Done, Failure> {
        let Self::Dump { state_dir } = self;
        let dump = Database::open_existing(state_dir).and_then(|database| database.dump());
        match dump {
            Ok(dump) => Ok(Done::Text(json(&dump), true)),
            Err(OpenError::InUse { path }) => Err(Failure::StateInUse { path }),
            Err(error) => Err(Failure::State(error)),
        }
    }
}
