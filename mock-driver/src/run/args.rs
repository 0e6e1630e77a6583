//! The command-line flags, in the syntax of Go programs: one dash or two, `-flag=value` or `-flag value`, the last one wins.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, value_parser};
use tracing::Level;

use crate::array::NodeId;
use crate::driver;
use crate::driver::locks::BusyRule;
use crate::driver::service_config::{RequiredSecret, ServiceConfig};
use crate::fault::{Rule, duration};
use crate::journal::JournalConfig;
use crate::journal::clock::Clock;
use crate::rpc::capabilities::CapabilitySet;
use crate::socket::Endpoint;

pub(crate) use self::admin::AdminArgs;
pub(crate) use self::array::ArrayArgs;
pub(crate) use self::faults::FaultArgs;
pub(crate) use self::hostpath::HostPathArgs;
pub(crate) use self::klog::KlogArgs;
pub(crate) use self::node::NodeArgs;
use self::value::{given, path_or_empty};

mod admin;
mod array;
mod faults;
mod hostpath;
mod ineffective;
mod klog;
mod node;
mod parse;
pub(super) mod value;

/// Verbosity from which each call is logged.
const CALL_LINES_FROM_V: u8 = 2;

/// The `--attach-limit` that reports random limits.
const RANDOM_LIMIT: i64 = -1;

/// Heading of the first flags in `--help`.
const HEADING: &str = "The driver";

/// A CSI driver on an emulated array of block devices.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "csi-mock-driver",
    version,
    args_override_self = true,
    next_help_heading = HEADING,
    after_help = "csi-mock-driver ctl COMMAND inspects a running driver and injects faults through its --admin-endpoint: see \
                  csi-mock-driver ctl --help.\ncsi-mock-driver replay --journal=FILE answers as a recorded driver did: see \
                  csi-mock-driver replay --help.\ncsi-mock-driver clean undoes what killed drivers left.\n\
                  csi-mock-driver --scenario=help lists the fault scenarios."
)]
pub struct Args {
    /// Path of the CSI socket: unix:///path/csi.sock, unix:/path/csi.sock or a bare path.
    #[arg(long, env = "CSI_ENDPOINT")]
    pub(crate) endpoint: Endpoint,

    /// Name of the CSI driver.
    #[arg(long, alias = "drivername", default_value = "mock.csi.local", value_parser = driver_name)]
    pub(crate) driver_name: String,

    /// Capabilities to remove from or add to the default, such as -PUBLISH_READONLY,+VOLUME_CONDITION.
    /// Capabilities of the Node service start with NODE_.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub(crate) capabilities: CapabilitySet,

    /// Time after the start for which Probe reports that the driver is not ready.
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    pub(crate) ready_after: Duration,

    /// Maximum time to wait at the start for the locks on --state-dir, on --media-dir and on the node's device
    /// directory, which a process that is being replaced still holds. A startup probe must last longer.
    #[arg(long, default_value = "1m", value_parser = duration::parse)]
    pub(crate) lock_timeout: Duration,

    /// Maximum time for running calls to finish after SIGTERM.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub(crate) shutdown_grace: Duration,

    /// File that the driver writes when it listens, as JSON with its sockets and its process id; - for stdout.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub(crate) ready_file: PathBuf,

    /// Stop, as with SIGTERM, when standard input ends. For a driver whose parent process holds a pipe to it: it ends with that
    /// process, also if that is killed.
    #[arg(long)]
    pub(crate) stop_on_stdin_eof: bool,

    /// Log verbosity: 0 and 1 for state changes, 2 and 3 also a line for each CSI call, 4 and 5 also details, 6 and
    /// above also the messages of calls.
    #[arg(long, default_value_t = 2)]
    pub(crate) v: u8,

    /// Directory of the array's persistent state. Without it, the state is in memory.
    #[arg(long, help_heading = array::HEADING, alias = "statedir", default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub(crate) state_dir: PathBuf,

    /// Maximum number of volumes attached per node. 0 = unlimited; -1 = unlimited, but each NodeGetInfo reports a random
    /// number from 1 to 10.
    #[arg(long, help_heading = array::HEADING, default_value_t = 0, allow_hyphen_values = true, value_parser = value_parser!(i64).range(RANDOM_LIMIT..))]
    pub(crate) attach_limit: i64,

