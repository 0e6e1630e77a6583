//! Flags of fault injection.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use super::value::path_or_empty;
use crate::fault::duration;
use crate::fault::scenario::{Scenario, UnknownScenario};
use crate::proxy::relay;
use crate::socket::{Endpoint, InvalidEndpoint};

/// Flags of fault injection.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Faults")]
pub(crate) struct FaultArgs {
    /// YAML file with fault rules, reloaded when it changes.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub(crate) faults: PathBuf,

    /// Built-in fault scenarios, such as attach-uncertain,flaky-10pct. help lists them.
    #[arg(long, default_value = "", hide_default_value = true)]
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
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) proxy_endpoint: Dialled,
}

/// A list of scenarios.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scenarios(pub Vec<&'static Scenario>);

/// The address to which drivers connect; an empty text for none.
#[derive(Clone, Debug)]
pub(crate) struct Dialled(pub Option<relay::RelayAddress>);

// === impl Dialled ===

impl FromStr for Dialled {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        match text {
            "" => Ok(Self(None)),
            endpoint => endpoint.parse().map(Some).map(Self),
        }
    }
}

// === impl Scenarios ===

impl FromStr for Scenarios {
    type Err = UnknownScenario;

    fn from_str(names: &str) -> Result<Self, UnknownScenario> {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(Scenario::named).collect::<Result<_, _>>().map(Self)
    }
}
