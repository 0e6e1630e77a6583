//! Flags for what goes wrong.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use super::path_or_empty;
use crate::fault::duration;
use crate::fault::scenario::{Scenario, UnknownScenario};
use crate::proxy::relay;
use crate::socket::{Endpoint, NoEndpoint};

/// What goes wrong.
#[derive(Clone, Debug, Args)]
pub struct FaultArgs {
    /// The YAML file with fault rules, read again when it changes; empty for none.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub faults: PathBuf,

    /// Built-in scenarios to play, as in attach-uncertain,flaky-10pct; help prints what there is.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub scenario: Scenarios,

    /// What all chance comes from; the same seed repeats a run. Drawn and printed unless given.
    #[arg(long)]
    pub seed: Option<u64>,

    /// How long after its start the driver makes its socket.
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    pub listen_after: Duration,

    /// The socket of another driver: instead of an array of its own, the program puts its faults and its
    /// journal in front of that one.
    #[arg(long)]
    pub proxy_to: Option<Endpoint>,

    /// A second socket or tcp://host:port: instead of being a driver, the program pairs each connection to
    /// --endpoint with one that a driver makes there, and passes bytes between them.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub proxy_endpoint: Dialled,
}

/// A choice of scenarios.
#[derive(Clone, Debug, Default)]
pub struct Scenarios(pub Vec<&'static Scenario>, bool);

/// Where drivers make their connections in; nowhere for the empty text.
#[derive(Clone, Debug)]
pub struct Dialled(pub Option<relay::Place>);

// === impl FaultArgs ===

impl FaultArgs {
    /// The text to print instead of running, if that was asked for.
    pub(super) fn help(&self) -> Option<String> {
        self.scenario.1.then(Scenario::help)
    }
}

// === impl Dialled ===

impl FromStr for Dialled {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Self, NoEndpoint> {
        match text {
            "" => Ok(Self(None)),
            place => place.parse().map(Some).map(Self),
        }
    }
}

// === impl Scenarios ===

impl FromStr for Scenarios {
    type Err = UnknownScenario;

    fn from_str(names: &str) -> Result<Self, UnknownScenario> {
        let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
        let (help, names): (Vec<_>, Vec<_>) = names.partition(|name| *name == "help");
        let scenarios = names.into_iter().map(Scenario::named).collect::<Result<_, _>>()?;
        Ok(Self(scenarios, !help.is_empty()))
    }
}
