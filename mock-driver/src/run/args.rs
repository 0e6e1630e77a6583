//! The command-line flags, in the syntax of Go programs: one dash or two, `-flag=value` or `-flag value`, the last one wins.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args as _, Command, CommandFactory, FromArgMatches, Parser};
use tracing::Level;

use crate::array::NodeId;
use crate::driver;
use crate::driver::locks::BusyRule;
use crate::driver::mode::Mode;
use crate::driver::service_config::ServiceConfig;
use crate::fault::duration;
use crate::journal::clock::Clock;
use crate::rpc::capabilities::CapabilitySet;
use crate::socket::Endpoint;

pub use self::admin::AdminArgs;
pub use self::array::ArrayArgs;
pub use self::faults::FaultArgs;
pub use self::hostpath::{AttachLimit, HostPathArgs};
pub use self::klog::KlogArgs;
pub use self::node::NodeArgs;
use self::value::{given, path_or_empty};

mod admin;
mod array;
mod faults;
mod hostpath;
mod klog;
mod node;
mod value;

/// Default page size of ListVolumes. A response with a hundred nodes per volume stays below 4 MiB, the default limit of gRPC
/// clients.
const DEFAULT_LIST_PAGE: usize = 1000;

/// Flags of the array and of the node besides those of [`ArrayArgs`].
const OF_THE_ARRAY: [&str; 14] = [
    "attach_limit",
    "busy",
    "capabilities",
    "device_dir",
    "device_timeout",
    "devices",
    "latency",
    "list_page",
    "media_dir",
    "node_unpublish_strict",
    "nodes",
    "state_dir",
    "topology",
    "volumes",
];

/// Flags that only the process with the array reads. `--attach-limit` is not one, because a node reads its -1.
const OF_THE_ARRAY_ALONE: [&str; 17] = [
    "advertised_attach_limit",
    "delete_in_use",
    "latency",
    "linked_copies",
    "list_page",
    "max_volume_size",
    "min_volume_size",
    "modify_volume_strict",
    "mutable_parameters",
    "node_topology",
    "nodes",
    "pools",
    "snapshot_delay",
    "snapshot_metadata_blocks",
    "unpublish_not_found",
    "volumes",
    "zones",
];

/// A CSI driver on an emulated array of block devices.
#[derive(Clone, Debug, Parser)]
#[command(name = "csi-mock-driver", version, args_override_self = true)]
pub struct Args {
    /// Path of the CSI socket: unix:///path/csi.sock, unix:/path/csi.sock or a bare path.
    #[arg(long, env = "CSI_ENDPOINT")]
    pub endpoint: Endpoint,

    /// Name of the CSI driver.
    #[arg(long, alias = "drivername", default_value = "mock.csi.local", value_parser = driver_name)]
    pub driver_name: String,

    /// Number of nodes of the array: node-0, node-1 and so on.
    #[arg(long, default_value_t = 3)]
    pub nodes: usize,

    /// Number of initial volumes: vol-0, vol-1 and so on.
    #[arg(long, default_value_t = 0)]
    pub volumes: u64,

    /// Maximum number of volumes attached per node. 0 = unlimited; -1 = unlimited, but each NodeGetInfo
    /// reports a random number from 1 to 10.
    #[arg(long, default_value = "0", allow_hyphen_values = true)]
    pub attach_limit: AttachLimit,

    /// The array and the services that work on it.
    #[command(flatten)]
    pub array: ArrayArgs,

    /// The node's side.
    #[command(flatten)]
    pub node: NodeArgs,

    /// Duration of ControllerPublishVolume and ControllerUnpublishVolume.
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    pub latency: Duration,

    /// Behaviour of a second call for a volume: abort answers ABORTED, wait queues it.
    #[arg(long, default_value = "abort", value_parser = busy_rule)]
    pub busy: BusyRule,

    /// Maximum number of entries per page of ListVolumes, whatever max_entries is. 0 = unlimited.
    #[arg(long, default_value_t = DEFAULT_LIST_PAGE)]
    pub list_page: usize,

    /// Capabilities to remove from or add to the default, such as -PUBLISH_READONLY,+VOLUME_CONDITION.
    /// Capabilities of the Node service start with NODE_.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub capabilities: CapabilitySet,

    /// Directory of the array's persistent state. Without it, the state is in memory.
    #[arg(long, alias = "statedir", default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub state_dir: PathBuf,

    /// File for the journal of calls, one JSON object per line.
    #[arg(long, default_value = "", hide_default_value = true, value_parser = path_or_empty())]
    pub journal: PathBuf,

    /// What goes wrong.
    #[command(flatten)]
    pub faults: FaultArgs,

    /// The admin API and what it looks at.
    #[command(flatten)]
    pub admin: AdminArgs,

    /// Flags of csi-driver-host-path.
    #[command(flatten)]
    pub host_path: HostPathArgs,

    /// Flags of klog.
    #[command(flatten)]
    pub klog: KlogArgs,

    /// Maximum time for running calls to finish after SIGTERM.
    #[arg(long, default_value = "10s", value_parser = duration::parse)]
    pub shutdown_grace: Duration,

    /// Maximum time to wait at the start for the locks on --state-dir, on --media-dir and on the node's device
    /// directory, which a process that is being replaced still holds. A startup probe must last longer.
    #[arg(long, default_value = "1m", value_parser = duration::parse)]
    pub lock_timeout: Duration,

    /// Log verbosity: 0 to 3 for state changes, 4 and 5 for details, 6 and above for everything.
    #[arg(long, default_value_t = 2)]
    pub v: u8,

