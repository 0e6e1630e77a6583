//! Flags of fault injection.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::value::path_or_empty;
use crate::admin_api::{self, InvalidEndpoint};
use crate::fault::duration;
use crate::fault::scenario::{Scenario, UnknownScenario};
use crate::socket::Endpoint;

/// Flags of fault injection.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Faults")]
pub(crate) struct FaultArgs {
    /// YAML file with fault rules, reloaded when it changes.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub(crate) faults: PathBuf,

    /// Built-in fault scenarios, such as attach-uncertain,flaky-10pct. help lists them.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = scenarios)]
    pub(crate) scenario: Scenarios,

    /// Seed of all random numbers: the same seed repeats a run. Default: random, and logged.
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    /// Time after the start until the driver creates its socket.
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    pub(crate) listen_after: Duration,

    /// Socket of another CSI driver: this program forwards calls to it, with fault rules and journal, and has
    /// no array.
    #[arg(long)]
    pub(crate) proxy_to: Option<Endpoint>,

    /// Second socket or tcp://host:port: the program is not a driver, but pairs each connection to --endpoint
    /// with one that a driver opens there, and copies bytes between them.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = dialled)]
    pub(crate) proxy_endpoint: admin_api::Endpoint,
}

/// The value of one flag, which clap would take for that of several if it were written as a `Vec`.
type Scenarios = Vec<&'static Scenario>;

fn scenarios(names: &str) -> Result<Scenarios, UnknownScenario> {
    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(Scenario::named).collect()
}

/// `tcp://:port` is on loopback.
fn dialled(text: &str) -> Result<admin_api::Endpoint, InvalidEndpoint> {
    text.replacen("tcp://:", "tcp://127.0.0.1:", 1).parse()
}
