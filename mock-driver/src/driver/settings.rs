use std::path::PathBuf;
use std::time::Duration;

use super::locks::BusyRule;
use super::mode::Mode;
use super::registration;
use super::service_config::ServiceConfig;
use crate::admin_api;
use crate::array;
use crate::fault::scenario::Scenario;
use crate::fault::{self, LoadError, Rule};
use crate::journal;
use crate::journal::clock::Clock;
use crate::node::{self, device};
use crate::rpc::capabilities::CapabilitySet;
use crate::socket::BindError;
use crate::store;
use crate::store::volume_files;

#[derive(Clone, Debug)]
pub struct Settings {
    pub name: String,
    pub array: array::Settings,
    pub config: ServiceConfig,
    /// Number of initial volumes `vol-0`, `vol-1`, ...
    pub initial_volumes: u64,
    /// File with the state of the array at each start, in place of the stored one.
    pub fixture: Option<PathBuf>,
    /// Duration of attach and detach operations.
    pub latency: Duration,
    pub busy: BusyRule,
    pub mode: Mode,
    /// Admin endpoint of the process with the array; required by a process with a node only.
    pub array_endpoint: admin_api::Endpoint,
    /// Registration with kubelet; `None` to leave it to a sidecar.
    pub registration: Option<registration::Settings>,
    /// Id of the node of this process; `None` for a driver without a Node service.
    pub node_id: Option<String>,
    pub node: node::Settings,
    pub capabilities: CapabilitySet,
    /// State directory; `None` to keep no state.
    pub state_dir: Option<PathBuf>,
    /// Media directory; `None` for one within the state directory, or a temporary one without that.
    pub media_dir: Option<PathBuf>,
    pub journal: Option<PathBuf>,
    pub journal_config: journal::JournalConfig,
    pub faults: Option<PathBuf>,
    pub scenarios: Vec<&'static Scenario>,
    /// Rules that follow those of the scenarios.
    pub stubs: Vec<Rule>,
    /// Seed of random numbers and ids; `None` for a random one.
    pub seed: Option<u64>,
    /// Socket of the proxied driver; `None` if this is not a proxy.
    pub proxy_to: Option<PathBuf>,
    pub clock: Clock,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No random numbers, so ids would be predictable.
    #[error("getrandom failed")]
    Random(#[source] std::io::Error),
    #[error(transparent)]
    Store(#[from] store::OpenError),
    #[error(transparent)]
    Journal(#[from] journal::OpenError),
    #[error(transparent)]
    Faults(#[from] LoadError),
    #[error("--scenario")]
    Scenario(#[from] fault::RuleConflict),
    #[error("--faults")]
    DeviceFaults(#[source] fault::RuleConflict),
    #[error("--device-faults: {reason}")]
    NoDeviceFaults { reason: String },
    #[error(transparent)]
    VolumeFiles(#[from] volume_files::ClaimError),
    #[error(transparent)]
    Node(#[from] node::Error),
    #[error("{}: relative path without a working directory; use an absolute path", path.display())]
    Relative { path: PathBuf, source: std::io::Error },
    #[error("{flag}: {} is not UTF-8, so no link or mount can be recorded there; use another path", path.display())]
    NotUtf8 { flag: &'static str, path: PathBuf },
    #[error("--fixture: {}: {reason}", path.display())]
    Fixture { path: PathBuf, reason: String },
    #[error("--endpoint")]
    Bind(#[source] BindError),
    #[error(
        "--mode=node: needs --node-id, and --array-endpoint with the admin endpoint of the process that has the array"
    )]
    NodeAlone,
}

// === impl Settings ===

impl Default for Settings {
    /// Three nodes, no volumes, in memory, without delays and faults.
    fn default() -> Self {
        Self {
            name: "mock.csi.local".to_owned(),
            array: array::Settings {
                nodes: array::Settings::numbered_nodes(3),
                ..array::Settings::default()
            },
            config: ServiceConfig::default(),
            initial_volumes: 0,
            fixture: None,
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
            stubs: Vec::new(),
            seed: None,
            proxy_to: None,
            clock: Clock::default(),
        }
    }
}

// === impl OpenError ===

impl OpenError {
    /// Whether another process holds a lock that this one needs: it may be about to exit.
    pub fn is_in_use(&self) -> bool {
        matches!(
            self,
            Self::Store(store::OpenError::InUse { .. })
                | Self::VolumeFiles(volume_files::ClaimError::InUse { .. })
                | Self::Node(node::Error::Device(device::Error::InUse { .. }))
        )
    }
}