    /// Flags that have no or a different effect; logged at start.
    #[arg(skip)]
    pub notes: Vec<String>,
}

// === impl Args ===

impl Args {
    /// Parses the flags.
    ///
    /// # Errors
    /// A text for the user, also for `--help` and `--version`.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let words = with_two_dashes(args);
        let is_host_path = HostPathArgs::is_host_path_command_line(&words);
        let command = if is_host_path {
            HostPathArgs::defaults(Self::command())
        } else {
            Self::command()
        };
        let matches = command.try_get_matches_from(words)?;
        let mut args = Self::from_arg_matches(&matches)?;
        args.notes.extend(args.klog.notes());
        args.notes.extend(args.without_array(&matches));
        // Manifests of csi-driver-host-path have such flags on every process.
        if let Some(objection) = args.array_flag_on_node(&matches).filter(|_| !is_host_path) {
            return Err(Self::command().error(ErrorKind::ArgumentConflict, objection));
        }
        hostpath::translate(&mut args, &matches, is_host_path);
        if let Some(objection) = args.array.objection() {
            return Err(Self::command().error(ErrorKind::ValueValidation, objection));
        }
        match args.faults.help() {
            Some(text) => Err(clap::Error::raw(ErrorKind::DisplayVersion, text)),
            None => Ok(args),
        }
    }

    /// The settings of the driver.
    pub fn settings(&self) -> driver::Settings {
        let mut nodes = crate::array::Settings::numbered_nodes(self.nodes);
        let node_id = self.node.id();
        nodes.extend(node_id.as_deref().map(NodeId::from));
        driver::Settings {
            name: self.driver_name.clone(),
            array: self.array.settings(
                &self.driver_name,
                nodes,
                self.attach_limit.number(),
                self.list_page,
            ),
            config: ServiceConfig {
                limit_by_chance: self.attach_limit == AttachLimit::ByChance,
                ..self.array.config()
            },
            initial_volumes: self.volumes,
            latency: self.latency,
            busy: self.busy,
            mode: self.node.mode,
            array_endpoint: self.node.array_endpoint.clone(),
            registration: self.node.registration(self.endpoint.path()),
            node_id,
            node: self.node.settings(),
            capabilities: self.capabilities.clone(),
            state_dir: given(&self.state_dir),
            media_dir: given(&self.node.media_dir),
            journal: given(&self.journal),
            journal_config: self.admin.journal_config(),
            faults: given(&self.faults.faults),
            scenarios: self.faults.scenario.0.clone(),
            seed: self.faults.seed,
            proxy_to: self.faults.proxy_to.as_ref().map(|to| to.path().to_owned()),
            clock: Clock::system(),
        }
    }

    /// Array flags that `--proxy-to` ignores.
    fn without_array(&self, matches: &ArgMatches) -> Vec<String> {
        if self.faults.proxy_to.is_none() {
            return Vec::new();
        }
        let of_array = ArrayArgs::augment_args(Command::new("array"));
        let of_array: BTreeSet<&str> = of_array
            .get_arguments()
            .map(|flag| flag.get_id().as_str())
            .collect();
        let is_ctl = |flag: &&Arg| {
            let id = flag.get_id().as_str();
            (of_array.contains(id) || OF_THE_ARRAY.contains(&id))
                && matches.value_source(id) == Some(ValueSource::CommandLine)
        };
        let command = Self::command();
        let names = command.get_arguments().filter(is_ctl).filter_map(Arg::get_long);
        let note =
            |name| format!("--{name} has no effect beside --proxy-to: the array is the other driver's");
        names.map(note).collect()
    }

    /// The error for a flag of the array on a process with a node only.
    fn array_flag_on_node(&self, matches: &ArgMatches) -> Option<String> {
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let is_by_chance = self.attach_limit == AttachLimit::ByChance;
        let id = match is_given("attach_limit") && !is_by_chance {
            true => "attach_limit",
            false => OF_THE_ARRAY_ALONE.into_iter().find(|id| is_given(id))?,
        };
        let flag = Self::command()
            .get_arguments()
            .find(|flag| flag.get_id() == id)?
            .get_long()?
            .to_owned();
        (self.node.mode == Mode::Node).then(|| {
            format!(
                "--{flag} has no effect with --mode=node: the array is in the process at --array-endpoint; give the \
                 flag there"
            )
        })
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

/// Adds the second dash to flags with one, and joins each flag with its value, so that a value that begins with a dash is
/// not parsed as a flag.
fn with_two_dashes(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let command = Args::command();
    let is_named = |arg: &Arg, name: &str| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    };
    let takes_value = |name: &str| {
        command
            .get_arguments()
            .any(|arg| is_named(arg, name) && arg.get_action().takes_values() && !is_switch(arg))
    };
    let mut args = args.into_iter();
    let mut rewritten: Vec<OsString> = args.next().into_iter().collect();
    while let Some(arg) = args.next() {
        let text = arg.to_str().unwrap_or_default();
        let Some(name) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else {
            rewritten.push(arg);
            continue;
        };
        let mut flag = OsString::from(if name == "h" {
            "--help".to_owned()
        } else {
            format!("--{name}")
        });
        if takes_value(name)
            && let Some(value) = args.next()
        {
            flag.push("=");
            flag.push(value);
        }
        rewritten.push(flag);
    }
    rewritten
}

/// Whether a flag is `true` without a value, as Go's boolean flags are: a value is only in the same word.
fn is_switch(arg: &Arg) -> bool {
    arg.is_require_equals_set()
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