    /// Behaviour of a second call for a volume: abort answers ABORTED, wait queues it.
    #[arg(long, help_heading = array::HEADING, default_value = "abort", value_parser = busy_rule)]
    pub(crate) busy: BusyRule,

    /// Secret that calls must contain: RPC:key=value. Repeatable.
    #[arg(
        long = "require-secret",
        help_heading = array::HEADING,
        value_name = "RPC:KEY=VALUE"
    )]
    pub(crate) required_secrets: Vec<RequiredSecret>,

    /// The array and the services that work on it.
    #[command(flatten)]
    pub(crate) array: ArrayArgs,

    /// The node's side.
    #[command(flatten)]
    pub(crate) node: NodeArgs,

    /// Fault injection.
    #[command(flatten)]
    pub(crate) faults: FaultArgs,

    /// The admin API, the journal and the log.
    #[command(flatten)]
    pub(crate) admin: AdminArgs,

    /// Flags of csi-driver-host-path.
    #[command(flatten)]
    pub(crate) host_path: HostPathArgs,

    /// Flags of klog.
    #[command(flatten)]
    pub(crate) klog: KlogArgs,

    /// Flags that have no or a different effect; logged at start.
    #[arg(skip)]
    pub(crate) notes: Vec<String>,

    /// The rules of a replay.
    #[arg(skip)]
    stubs: Vec<Rule>,
}

// === impl Args ===

impl Args {
    pub(crate) fn settings(&self) -> driver::Settings {
        let mut nodes = crate::array::Settings::numbered_nodes(self.array.nodes);
        let node_id = self.node.id();
        nodes.extend(node_id.as_deref().map(NodeId::from));
        driver::Settings {
            name: self.driver_name.clone(),
            array: self.array.settings(
                &self.driver_name,
                nodes,
                usize::try_from(self.attach_limit).unwrap_or(0),
            ),
            config: ServiceConfig {
                ready_after: self.ready_after,
                secrets: self.required_secrets.iter().cloned().collect(),
                random_limit: self.attach_limit == RANDOM_LIMIT,
                ..self.array.config()
            },
            initial_volumes: self.array.volumes,
            fixture: given(&self.array.fixture),
            latency: self.array.latency,
            busy: self.busy,
            mode: self.node.mode,
            array_endpoint: self.node.array_endpoint.clone(),
            registration: self.node.registration(self.endpoint.path()),
            node_id,
            node: self.node.settings(),
            capabilities: self.capabilities.clone(),
            state_dir: given(&self.state_dir),
            media_dir: given(&self.node.media_dir),
            journal: given(&self.admin.journal),
            journal_config: JournalConfig {
                call_lines: self.v >= CALL_LINES_FROM_V,
                ..self.admin.journal_config()
            },
            faults: given(&self.faults.faults),
            scenarios: self.faults.scenario.clone(),
            stubs: self.stubs.clone(),
            seed: self.faults.seed,
            proxy_to: self.faults.proxy_to.as_ref().map(|to| to.path().to_owned()),
            clock: Clock::system(),
        }
    }

    /// Adds the rules of a replay.
    #[must_use]
    pub fn with_stubs(self, stubs: Vec<Rule>) -> Self {
        Self { stubs, ..self }
    }

    /// The log level.
    pub fn level(&self) -> Level {
        match self.v {
            0..=3 => Level::INFO,
            4..=5 => Level::DEBUG,
            6.. => Level::TRACE,
        }
    }
}

/// CSI's rule: domain style, at most 63 characters, alphanumeric at both ends.
fn driver_name(text: &str) -> Result<String, &'static str> {
    let proper = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if text.len() <= 63 && text.chars().all(proper) && ends(text.chars().next()) && ends(text.chars().last())
    {
        Ok(text.to_owned())
    } else {
        Err("must have 1 to 63 of the characters a-z, A-Z, 0-9, '-', '.', '_', alphanumeric at both ends")
    }
}

fn busy_rule(text: &str) -> Result<BusyRule, &'static str> {
    match text {
        "abort" => Ok(BusyRule::Abort),
        "wait" => Ok(BusyRule::Wait),
        _ => Err("must be abort or wait"),
    }
}

#[cfg(test)]
mod tests;
