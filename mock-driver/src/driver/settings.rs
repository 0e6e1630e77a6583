//! What a driver is started with, and why it may not start.

use std::path::PathBuf;
use std::time::Duration;

use super::locks::BusyRule;
use super::mode::Mode;
use super::registration;
use super::service_config::ServiceConfig;
use crate::admin_api;
use crate::array;
use crate::fault::scenario::Scenario;
use crate::fault::{self, LoadError};
use crate::journal;
use crate::journal::clock::Clock;
use crate::node::{self, device};
use crate::rpc::capabilities::CapabilitySet;
use crate::store;
use crate::store::volume_files;

/// Everything a driver is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name it answers GetPluginInfo with.
    pub name: String,
    /// Its array.
    pub array: array::Settings,
    /// How its services behave where CSI leaves a choice.
    pub config: ServiceConfig,
    /// How many volumes, `vol-0` and on, are there from the start.
    pub initial_volumes: u64,
    /// How long attaching and detaching take.
    pub latency: Duration,
    /// Behaviour for concurrent calls of one volume.
    pub busy: BusyRule,
    /// Which services this process has.
    pub mode: Mode,
    /// Where the array is asked that another process has; needed by a process that has only a node.
    pub array_endpoint: admin_api::Endpoint,
    /// How the driver makes itself known to kubelet; none to leave that to a sidecar.
    pub registration: Option<registration::Settings>,
    /// The node this process stands on; none for a driver without a Node service.
    pub node_id: Option<String>,
    /// How its side of the work is done.
    pub node: node::Settings,
    /// What it says it can do.
    pub capabilities: CapabilitySet,
    /// Where the array is kept; none for as long as the process lives.
    pub state_dir: Option<PathBuf>,
    /// Where the bytes of volumes lie; none for the state directory, or a private one without that.
    pub media_dir: Option<PathBuf>,
    /// Where calls are recorded.
    pub journal: Option<PathBuf>,
    /// Who else reads what is recorded.
    pub journal_config: journal::JournalConfig,
    /// Where fault rules come from.
    pub faults: Option<PathBuf>,
    /// The built-in scenarios to play.
    pub scenarios: Vec<&'static Scenario>,
    /// Seed of random numbers and ids; `None` for a random one.
    pub seed: Option<u64>,
    /// Socket of the proxied driver; `None` if this is not a proxy.
    pub proxy_to: Option<PathBuf>,
    /// What tells the time of day.
    pub clock: Clock,
}

/// Why a driver did not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No random numbers, so its ids would be guessable.
    #[error("getrandom failed")]
    Random(#[source] std::io::Error),
    /// The state directory.
    #[error(transparent)]
    Store(#[from] store::OpenError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] journal::OpenError),
    /// The fault rules.
    #[error(transparent)]
    Faults(#[from] LoadError),
    /// Two scenarios that do not go together.
    #[error("--scenario")]
    Scenario(#[from] fault::IdConflict),
    /// The media directory.
    #[error(transparent)]
    VolumeFiles(#[from] volume_files::ClaimError),
    /// The node's side.
    #[error(transparent)]
    Node(#[from] node::Error),
    /// A relative path, and nothing it is relative to.
    #[error("{}: relative path without a working directory; use an absolute path", path.display())]
    Relative {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A node without an array.
    #[error(
        "--mode=node: needs --node-id, and --array-endpoint with the admin endpoint of the process that has the array"
    )]
    NodeAlone,
}

// === impl Settings ===

impl Default for Settings {
    /// Three nodes, no volumes, all in memory, no delays and no faults.
    fn default() -> Self {
        Self {
            name: "mock.csi.local".to_owned(),
            array: array::Settings {
                nodes: array::Settings::numbered_nodes(3),
                ..array::Settings::default()
            },
            config: ServiceConfig::default(),
            initial_volumes: 0,
            latency: Duration::ZERO,
            busy: BusyRule::Abort,
            mode: Mode::All,
            array_endpoint: admin_api::Endpoint::None,
            registration: None,
            node_id: None,
            node: node::Settings::default(),
            capabilities: CapabilitySet::default(),
            state_dir: None,
            media_dir: None,
            journal: None,
            journal_config: journal::JournalConfig::default(),
            faults: None,
            scenarios: Vec::new(),
            seed: None,
            proxy_to: None,
            clock: Clock::default(),
        }
    }
}

// === impl OpenError ===

impl OpenError {
    /// Whether another process has what this one needs: it may be about to end.
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(
            self,
            Self::Store(store::OpenError::InUse { .. })
                | Self::VolumeFiles(volume_files::ClaimError::InUse { .. })
                | Self::Node(node::Error::Device(device::Error::InUse { .. }))
        )
    }
}
